"""How many verdicts each learned limit of a job has led to, from the launcher to the ranks of the next generation.

One JSON object in an environment variable: ``{"version": 1, "verdicts": {"section step": 2}}``.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping

from resilience_core.errors import ResilienceError
from resilience_core.protocol.limit_kinds import MOST_VERDICTS

__all__ = ["VERSION", "VerdictCountsError", "read_verdicts", "write_verdicts"]

VERSION = 1
"""Of the text; raised with every change of its keys."""


class VerdictCountsError(ResilienceError, ValueError):
    """A text is not what :func:`write_verdicts` of this version writes."""


def write_verdicts(counts: Mapping[str, int]) -> str:
    """Write how many verdicts each kind of limit has led to, as JSON."""
    return json.dumps({"version": VERSION, "verdicts": dict(counts)})


def read_verdicts(text: str | None) -> dict[str, int]:
    """Read what :func:`write_verdicts` wrote; each count is at most :data:`MOST_VERDICTS`.

    Args:
        text: The variable's value; None: it is not set, and there was no verdict.

    Raises:
        VerdictCountsError: The text is not that.
    """
    if text is None:
        return {}
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        raise VerdictCountsError(f"{reprlib.repr(text)} is no JSON") from None
    if not isinstance(plain, dict):
        raise VerdictCountsError(f"{reprlib.repr(plain)} is no object")
    version = plain.get("version")
    if type(version) is not int or version != VERSION:
        raise VerdictCountsError(f"it has version {reprlib.repr(version)}, and version {VERSION} is read here")
    if plain.keys() != {"version", "verdicts"}:
        raise VerdictCountsError(f"it has the keys {reprlib.repr(sorted(plain))}, not version and verdicts")
    verdicts = plain["verdicts"]
    if not isinstance(verdicts, dict):
        raise VerdictCountsError(f"{reprlib.repr(verdicts)} is no mapping from limits to counts")
    return {kind: min(_count(kind, count), MOST_VERDICTS) for kind, count in verdicts.items()}


def _count(kind: str, count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise VerdictCountsError(f"limit {kind!r} has {reprlib.repr(count)} verdicts, not a whole number of 1 or more")
    return count
