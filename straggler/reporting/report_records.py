"""What identifies a line of a log of reports; the standard library alone, for whoever only reads the newest one."""

from __future__ import annotations

from typing import Any

__all__ = ["FORMAT", "VERSION", "check_record"]

FORMAT = "straggler-report"
VERSION = 1


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
