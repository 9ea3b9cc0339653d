"""Interpreters that this machine has, and an environment of its own for each version of torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PACKED = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "torch_resilience.py")
_PACKAGES = ("resilience_core", "adapters", "straggler", "launcher")
_NEEDED_GB = 12


class SetupError(Exception):
    """An environment cannot be had; the message says what to do."""


def interpreters() -> dict[str, Path]:
    """Version to interpreter, of those that we support and this machine has."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python"))]
        on_path = shutil.which(f"python{version}")
        if on_path is not None:
            candidates.append(Path(on_path))
        for candidate in candidates:
            if version not in found and _works(candidate, version):
                found[version] = candidate
    return found


def _works(python: Path, version: str) -> bool:
    """Whether it runs; a shim of pyenv may stand for an interpreter that is not selected."""
    command = [str(python), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def python_for(minor: int, available: dict[str, Path]) -> str:
    """The Python that a version of torch is tried with: in turn, so that all of them are."""
    wanted = PYTHONS[(minor - 4) % len(PYTHONS)]
    return wanted if wanted in available else min(available, key=lambda v: abs(int(v[2:]) - int(wanted[2:])))


def build_wheel(folder: Path) -> Path:
    """Our own wheel, from a copy: building leaves folders in the tree that it builds from."""
    copy = folder / "source"
    copy.mkdir()
    for name in _PACKED:
        shutil.copy(ROOT / name, copy / name)
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    _pip(Path(sys.executable), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(copy), seconds=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


@contextlib.contextmanager
def environment(python: Path, torch: str, wheel: Path, folder: Path, *, keep: bool, seconds: float) -> Iterator[Path]:
    """The interpreter of a new virtual environment with torch and our wheel; removed at the end unless kept.

    Args:
        python: What it is made with.
        torch: A version such as ``2.4`` (its newest patch) or ``2.4.1``.
        wheel: Ours.
        folder: Where to make it.
        keep: Leave it there.
        seconds: How long the installation may take.

    Raises:
        SetupError: It cannot be made.
    """
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < _NEEDED_GB:
        raise SetupError(f"{free_gb:.0f} GB free in {folder}; one version of torch needs up to {_NEEDED_GB} (--folder)")
    place = folder / f"torch{torch}"
    try:
        subprocess.run([str(python), "-m", "venv", str(place)], check=True, capture_output=True)
        inside = place / "bin" / "python"
        wanted = f"torch=={torch}" if torch.count(".") > 1 else f"torch=={torch}.*"
        cache = [] if keep else ["--no-cache-dir"]
        _pip(inside, "install", "--quiet", *cache, wanted, str(wheel), seconds=seconds)
        yield inside
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _pip(python: Path, *arguments: str, seconds: float) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        raise SetupError(f"pip {arguments[0]} was not over after {seconds:g} s (--install-seconds)") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr[-800:]]
        raise SetupError(f"pip {arguments[0]}: {errors[-1]}")
