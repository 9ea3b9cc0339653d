"""A report for programs."""

from __future__ import annotations

import json
import math
from typing import Any

from launcher.reports.model import Report

__all__ = ["VERSION", "as_json"]

VERSION = 1
"""To be raised when a field changes its meaning or goes away; new ones may come at any time."""


def as_json(report: Report) -> str:
    """Return a report as JSON: the fields of :mod:`launcher.reports.model` by their names, and ``version``."""
    return json.dumps({"version": VERSION, **_plain(report)}, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
