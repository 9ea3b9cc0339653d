"""Importing costs nothing until a name is used, and no framework is ever imported by resilience_core."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import resilience_core
from resilience_core._lazy import attach
from resilience_core._version import _checkout_version

ROOT = Path(__file__).parents[2]
MODULES = sorted(module.name for module in pkgutil.walk_packages(resilience_core.__path__, "resilience_core."))
FRAMEWORKS = {"torch", "lightning", "pytorch_lightning", "transformers", "numpy"}


def modules_after(code: str) -> set[str]:
    """What a new interpreter has imported after running ``code``."""
    program = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_of_it():
    modules = modules_after("import resilience_core")
    assert {m for m in modules if m.startswith("resilience_core")} == {"resilience_core", "resilience_core._lazy"}
    assert not modules & {"attr", "attrs", "pluggy", "yaml"}


def test_no_module_imports_a_framework():
    """All of them in one interpreter: the contract that setup.cfg states, seen at run time."""
    modules = modules_after("; ".join(f"import {name}" for name in MODULES))
    assert not modules & FRAMEWORKS


def test_the_cell_needs_the_standard_library_alone():
    """The monitor process imports it, and must stay small."""
    assert not modules_after("import resilience_core.protocol.cell") & {
        "attr",
        "attrs",
        "pluggy",
        "yaml",
        "typing_extensions",
    }


def test_a_rank_does_not_pay_for_yaml():
    """It gets its configuration as JSON, at every restart anew."""
    code = "from resilience_core import FaultToleranceConfig as c; c.from_json(c().to_json())"
    assert "yaml" not in modules_after(f"{code}; import resilience_core.monitoring.client")


@pytest.mark.parametrize("name", resilience_core.__all__)
def test_every_public_name_leads_somewhere(name: str):
    assert getattr(resilience_core, name) is not None
    assert name in dir(resilience_core)


def test_public_names_are_sorted_and_type_checkers_see_the_same():
    assert list(resilience_core.__all__) == sorted(resilience_core.__all__)
    tree = ast.parse((ROOT / "resilience_core" / "__init__.py").read_text())
    (guarded,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {alias.asname for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(resilience_core.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_calls_public_is_there(name: str):
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), public
    assert module.__doc__
    assert hasattr(module, "__all__") or hasattr(module, "__path__")


def test_the_bus_is_the_function_whichever_is_imported_first():
    """No submodule has the function's name, so that no import can take its place."""
    assert isinstance(resilience_core.bus, types.FunctionType)
    assert not set(resilience_core.__all__) & {name.rpartition(".")[2] for name in MODULES}
    for first in ("import resilience_core.event_bus", "from resilience_core import bus", "pass"):
        code = f"{first}; import resilience_core; b = resilience_core.bus(); assert b is resilience_core.bus()"
        assert "resilience_core.event_bus" in modules_after(code)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'resilience_core' has no attribute 'EventBuss'"):
        resilience_core.EventBuss  # noqa: B018


def test_attach_imports_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "lazily"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    load, listing = attach("lazily", {"answer": "deep"})
    assert "lazily.deep" not in sys.modules
    assert listing() == ["answer"]
    try:
        assert load("answer") == 42
        assert vars(sys.modules["lazily"])["answer"] == 42, "the name is looked up again"
    finally:
        sys.modules.pop("lazily.deep", None)
        sys.modules.pop("lazily", None)


@pytest.mark.parametrize("name", ["resilience_core", "adapters", "straggler", "launcher"])
def test_every_package_knows_its_version(name: str):
    package = importlib.import_module(name)
    assert package.__version__ == importlib.metadata.version("torch-resilience")
    assert vars(package)["__version__"] == package.__version__
    assert "importlib.metadata" not in modules_after(f"import {name}")


def test_a_checkout_that_is_not_installed_has_the_version_of_its_setup_cfg(tmp_path: Path):
    assert _checkout_version(ROOT / "setup.cfg") == importlib.metadata.version("torch-resilience")
    assert _checkout_version(tmp_path / "setup.cfg") == "0+unknown"
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import adapters; print(adapters.__version__)"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _checkout_version(ROOT / "setup.cfg")
