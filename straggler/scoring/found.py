"""What a track finds: cells that are over a bar, and the least that a bar is."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["CHANGE", "LEVEL", "Floors", "Found"]

Float32 = npt.NDArray[np.float32]
Cells = npt.NDArray[np.intp]

LEVEL, CHANGE = 0, 1


@attrs.frozen
class Floors:
    """The least that counts, as a logarithm.

    Args:
        level: Against the peers.
        change: Against the own past.
    """

    level: float
    change: float


@attrs.frozen
class Found:
    """Cells that are over a bar at one scale.

    Args:
        kind: :data:`LEVEL` or :data:`CHANGE`.
        place: Of the scale.
        cells: Flat indices.
        values: What was compared with the bar.
        bars: The bars.
    """

    kind: int
    place: int
    cells: Cells
    values: Float32
    bars: Float32
