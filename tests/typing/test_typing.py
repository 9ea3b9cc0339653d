"""mypy --strict and pyright on the code of users, against a wheel that is installed somewhere else.

``right/`` uses the public names as a user does, and is clean. Each mistake in ``wrong/`` says in a comment what both
checkers call it; no other line of these files is an error.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import torch_resilience

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
EXPECTED = re.compile(r"# mypy: (?P<mypy>[\w-]+); pyright: (?P<pyright>\w+)$")

Errors = set[tuple[str, int, str]]
"""File, line, and what the checker calls it."""


def run(command: Sequence[object], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy: building leaves files beside the source."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    for name in torch_resilience.PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("torch_resilience.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = run([*command, "--wheel-dir", source / "dist", source], source)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with an environment that has the wheel; torch and the like are those of ours."""
    folder = tmp_path_factory.mktemp("user")
    environment = folder / ".venv"
    assert run([sys.executable, "-m", "venv", "--without-pip", environment], folder).returncode == 0
    (site,) = environment.glob("lib/python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
    done = run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    # Read as a plain folder: the .pth files in it, which lead to this checkout, are not followed.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copytree(HERE / "right", folder / "right")
    shutil.copytree(HERE / "wrong", folder / "wrong")
    return folder


def python(user: Path) -> Path:
    return user / ".venv" / "bin" / "python"


def mypy_errors(user: Path, files: str) -> Errors:
    names = sorted(path.name for path in (user / files).glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python(user), "--config-file", ""]
    done = run([*command, "--cache-dir", user / ".mypy_cache", *names], user / files)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\S+):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert len(found) == done.stdout.count(": error: "), done.stdout
    print(done.stdout)
    return {(name, int(line), code) for name, line, code in found}


def pyright_errors(user: Path, files: str) -> Errors:
    settings = {"include": ["."], "typeCheckingMode": "standard"}
    (user / files / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python(user)], user / files)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    for found in report["generalDiagnostics"]:
        where = f"{Path(found['file']).name}:{found['range']['start']['line'] + 1}"
        print(f"{where}: {found.get('rule')}: {' '.join(found['message'].split())}")
    assert report["summary"]["filesAnalyzed"] == len(list((user / files).glob("*.py")))
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found.get("rule", "syntax"))
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }


CHECKERS = {"mypy": mypy_errors, "pyright": pyright_errors}


@pytest.fixture(params=[pytest.param("mypy", marks=[pytest.mark.long, pytest.mark.timeout(900)]), "pyright"])
def checker(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def test_the_wheel_says_that_it_is_typed_and_holds_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for package in torch_resilience.PACKAGES:
        assert f"{package}/py.typed" in names
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {*torch_resilience.PACKAGES, "torch_resilience.py"}


def test_the_users_environment_has_the_wheel_and_not_the_checkout(user: Path) -> None:
    code = "import adapters, launcher, resilience_core, straggler, sys; print(resilience_core.__version__);"
    code += "print(*(m.__file__ for m in (adapters, launcher, resilience_core, straggler)), *sys.path, sep='\\n')"
    version, *paths = run([python(user), "-I", "-c", code], user).stdout.splitlines()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert len(paths) > 4
    assert all(path.startswith(str(user)) for path in paths[:4])
    assert str(ROOT) not in paths


def test_what_a_user_writes_is_accepted(user: Path, checker: str) -> None:
    assert CHECKERS[checker](user, "right") == set()


def test_each_mistake_is_found(user: Path, checker: str) -> None:
    expected = {
        (path.name, number, found[checker])
        for path in (user / "wrong").glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := EXPECTED.search(line))
    }
    assert len(expected) > 30
    assert CHECKERS[checker](user, "wrong") == expected
