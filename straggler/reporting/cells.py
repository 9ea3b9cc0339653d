"""Cells of the pictures: one byte each, which says how slow, and whether that was named or is missing.

A cell of 0 means that nobody answered, 1 that some of its ranks did not. The others hold a slowdown in whole per cent
from -25 to +101, the ends included in what is beyond: 2 to 128 where no verdict names the rank, 129 to 255 where one
does. Where several cells share a place, the most important one is shown, never a mean: named before slow before missing
before fast before neutral. One slow rank among 10,000 stays visible.

What is within the neutral range and not named has one colour. A scale that begins at 0 makes the noise of a healthy job
as colourful as a fault.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["LEAST_NEUTRAL", "MISSING", "SOME_MISSING", "Scale", "codes", "is_named", "neutral_range", "per_cent"]

Bytes = npt.NDArray[np.uint8]

MISSING, SOME_MISSING = 0, 1
_LEVELS, _LOWEST, _FIRST = 127, -25, 2
LEAST_NEUTRAL = 7
"""Per cent. No verdict says SLOW below that, see ``RobustSettings.ratio_floor``."""
_MOST_NEUTRAL = 25
_SIGMAS = 4.5
_FULL = 40
"""Per cent over the neutral range at which a colour is full."""

_LIGHT = {"neutral": "eef1f4", "missing": "a9adb3", "some": "d3d6da"}
_LIGHT |= {"slow": "f6d9a0 d07a00", "named": "ef8a7a 8d0b22", "fast": "bcd6f2 1a4f94"}
_DARK = {"neutral": "262b31", "missing": "6f757c", "some": "464b52"}
_DARK |= {"slow": "5c4a22 f0a830", "named": "c0392f ff9d8c", "fast": "24405e 6cb4ff"}


def codes(slowdown: npt.NDArray[np.float64], named: npt.NDArray[np.bool_]) -> Bytes:
    """Return the cells of ranks.

    Args:
        slowdown: Excess over the peers, 0.1 for 10 %; NaN unknown.
        named: Who has the verdict SLOW.
    """
    unknown = np.isnan(slowdown)
    level = np.clip(np.round(100.0 * np.where(unknown, 0.0, slowdown)) - _LOWEST, 0, _LEVELS - 1)
    cells = (level + _FIRST + np.where(named, _LEVELS, 0)).astype(np.uint8)
    # A rank keeps its verdict while it does not answer, but no time of it is known.
    cells[unknown] = MISSING
    return cells


def per_cent(code: int) -> int | None:
    """Return the slowdown of a cell in per cent, None where it is missing."""
    return None if code < _FIRST else (code - _FIRST) % _LEVELS + _LOWEST


def is_named(code: int) -> bool:
    """Return whether a verdict names the rank of a cell."""
    return code >= _FIRST + _LEVELS


def neutral_range(histogram: npt.NDArray[np.int64]) -> int:
    """Return within how many per cent of its peers a rank is drawn as neutral, by what the fleet itself shows.

    Args:
        histogram: Count of cells that nobody named, by the distance to the peers in per mille.
    """
    total = int(histogram.sum())
    middle = int(np.searchsorted(np.cumsum(histogram), total / 2)) if total else 0
    return int(min(max(np.ceil(_SIGMAS * 1.4826 * middle / 10.0), LEAST_NEUTRAL), _MOST_NEUTRAL))


@attrs.frozen
class Scale:
    """What is important, and which colour it has.

    Args:
        neutral: Per cent, see :func:`neutral_range`.
    """

    neutral: int

    def importance(self) -> Bytes:
        """Return the place of each code in the order of importance, the most important last."""

        def key(code: int) -> tuple[int, int]:
            share = per_cent(code)
            if share is None:
                return (3, 0) if code == MISSING else (2, 0)
            if is_named(code):
                return 5, share
            if share > self.neutral:
                return 4, share
            return (1, -share) if share < -self.neutral else (0, share)

        order = np.zeros(256, dtype=np.uint8)
        order[sorted(range(256), key=key)] = np.arange(256, dtype=np.uint8)
        return order

    def over(self, cells: Bytes, starts: npt.NDArray[np.int64], axis: int, *, ranks: bool = False) -> Bytes:
        """Return the most important cell of each run of cells.

        Args:
            cells: Any shape.
            starts: Where each run begins along ``axis``; it ends where the next one begins.
            axis: Along which.
            ranks: The cells of a run are ranks: where only some are missing, it is not missing as a whole.
        """
        order = self.importance()
        code_of = np.argsort(order).astype(np.uint8)
        found = code_of[np.maximum.reduceat(order[cells], starts, axis=axis)]
        if ranks:
            answered = np.logical_or.reduceat(cells != MISSING, starts, axis=axis)
            found[(found == MISSING) & answered] = SOME_MISSING
        return np.asarray(found)

    def palette(self, *, dark: bool = False) -> Bytes:
        """Return the colour of each code, shape ``(256, 3)``."""
        theme = _DARK if dark else _LIGHT
        return np.array([self._colour(code, theme) for code in range(256)], dtype=np.uint8)

    def _colour(self, code: int, theme: dict[str, str]) -> list[int]:
        share = per_cent(code)
        if share is None:
            return _rgb(theme["missing" if code == MISSING else "some"])
        if not is_named(code) and abs(share) <= self.neutral:
            return _rgb(theme["neutral"])
        kind = "named" if is_named(code) else "slow" if share > 0 else "fast"
        low, high = (_rgb(colour) for colour in theme[kind].split())
        beyond = abs(share) - self.neutral
        part = min(max(beyond / (_FULL if share > 0 else -_LOWEST), 0.0), 1.0)
        return [round(a + (b - a) * part) for a, b in zip(low, high, strict=True)]


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour))
