"""Report schedule: all ranks at the same iteration, without a collective and without asking in a step.

Rank 0 plans each report as soon as it has closed the window of the one before: from the rate of its steps it computes
the iteration at which the interval will be over. The others read that plan on a thread of their own, most of an
interval ahead, and close their window when they have reached that iteration. No step waits for a clock, a store or
another rank, whatever the length of a step is.

The plan also says how long to wait at most. A rank that is behind the others (in a job whose ranks do not wait for
each other) closes its window when that time is over, so that it is heard, and so does every rank where the steps become
slower. A rank that learns of a plan too late closes its window at once. Such windows are a few steps longer or shorter
than the others', which changes their medians little.

An alternative was a fixed number of steps per interval, agreed once by a collective, as in nvidia-resiliency-ext: the
report then comes at the wrong time as soon as steps become longer, and the agreement itself stops the ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from straggler.exchange.board import Plan

__all__ = ["ReportSchedule"]

_AHEAD = 2
"""Iterations: in a synchronous job no rank is more than one ahead of rank 0."""
_POLLS_AHEAD = 3
_FIRST_LOOK = 0.25
"""Share of the first interval after which the rate of the steps is known well enough to plan the first report."""
_LATEST = 1.5
"""Times the expected time, after which a window is closed at any iteration."""


class ReportSchedule:
    """Counts iterations and says where a window ends.

    Args:
        interval_seconds: Time between reports.
        decides: Whether this rank is the one whose clock counts.
        announce: Tell the others of a plan; called by the deciding rank only, on the thread that trains.
        heard_within: Seconds that others need to learn of a plan.
        least_steps: Iterations of a window at least, however long one takes.
        alone: There are no others: end a window as soon as the interval is over.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        interval_seconds: float,
        *,
        decides: bool,
        announce: Callable[[Plan], None],
        heard_within: float = 0.0,
        least_steps: int = 1,
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.iteration = 0
        self._decides = decides
        self._announce = announce
        self._ahead_seconds = _POLLS_AHEAD * heard_within
        self._ahead = max(_AHEAD, least_steps)
        self._alone = alone
        self._clock = clock
        self._next = 0
        self._plan: tuple[Plan, float] | None = None
        self._from = (0, clock())

    @property
    def wants_plan(self) -> bool:
        """Return whether this rank waits for the plan of the next report."""
        return self._plan is None and not self._decides

    def learn(self, plan: Plan) -> None:
        """Take a plan of rank 0's; one that is older than the last report of this rank is passed over."""
        if plan.number >= self._next and self._plan is None:
            self._plan = (plan, self._clock() + plan.within_seconds)

    def tick(self) -> int | None:
        """Count an iteration.

        Returns:
            The number of the report whose window ends with it; None where none does.
        """
        self.iteration = iteration = self.iteration + 1
        if self._plan is not None:
            plan, latest = self._plan
            if iteration >= plan.iteration or self._clock() >= latest:
                return self._close(plan.number)
        elif self._decides:
            return self._look(iteration)
        return None

    def steps_in(self, seconds: float) -> int:
        """Return how many steps take so long, at the rate since the window began."""
        steps, began = self._from
        elapsed = self._clock() - began
        return math.ceil(seconds * (self.iteration - steps) / elapsed) if elapsed > 0.0 else 0

    def _look(self, iteration: int) -> int | None:
        """Plan the first report, or end the window of a rank that is alone."""
        elapsed = self._clock() - self._from[1]
        if self._alone:
            return self._close(self._next) if elapsed >= self.interval_seconds else None
        if iteration == 1 and elapsed < self.interval_seconds:
            self._from = (1, self._clock())  # the first step holds what a start takes: its time says nothing of a rate
        elif elapsed >= _FIRST_LOOK * self.interval_seconds or iteration == 1:
            self._make_plan((1.0 - _FIRST_LOOK) * self.interval_seconds)
        return None

    def _close(self, number: int) -> int:
        self._plan, self._next = None, number + 1
        if self._decides and not self._alone:
            self._make_plan(self.interval_seconds)
        self._from = (self.iteration, self._clock())
        return number

    def _make_plan(self, seconds: float) -> None:
        """Plan the next report for a time from now, at the rate of the steps since the last."""
        steps, began = self._from
        now = self._clock()
        step_seconds = (now - began) / max(self.iteration - steps, 1)
        seconds = max(seconds, self._ahead_seconds)
        ahead = max(self._ahead, math.ceil(seconds / step_seconds) if step_seconds > 0.0 else 0)
        within = _LATEST * max(seconds, ahead * step_seconds) + self._ahead_seconds
        plan = Plan(self._next, self.iteration + ahead, within)
        self._plan = (plan, now + within)
        self._announce(plan)
