"""Names of the rows of a report: sections, arrivals and the GPU."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from straggler.scoring.scorer import ARRIVAL_SALT, GPU_ROW

__all__ = ["RowNames"]


@attrs.frozen
class RowNames:
    """From a row's number to its name.

    Args:
        name_of: From a name's hash to the name; ``unnamed-...`` where it is not known yet.
    """

    name_of: Callable[[int], str]

    def __call__(self, number: int) -> str:
        """Return the name of a row; an arrival is called ``before <section>``."""
        if number == GPU_ROW:
            return "gpu"
        known = self.name_of(number)
        if known.startswith("unnamed-"):
            arrival = self.name_of(number ^ ARRIVAL_SALT)
            if not arrival.startswith("unnamed-"):
                return f"before {arrival}"
        return known
