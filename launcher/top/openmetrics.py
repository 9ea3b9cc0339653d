"""Read samples from a text in the format of OpenMetrics, or of Prometheus before it. Pure; the standard library only.

Only what a node's metrics hold is understood; a line that is something else is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Sample", "samples"]

_SAMPLE = re.compile(r'([A-Za-z_:][A-Za-z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t].*)?')
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_MOST_LINES = 1_000_000


class Sample(NamedTuple):
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float
    """Finite."""


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples of a text whose values are finite."""
    for line in text.split("\n", _MOST_LINES):
        if line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = _labels(match[2] or "")
        if labels is not None and math.isfinite(value):
            yield Sample(match[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    """Return the labels within braces; None where that is no list of labels."""
    found, at = {}, 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        found[match[1]] = _ESCAPED.sub(lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), match[2])
        at = match.end()
    return found
