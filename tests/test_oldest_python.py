"""What Python 3.10 would refuse, found without one: ``make matrix`` runs the oldest really, but not on every change."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for package in ("resilience_core", "launcher", "adapters", "straggler")
    for path in (ROOT / package).rglob("*.py")
)
NEWER = {
    "typing": {
        "LiteralString",
        "Never",
        "NotRequired",
        "Required",
        "Self",
        "TypeVarTuple",
        "Unpack",
        "assert_never",
        "override",
    },
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "verify"},
    "contextlib": {"chdir"},
    "itertools": {"batched"},
    "asyncio": {"TaskGroup", "timeout"},
    "hashlib": {"file_digest"},
    "tomllib": {"load", "loads"},
}


def newer_than_3_10(source: str) -> list[str]:
    """What in a module needs a newer Python, with its line."""
    tree = ast.parse(source, feature_version=(3, 10))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if "NamedTuple" in bases and len(bases) > 1:
                found.append(f"line {node.lineno}: a NamedTuple with another base")
        elif isinstance(node, ast.ImportFrom) and node.module in NEWER:
            names = sorted(NEWER[node.module] & {alias.name for alias in node.names})
            found += [f"line {node.lineno}: {node.module}.{name}" for name in names]
        elif isinstance(node, ast.Attribute) and node.attr in NEWER.get(ast.unparse(node.value), ()):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_module_needs_nothing_newer_than_python_3_10(path: Path) -> None:
    assert newer_than_3_10(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "class Case(NamedTuple, Generic[R]):\n    rank: R\n",
        "from typing import Any, Self\n",
        "import datetime\nnow = datetime.UTC\n",
    ],
)
def test_what_is_newer_is_found(source: str) -> None:
    assert len(newer_than_3_10(source)) == 1
