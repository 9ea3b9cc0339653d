"""Errors of the straggler detector. Settings out of range are ``resilience_core.ConfigError``."""

from __future__ import annotations

from resilience_core.errors import ResilienceError, SectionError

__all__ = ["DetectorError", "ReportLogError", "SectionNameError", "WireError"]


class DetectorError(ResilienceError, RuntimeError):
    """The detector was used before ``initialize`` or initialised twice."""


class SectionNameError(SectionError, ValueError):
    """A section's name is used at two places, so that two different durations would be mixed."""


class WireError(ResilienceError, ValueError):
    """What another rank sent is not a window of timings, or an answer to one, that this version understands."""


class ReportLogError(ResilienceError, ValueError):
    """A file of reports cannot be read, written or drawn: the message names the file, and the line or what to do."""
