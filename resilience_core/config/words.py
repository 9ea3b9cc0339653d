"""Settings whose value is one of a few words; as :mod:`resilience_core.config.converters`."""

from __future__ import annotations

from resilience_core.config.converters import one_of

__all__ = ["log_format"]


def log_format(value: str) -> str:
    """Read how messages are written: ``text`` or ``json``."""
    return one_of(value, ("text", "json"))
