"""Did you mean: the nearest of the names that exist."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["closest", "nearest", "suggestion"]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Say which known name a misspelt one is nearest to: ``; did you mean 'x'?``, or nothing."""
    close = closest(name, known)
    return f"; did you mean '{close}'?" if close is not None else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """As :func:`suggestion`; where nothing is near, all known names."""
    names = sorted(set(known))
    return suggestion(name, names) or f"; known are: {', '.join(names)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of some names that is most like another; None where none is."""
    import difflib  # on the way to a message only, so that a rank need not pay for it

    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1)), None)
