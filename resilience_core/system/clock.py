"""Units of the clocks: every instant and every limit inside this project is in whole nanoseconds."""

from __future__ import annotations

__all__ = ["NS_PER_SECOND"]

NS_PER_SECOND = 1_000_000_000
