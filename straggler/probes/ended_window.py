"""EndedWindow: a window that has ended, before it is summarised."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from straggler.pacing import pace
from straggler.probes.probe import Collected

__all__ = ["EndedWindow"]


@attrs.frozen
class EndedWindow:
    """A window that has ended, before it is summarised.

    Args:
        parts: Each hands over what one probe has measured.
        elapsed: Seconds since the window before ended.
    """

    parts: list[Callable[[], Collected]]
    elapsed: float

    def summarise(self) -> Collected:
        """Return what all probes have, together; called once."""
        everything = Collected()
        for hand_over in self.parts:
            part = hand_over()
            pace()
            everything.rows += part.rows
            everything.dropped += part.dropped
            everything.notes += part.notes
            if part.device is not None:
                known = everything.device if everything.device is not None else part.device
                everything.device = np.where(np.isnan(known), part.device, known)
        return everything
