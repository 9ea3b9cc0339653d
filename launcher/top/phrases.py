"""Durations, sizes and names as short texts for a table. Pure."""

from __future__ import annotations

__all__ = ["duration", "one_line", "rate", "size"]

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def duration(seconds: float) -> str:
    """Return a duration in at most six characters, in the unit that suits it; two digits tell enough."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{min(seconds / _DAY, 9999):.0f} d"


def size(count: int) -> str:
    """Return a number of bytes in at most eight characters."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit != "GiB" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def rate(per_second: float) -> str:
    """Return a rate in at most six characters."""
    if per_second >= 99.5:
        return f"{min(per_second, 999999):.0f}"
    return f"{per_second:.1f}" if per_second >= 0.995 else f"{per_second:.3f}"


def one_line(text: str) -> str:
    """Return a text that came from a rank or a file as one line that controls no terminal."""
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")
