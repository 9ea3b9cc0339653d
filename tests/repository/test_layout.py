"""The layout of the packages: small modules without circles, also where an import is lazy or for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("resilience_core", "adapters", "straggler", "launcher")
MOST_LINES = 300


def modules() -> dict[str, Path]:
    """All modules of the packages, by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(source: str, known: set[str]) -> Iterator[str]:
    """Which of the known modules a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known or node.module in known:
                    yield submodule if submodule in known else node.module


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, empty where there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_no_module_is_long() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Packages are left out: their ``__init__`` imports what is in them, and that is what a package is for."""
    known = modules()
    leaves = {name for name, path in known.items() if path.name != "__init__.py"}
    graph = {name: set(imports_of(known[name].read_text(encoding="utf-8"), leaves)) - {name} for name in leaves}
    assert sum(map(len, graph.values())) > len(graph)
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], expected: list[str]) -> None:
    assert circle(graph) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.one",
        "def f():\n    from pkg import one",
        "if TYPE_CHECKING:\n    from pkg.one import Thing",
    ],
)
def test_every_kind_of_import_is_seen(source: str) -> None:
    assert list(imports_of(source, {"pkg.one"})) == ["pkg.one"]
