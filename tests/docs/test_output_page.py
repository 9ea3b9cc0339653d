"""docs/output.md names every event that is announced, with the levels at which it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
KINDS = {"hang", "failure", "lost", "request", "near_miss", "withdrawn", "monitor_replaced", "monitor_lost"}
KINDS |= {"monitor_back", "log", "given_up", "lines_lost"}
"""Events whose names are the kind of an incident, or are not written out where they are announced."""


def announced(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield event and level of each call of ``announce`` and ``announcer``; a level that is computed is None."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (
            "announce",
            "announcer",
            "console.announce",
        ):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        event = node.args[0] if ast.unparse(node.func) == "announcer" else given.get("event")
        if None in given or (event is not None and not isinstance(event, ast.Constant)):
            continue  # all of it is computed
        where = f"{path.relative_to(ROOT)}, line {node.lineno}"
        assert event is not None, f"{where}: which event is it?"
        level = ast.unparse(given["level"]).rpartition(".")[2] if "level" in given else "WARNING"
        yield str(event.value), level if level in LEVELS else None


def test_the_table_of_what_is_announced_has_every_event_and_its_level() -> None:
    paths = [path for path in (ROOT / "launcher").rglob("*.py") if path.name != "script_settings.py"]
    written = {pair for path in paths for pair in announced(path)}
    page = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    table = page.partition("| event | level | what it tells |")[2].partition("\n\n")[0]
    shown: dict[str, str] = {}
    for names, levels, text in re.findall(r"^\| (`[^|]*)\| ([^|]*)\| ([^|]*)\|$", table, re.MULTILINE):
        shown.update(dict.fromkeys(re.findall(r"`(\w+)`", names), levels + text))
    assert len(written) > 40
    assert set(shown) == {event for event, _ in written} | KINDS
    assert [(event, level) for event, level in written if level is not None and f"`{level}`" not in shown[event]] == []
