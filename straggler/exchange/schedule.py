"""Report schedule: all ranks at the same iteration, without a collective and without asking at every step.

Rank 0's clock decides. When its interval has elapsed it announces an iteration two ahead; the others ask for that
announcement only once nine tenths of their own interval have passed, and not more often than a hundredth of it.
In a synchronous job no rank is more than one iteration ahead, so all ranks reach the announced iteration. A rank that
reads the announcement too late reports at once; its window is a few steps longer than the others', which changes
its medians little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ReportSchedule"]

_AHEAD = 2
_ASK_FROM = 0.9


class ReportSchedule:
    """Counts iterations and says at which one to report.

    Args:
        interval_seconds: Time between reports.
        decides: Whether this rank is the one whose clock counts.
        announce: Tell the others the iteration; called by the deciding rank only.
        heard: The announced iteration, None while there is none; called by the others only.
        alone: There are no others: report at once.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        interval_seconds: float,
        *,
        decides: bool,
        announce: Callable[[int], None],
        heard: Callable[[], int | None],
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._decides = decides
        self._announce = announce
        self._heard = heard
        self._alone = alone
        self._clock = clock
        self._iteration = 0
        self._at: int | None = None
        self._last = clock()
        self._ask_at = self._last + _ASK_FROM * interval_seconds

    def tick(self) -> bool:
        """Count an iteration and return whether to report now. Every rank calls it once per iteration."""
        self._iteration += 1
        if self._at is None:
            self._look()
        return self._at is not None and self._iteration >= self._at

    def _look(self) -> None:
        now = self._clock()
        if self._decides:
            if now - self._last >= self.interval_seconds:
                self._at = self._iteration if self._alone else self._iteration + _AHEAD
                self._announce(self._at)
        elif now >= self._ask_at:
            self._at = self._heard()
            self._ask_at = now + self.interval_seconds / 100.0

    def reported(self) -> None:
        """Begin the next interval; a report was made, for whatever reason."""
        self._at = None
        self._last = self._clock()
        self._ask_at = self._last + _ASK_FROM * self.interval_seconds
