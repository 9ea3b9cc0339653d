"""Another distribution has taken one of our import names: the message says so, nothing runs half."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torch_resilience

HOME = Path(torch_resilience.__file__).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the installation that may be spoilt."""
    home = tmp_path / "site"
    home.mkdir()
    shutil.copy(HOME / "torch_resilience.py", home)
    for name in torch_resilience.PACKAGES:
        (home / name).mkdir()
        shutil.copy(HOME / name / "__init__.py", home / name)
    return home


def run(*search: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path[:0] = sys.argv[1:]; sys.argv[1:] = ['x.py']; import torch_resilience as t; t.main()"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *map(str, search)], capture_output=True, text=True, check=False
    )


def test_our_own_installation_is_sound() -> None:
    assert torch_resilience.foreign_packages() == {}
    said = subprocess.run([sys.executable, "-m", "torch_resilience"], capture_output=True, text=True, check=False)
    assert said.returncode == 0
    assert "is sound" in said.stdout


@pytest.mark.parametrize("name", torch_resilience.PACKAGES)
def test_a_package_that_shadows_ours_is_named_with_its_place(installed: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    (other / name).mkdir(parents=True)
    (other / name / "__init__.py").write_text("")

    ended = run(other, installed)

    assert ended.returncode == 2
    assert f"{name}: expected {installed / name}, found {other / name}" in ended.stderr
    assert "Uninstall the other distribution" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_package_overwritten_in_place_is_found(installed: Path) -> None:
    (installed / "adapters" / "__init__.py").write_text("__version__ = '1.2'  # AdapterHub\n")
    ended = run(installed)
    assert ended.returncode == 2
    assert "overwritten by another distribution" in ended.stderr


@pytest.mark.parametrize("what", ["missing", "module", "folder"])
def test_a_package_that_is_gone_or_no_package_is_found(installed: Path, tmp_path: Path, what: str) -> None:
    shutil.rmtree(installed / "straggler")
    if what == "module":
        (installed / "straggler.py").write_text("")
    if what == "folder":
        (installed / "straggler").mkdir()

    ended = run(installed)

    assert ended.returncode == 2
    expected = {"missing": "found missing", "module": "straggler.py", "folder": "a folder without __init__.py"}
    assert expected[what] in ended.stderr
    assert "Traceback" not in ended.stderr
