"""What identifies a line of a log of reports, and what its fields are.

With the standard library alone, for whoever only reads the newest one.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FORMAT", "VERSION", "check_fields", "check_record"]

FORMAT = "straggler-report"
VERSION = 1

_MOST_PER_MILLE = 10**6
_LATEST = 253402300799.0
"""The last second of the year 9999, in seconds since 1970."""
_NUMBER_BITS = 53


def check_record(record: object) -> dict[str, Any]:
    """Return the JSON value of a line where it is a report of a known version.

    Raises:
        ValueError: It is none; the message goes on after the name of the line.
    """
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"is not a {FORMAT}")
    if record.get("version") != VERSION:
        raise ValueError(f"has version {record.get('version')!r}; this reads {VERSION}")
    return record


def check_fields(value: object) -> dict[str, Any]:
    """Return the same where all fields are what they have to be.

    Raises:
        ValueError: It is no report, or a field of it is damaged; the message goes on after the name of the line.
    """
    record = check_record(value)
    for name, is_sound in _FIELDS.items():
        if name not in record or not is_sound(record[name]):
            told = reprlib.repr(record[name]) if name in record else "missing"
            raise ValueError(f"is damaged: its {name!r} is {told}")
    if sum(count for _, count in record["nodes"]) > len(record["ranks"]):
        raise ValueError(f"is damaged: its 'nodes' have more ranks than the {len(record['ranks'])} of the report")
    for verdict in record["verdicts"]:
        if verdict["rank"] >= len(record["ranks"]):
            raise ValueError(f"is damaged: a verdict is on rank {verdict['rank']} of {len(record['ranks'])}")
    if not _is_waited(record.get("waited")):
        raise ValueError(f"is damaged: its 'waited' is {reprlib.repr(record['waited'])}")
    return record


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << _NUMBER_BITS


def _is_time(value: object) -> bool:
    return _is_number(value) and 0.0 <= value <= _LATEST  # type: ignore[operator]


def _are_ranks(value: object) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int, type(None)}:
        return False
    known = [each for each in value if each is not None]
    return not known or (min(known) >= 0 and max(known) <= _MOST_PER_MILLE)


def _are_nodes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and _is_count(each[1]) for each in value
    )


def _are_sections(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, dict)
        and all(_is_count(each.get(key)) for key in ("median", "p90", "worst", "worst_rank", "slow"))
        for each in value.values()
    )


def _are_verdicts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and _is_verdict(each) for each in value)


def _is_verdict(verdict: Mapping[str, Any]) -> bool:
    texts = (verdict.get(key) for key in ("node", "state"))
    may_be_none = (verdict.get(key, 0) for key in ("section", "because"))
    slowdown, since = verdict.get("slowdown", ""), verdict.get("since_report", "")
    return (
        _is_count(verdict.get("rank"))
        and all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in may_be_none)
        and (slowdown is None or _is_number(slowdown))
        and type(since) is int
        and abs(since) < 1 << _NUMBER_BITS
    )


def _is_waited(value: object) -> bool:
    return value is None or (isinstance(value, dict) and all(_is_number(value.get(key)) for key in ("median", "most")))


_FIELDS: Mapping[str, Callable[[object], bool]] = {
    "sequence": _is_count,
    "time": _is_time,
    "ranks": _are_ranks,
    "nodes": _are_nodes,
    "sections": _are_sections,
    "verdicts": _are_verdicts,
}
