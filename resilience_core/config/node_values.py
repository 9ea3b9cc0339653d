"""Converters of the settings for nodes; as those in :mod:`resilience_core.config.converters`."""

from __future__ import annotations

import re

from resilience_core.config.converters import duration, one_of

__all__ = [
    "command",
    "health_checks",
    "health_interval",
    "health_timeout",
    "membership",
    "newcomers",
    "node_lease",
    "optional_text",
]

_NOTHING = frozenset({"", "null", "none", "~"})
_CHECK = re.compile(r"[a-z0-9][a-z0-9_.-]*", re.IGNORECASE)


def membership(value: str | None) -> str | None:
    """Read how nodes hold together: ``elastic``, ``fixed`` or ``torch``; ``null`` is what the launcher chooses."""
    if _is_nothing(value):
        return None
    return one_of(value, ("elastic", "fixed", "torch"))


def newcomers(value: str) -> str:
    """Read when newcomers take part: ``restart`` or ``checkpoint``."""
    return one_of(value, ("restart", "checkpoint"))


def node_lease(value: float | str) -> float:
    """Read a duration in seconds, from 0.5 to 3600."""
    return duration(value, 0.5, 3600)


def optional_text(value: str | None) -> str | None:
    """Read text as it is; ``null`` and nothing are none."""
    if _is_nothing(value):
        return None
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value.strip()


def command(value: str | None) -> str | None:
    """Read a command for the shell; ``null`` and nothing are none."""
    text = optional_text(value)
    if text is not None and "\0" in text:
        raise ValueError("a command holds no null character")
    return text


def health_checks(value: str | list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Read names of checks, each with an argument after a colon if it takes one, as a list or text with commas between.

    Returns:
        None for the default ones, nothing for ``none``. Whether there is a check of that name is not known here.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING - {"none"}):
        return None
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError("give names with commas between, for example paths,shm,nic:eth0")
    stripped = tuple(dict.fromkeys(item.strip() for item in items))
    if stripped == ("none",):
        return ()
    for item in stripped:
        name, colon, argument = item.partition(":")
        if not _CHECK.fullmatch(name):
            raise ValueError(f"{item!r} does not begin with a check's name, as in paths,shm,nic:eth0")
        if name == "none":
            raise ValueError("'none' stands alone: remove it, or the others")
        if (colon and not argument) or "\0" in argument:
            raise ValueError(f"{item!r} lacks what follows the colon, as in nic:eth0; leave the colon out for none")
    return stripped


def health_interval(value: float | str | None) -> float | None:
    """Read seconds between two looks while ranks run, from 1 to 86400; ``null`` is never."""
    if _is_nothing(value):
        return None
    assert value is not None
    try:
        return duration(value, 1, 86400)
    except ValueError as error:
        raise ValueError(f"{error}; write null to check before joining only") from None


def health_timeout(value: float | str) -> float:
    """Read the longest time that a check or a call may take, from 0.1 to 3600 seconds."""
    return duration(value, 0.1, 3600)


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)
