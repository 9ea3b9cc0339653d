"""Whether a job that is restarted again and again gets anywhere.

Progress is what the job itself reports: the iterations on the event bus and those of its checkpoints (from the ranks'
cells), or the integer in ``checkpoint_iteration_file``. A job that reports neither is never judged.

Iterations should be counted through the whole run, but nothing enforces that. A job that counts within each epoch, or
from 0 in each generation, must not be given up while it gets on. So iterations are believed only as far as something
else supports them (:class:`Standstill`). An error in this direction costs restarts, which ``--max-restarts`` limits;
one in the other direction costs the job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.plain_files import only_plain

__all__ = ["NOTHING_REACHED", "ProgressRule", "Reached", "Standstill", "may_have_failed_before", "reached_by"]

logger = logging.getLogger(__name__)

_LARGEST_BYTES = 100
_IMPLAUSIBLE = 1 << 53
"""A damaged cell must not pass for progress that no later generation can reach."""
_SAME_PLACE = 2
"""By how many iterations two ends at the same place may differ: a peer may be ahead, or the job have noticed later."""


class Reached(NamedTuple):
    """How far the ranks of one generation, or of one job, came; None for what none of them reported."""

    iteration: int | None = None
    resumed_from: int | None = None
    """The highest iteration of a checkpoint that was loaded."""
    saved: int | None = None
    """The highest iteration of a checkpoint that was saved."""
    went_back: bool = False
    """An iteration was no higher than the one before it, or lower than that of the checkpoint that was loaded: they do
    not count on through the run."""


NOTHING_REACHED = Reached()


def reached_by(views: Iterable[CellView]) -> Reached:
    """Return what the cells of some ranks say of how far these came."""
    known = list(views)
    return Reached(
        iteration=_highest(view.iteration for view in known),
        resumed_from=_highest(view.resumed_from for view in known),
        saved=_highest(view.saved for view in known),
        went_back=any(view.went_back > 0 or 0 <= view.iteration < view.resumed_from for view in known),
    )


def _highest(iterations: Iterable[int]) -> int | None:
    return max((each for each in iterations if 0 <= each < _IMPLAUSIBLE), default=None)


class Standstill:
    """Counts ends in a row, of generations or of jobs, that show no progress. Pure.

    An end shows progress when the best iteration has risen by ``least``, or when its checkpoint, saved or loaded, is
    newer by that than the one before it. Not than the best one: who has to load an older checkpoint gets on from there.

    An end shows the lack of progress when neither is so, and

    * no iteration was begun at all, or
    * a checkpoint was loaded, so that iterations are known to go on from there, and it ended about where the row began,
      or
    * it may have ended for the same reason as the one before it, at the iteration at which the row began.

    Otherwise, and once iterations have gone back or stood still within one generation, it shows neither, and ends the
    row.

    Ends at other iterations, all short of the next checkpoint, are what failures now and then look like. With a
    checkpoint each hour and a failure every two, on average, 39 % of the generations come to nothing (1 - exp(-1/2)),
    and 6 % of the failures are followed by three such.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._place: int | None = None
        """Where the end came that the next ones are compared with: not the one before, or the place could drift."""
        self._checkpoint_before: int | None = None
        self.count = 0
        self.furthest = NOTHING_REACHED

    @property
    def best(self) -> int | None:
        """The highest iteration so far; None when none is known."""
        return self.furthest.iteration

    def note(self, reached: Reached) -> bool:
        """Remember how far one came, whatever it ended with.

        Returns:
            Whether it has shown progress.
        """
        best, checkpoint = self.furthest, _later(reached.resumed_from, reached.saved)
        gained = self._is_gain(reached.iteration, best.iteration) or self._is_gain(checkpoint, self._checkpoint_before)
        self.furthest = Reached(
            iteration=_later(best.iteration, reached.iteration),
            resumed_from=_later(best.resumed_from, reached.resumed_from),
            saved=_later(best.saved, reached.saved),
            went_back=best.went_back or reached.went_back,
        )
        if checkpoint is not None:
            self._checkpoint_before = checkpoint
        return gained

    def add(self, reached: Reached, *, place: int | None = None, may_be_the_same: bool = True) -> None:
        """Count one that ended before training was complete.

        Args:
            reached: How far it came.
            place: The iteration at which it ended; the one that it reached when None.
            may_be_the_same: Whether it may have ended for the same reason as the one before it, if at the same place.
        """
        place = reached.iteration if place is None else place
        if self.note(reached) or not self._shows_none(reached, place, may_be_the_same):
            self.count, self._place = 0, place
        else:
            self.count += 1

    def _shows_none(self, reached: Reached, place: int | None, may_be_the_same: bool) -> bool:
        if place is None:
            return True
        if self.furthest.went_back or self._place is None:
            return False
        apart = abs(place - self._place)
        if reached.resumed_from:  # from 0 would say nothing
            return apart <= max(_SAME_PLACE, self._least - 1)
        return apart < self._least and may_be_the_same

    def _is_gain(self, reached: int | None, before: int | None) -> bool:
        return reached is not None and reached - (-1 if before is None else before) >= self._least


def may_have_failed_before(reached: Reached, *, in_a_step: bool) -> bool:
    """Return whether a failure may be one that comes again and again, if at the same iteration.

    Not where it came between two steps: a job that counts within each epoch, and fails at the end of each, has saved
    one more each time. Nor where a checkpoint was saved first, as by a job that counts from 0 in each process.
    """
    return in_a_step and reached.saved is None


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


class ProgressRule:
    """Says when a job is to be given up, since ``max_no_progress_cycles`` generations in a row showed no progress."""

    def __init__(self, config: FaultToleranceConfig) -> None:
        self._limit = config.max_no_progress_cycles
        self._least = config.min_progress_iterations
        self._file = config.checkpoint_iteration_file
        self._row = Standstill(self._least)
        self._has_reported = False
        """Ranks of the job have reported iterations."""
        self._warned = False
        self._has_told = False
        self._row.note(self._in_file())

    @property
    def reads_a_file(self) -> bool:
        """Return whether a call may have to wait for a disk."""
        return self._file is not None

    @property
    def furthest(self) -> Reached:
        """How far the job came in the generations that have ended."""
        return self._row.furthest

    def note(self, reported: Reached) -> None:
        """Remember how far a generation came that ended in good order."""
        self._has_reported |= reported.iteration is not None
        self._row.note(self._believed(reported))

    def generation_ended(self, reported: Reached, *, in_a_step: bool) -> str | None:
        """Judge a generation that ended in a failure.

        One in which no iteration was begun is not judged: the file system or a peer may be away for a while. A job that
        never reports any is, by its file.

        Args:
            reported: What its ranks reported.
            in_a_step: Whether it failed while a step was running.

        Returns:
            Why the job is given up, None while it may go on.
        """
        self._has_reported |= reported.iteration is not None
        reached, place = self._believed(reported), reported.iteration
        if reached.iteration is None or (place is None and self._has_reported):
            self._row.note(reached)
            return None
        may_be_the_same = may_have_failed_before(reached, in_a_step=in_a_step)
        self._row.add(reached, place=place, may_be_the_same=may_be_the_same)
        if not self._limit or self._row.count < self._limit:
            return None
        source = "the ranks report" if self._file is None else f"{self._file} holds"
        return (
            f"{self._row.count} generations in a row ended without {self._least} new iteration(s), about where the "
            f"one before them did; the best so far that {source} is {self._row.best}. If the job does get on, start it "
            "with --ft-max-no-progress-cycles 0"
        )

    def doubt(self) -> str | None:
        """Return why the job is no longer judged, said once; None while it is."""
        if not self._limit or self._has_told or not self._row.furthest.went_back:
            return None
        self._has_told = True
        return (
            "  note    the iterations that the ranks report have gone back or stood still within a generation, or "
            "begun below the checkpoint that was loaded, as when they are counted within each epoch. So they do not "
            "tell whether the job gets on, and only --max-restarts limits its restarts. Count each step through the "
            "whole run, or name a --ft-checkpoint-iteration-file"
        )

    def _believed(self, reported: Reached) -> Reached:
        return reported if self._file is None else self._in_file()

    def _in_file(self) -> Reached:
        number = self._checkpointed()
        return Reached(iteration=number, resumed_from=number)

    def _checkpointed(self) -> int | None:
        if self._file is None or not os.path.exists(self._file):
            return None
        try:
            with open(self._file, "rb", opener=only_plain) as file:
                raw = file.read(_LARGEST_BYTES + 1)
            if len(raw) > _LARGEST_BYTES:  # a checkpoint, perhaps; read whole, it would fill the launcher's memory
                raise ValueError(f"it has more than {_LARGEST_BYTES} bytes")
            return int(raw.decode("utf-8"))
        except (OSError, ValueError) as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "checkpoint_iteration_file %s: %s; expected one integer. "
                    "As long as it has none, progress is not judged",
                    self._file,
                    error,
                )
            return None
