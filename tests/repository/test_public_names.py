"""What a module lists in ``__all__`` is what other modules take from it: no more is taken, and nothing is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.test_layout import modules


def listed(tree: ast.Module) -> list[str] | None:
    """The literal ``__all__`` of a module; None where it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value)
            assert isinstance(names, list | tuple)
            return list(names)
    return None


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that the statements of a module bind, also in its ``if`` and ``try``."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.If):
            yield from defined([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from defined([*node.body, *node.orelse, *node.finalbody, *(s for h in node.handlers for s in h.body)])
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.With):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and is_bound(each))


def is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def taken(tree: ast.Module, known: set[str]) -> Iterator[tuple[str, str]]:
    """The names that a module takes from others of the project: as imports, or as attributes of imported modules."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    bound[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                if (module := f"{node.module}.{alias.name}") in known:
                    bound[alias.asname or alias.name] = module
                elif node.module in known:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name | ast.Attribute):
            continue
        module = bound.get(ast.unparse(node.value), "")
        if module and f"{module}.{node.attr}" not in known:
            yield module, node.attr


def findings(sources: dict[str, str]) -> set[str]:
    """What is wrong in some modules, by dotted name."""
    trees = {name: ast.parse(source) for name, source in sources.items()}
    public = {name: listed(tree) for name, tree in trees.items()}
    found = set()
    for name, tree in trees.items():
        there = set(defined(tree.body))
        if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
            there.update(public[name] or ())  # PEP 562
        names = public[name] or []
        found.update(f"{name} lists {each}, which is not there" for each in set(names) - there)
        found.update(f"{name} lists {each} twice" for each in names if names.count(each) > 1)
        for module, each in taken(tree, trees.keys() - {name}):
            if each.startswith("__") and each.endswith("__"):
                continue
            if each.startswith("_"):
                found.add(f"{name} takes {each} of {module}")
            elif each not in (public[module] or ()):
                found.add(f"{module} does not list {each}, which {name} takes")
    return found


def test_modules_take_from_each_other_what_is_listed() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    assert findings(sources) == set()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("__all__ = ['a']\ndef a(): ...", "from p.one import a", set()),
        ("def a(): ...", "from p.one import a", {"p.one does not list a, which p.other takes"}),
        ("__all__ = []\na = 1", "def f():\n from p.one import a", {"p.one does not list a, which p.other takes"}),
        ("__all__ = []\na = 1", "from p import one\none.a", {"p.one does not list a, which p.other takes"}),
        ("__all__ = []\na = 1", "import p.one\np.one.a", {"p.one does not list a, which p.other takes"}),
        ("__all__ = []\na = 1", "import p.one as o\no.a", {"p.one does not list a, which p.other takes"}),
        ("_a = 1", "from p.one import _a", {"p.other takes _a of p.one"}),
        ("_a = 1", "from p import one\none._a", {"p.other takes _a of p.one"}),
        ("__all__ = ['a']", "", {"p.one lists a, which is not there"}),
        ("__all__ = ['a', 'a']\na = 1", "", {"p.one lists a twice"}),
        ("__all__ = ['a']\nif X:\n from b import a", "", set()),
        ("__all__ = ['a', 'b']\na, b = 1, 2", "", set()),
        ("__all__ = ['a']\na: int", "", set()),
        ("from p import other", "", set()),
    ],
)
def test_what_is_wrong_is_found(one: str, other: str, expected: set[str]) -> None:
    assert findings({"p": "", "p.one": one, "p.other": other}) == expected


def test_the_modules_are_found() -> None:
    assert len(modules()) > 100
    assert all(isinstance(path, Path) for path in modules().values())
