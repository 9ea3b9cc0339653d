"""Past: what a rank is compared with when it is compared with itself, row by row."""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["HasPast", "Past"]


@attrs.frozen(eq=False)
class Past:
    """What the ranks took before.

    Args:
        names: Name hash of each row, uint64.
        seconds: What each rank took, float32, shape ``(rows, ranks)``; NaN unknown.
        learnt: How many windows that rests on, float32, same shape.
    """

    names: npt.NDArray[np.uint64]
    seconds: npt.NDArray[np.float32]
    learnt: npt.NDArray[np.float32]


class HasPast(Protocol):
    """Protocol of a scorer that compares ranks with their own past."""

    def past(self) -> dict[str, Past]:
        """Return what is known, by kind of row."""
        ...

    def take_past(self, past: dict[str, Past]) -> None:
        """Begin with this instead of nothing; called before the first window."""
