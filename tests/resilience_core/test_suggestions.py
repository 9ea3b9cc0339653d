"""Did you mean: one home of it, so that every message guesses alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_core.suggestions import closest, nearest, suggestion

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "close", "said", "or_all"),
    [
        ("stpe", "step", "; did you mean 'step'?", "; did you mean 'step'?"),
        ("step", "step", "; did you mean 'step'?", "; did you mean 'step'?"),
        ("zzz", None, "", "; known are: setup, step"),
        ("", None, "", "; known are: setup, step"),
    ],
)
def test_the_nearest_name_is_suggested(name: str, close: str | None, said: str, or_all: str) -> None:
    known = ["step", "setup", "step"]
    assert (closest(name, known), suggestion(name, known), nearest(name, known)) == (close, said, or_all)


def test_nothing_else_compares_names() -> None:
    packages = ("resilience_core", "adapters", "straggler", "launcher")
    paths = [path for package in packages for path in ROOT.glob(f"{package}/**/*.py")]
    assert [path.name for path in paths if "difflib" in path.read_text(encoding="utf-8")] == ["suggestions.py"]
