"""proc(5) is read in two modules; what else names a path of it is listed here, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("resilience_core", "adapters", "straggler", "launcher")
HOMES = ("resilience_core/system/proc.py", "launcher/processes/proc.py")
ALLOWED = {
    "launcher/health/check.py": "the folder to read below, which its tests replace",
    "launcher/processes/control_groups.py": "the folder to read below, which its tests replace",
    "launcher/processes/shortages.py": "a message to people",
    "straggler/measurement/core_waits.py": "the folder to read below, which its tests replace",
    "straggler/probes/host_cpu.py": "the folder to read below, which its tests replace",
}


def literals(source: str) -> Iterator[str]:
    """The string literals of a module, also within f-strings; a string that stands alone is a docstring."""
    tree = ast.parse(source)
    alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
            yield node.value


def names_proc(source: str) -> bool:
    return any(text == "/proc" or "/proc/" in text for text in literals(source))


def test_proc_is_read_in_its_two_homes_alone() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    found = {name for name, source in sources.items() if names_proc(source)}
    assert found >= set(HOMES)
    assert found - set(HOMES) == set(ALLOWED)  # what is listed and no longer there is to be taken off the list


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("open('/proc/self/maps')", True),
        ("open(f'/proc/{pid}/maps')", True),
        ("os.listdir('/proc')", True),
        ("Path(path='/proc')", True),
        ('"""As /proc/self shows it."""', False),
        ("x = 1\n'''See /proc/self.'''", False),
        ("open('/processes/proc')", False),
    ],
)
def test_paths_are_told_from_texts_about_them(source: str, expected: bool) -> None:
    assert names_proc(source) is expected
