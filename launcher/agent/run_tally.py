"""Count the runs of ft_autoresume that failed, and say when it is enough. Pure."""

from __future__ import annotations

from typing import NamedTuple

from launcher.agent.progress import Reached, Standstill, may_have_failed_before
from resilience_core.environment import FINISHED_FLAG_VARIABLE

__all__ = ["RunOutcome", "Tally"]


class RunOutcome(NamedTuple):
    """How one run of the launcher ended."""

    exit_code: int
    seconds: float
    reached: Reached
    """How far it came, as far as its ranks have reported it."""
    is_final: bool
    """A rank has asked for the end of the workload, so that no other run should follow."""
    failed_in_a_step: bool = False
    """The failure that ended it came while a step was running."""
    stopped: str | None = None
    """Which rank has stopped the training on purpose, and why; None where none has."""


class Tally:
    """Counts what has failed, and says when it is enough. Pure.

    Args:
        max_failures: Failed runs in a row.
        max_without_progress: Runs in a row, failed or not, that showed no progress; see :class:`Standstill`.
    """

    def __init__(self, max_failures: int, max_without_progress: int) -> None:
        self._max_failures = max_failures
        self._max_without_progress = max_without_progress
        self.runs = 0
        self.failures = 0
        self.failures_in_a_row = 0
        self._standstill = Standstill()

    @property
    def best(self) -> int | None:
        """The highest iteration that any run has reported; None when none did."""
        return self._standstill.best

    def add(self, outcome: RunOutcome) -> str | None:
        """Count one run that did not complete the training.

        Returns:
            Why there should be no other, or None.
        """
        self.runs += 1
        failed = outcome.exit_code != 0
        self.failures += failed
        self.failures_in_a_row = self.failures_in_a_row + 1 if failed else 0
        reached = outcome.reached
        if failed and reached.iteration is None:  # what it needs may be away for a while: max_failures limits that
            self._standstill.note(reached)
        else:  # one that ends with 0 at the same iteration again has only not said that training is complete
            comes_again = not failed or may_have_failed_before(reached, in_a_step=outcome.failed_in_a_step)
            self._standstill.add(reached, may_be_the_same=comes_again)
        without_progress = self._standstill.count
        if outcome.stopped is not None:
            return outcome.stopped
        if outcome.is_final:
            return "a rank has asked for the end of the workload"
        if self._max_failures and self.failures_in_a_row >= self._max_failures:
            return f"{self.failures_in_a_row} runs in a row have failed (--max-failures)"
        if self._max_without_progress and without_progress >= self._max_without_progress:
            at = "none reported an iteration" if self.best is None else f"the last iteration is still {self.best}"
            hint = "" if failed else f"; if training is complete, why was {FINISHED_FLAG_VARIABLE} not made?"
            return f"{without_progress} runs in a row made no progress, {at} (--max-without-progress){hint}"
        return None
