"""The ranks of the newest generation of one launcher, read from the cells in its run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from typing import NamedTuple

from launcher.live.cell_reader import CellReader
from launcher.live.rank_look import RankLook, nearest_deadline
from launcher.live.rates import Rate
from launcher.processes.usage import ProcessUsage, process_usage
from resilience_core.protocol.cell_layout import WATCHED
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.figures_read import RankFigures, Steps
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import own_pid_namespace

__all__ = ["CellsLook", "RankCells"]

_LARGEST_RANK = 1 << 31
_STEP = "step"
_CELL_NAME = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


class CellsLook(NamedTuple):
    """What one look at a run folder has found."""

    seen_ns: int
    """When, ``CLOCK_MONOTONIC``."""
    generation: int | None
    """The newest whose cells were found; None before the first, and after the last."""
    ranks: tuple[RankLook, ...]
    """By local rank."""
    problem: str | None
    """Why the folder cannot be read; None when it can."""


class RankCells:
    """Follows the cells from generation to generation.

    Args:
        run_folder: The launcher's (``began`` in its event log).
    """

    def __init__(self, run_folder: str) -> None:
        self._run_folder = run_folder
        self._names: list[str] = []
        self._generation: int | None = None
        self._over = -1
        self._ranks: dict[int, _Rank] = {}
        self._namespace = own_pid_namespace()

    @property
    def run_folder(self) -> str:
        """Where cells are looked for."""
        return self._run_folder

    def move(self, run_folder: str) -> None:
        """Look for the cells of later generations in another folder; those of this one are still read."""
        self._run_folder = run_folder

    def end(self, generation: int) -> None:
        """Forget a generation that is over, and all before it."""
        self._over = max(self._over, generation)

    def look(self, generation: int | None = None, expected: Collection[int] = ()) -> CellsLook:
        """Read all cells of the newest generation; never raises.

        Args:
            generation: One that is known to run; None where that is not known.
            expected: Its local ranks, for those whose cell is gone.
        """
        problem = self._list_cells()
        if self._generation is not None and self._generation <= self._over:
            self.close()
        if self._generation is None and generation is not None and generation > self._over:
            self._generation = generation
        if self._generation is not None and self._generation == generation:
            for local_rank in expected:
                self._add(local_rank)
        now_ns = time.monotonic_ns()
        ranks = tuple(self._ranks[local_rank].look(now_ns, self._namespace) for local_rank in sorted(self._ranks))
        return CellsLook(now_ns, self._generation, ranks, problem)

    def figures(self, local_rank: int) -> RankFigures | None:
        """Return the figures of a rank that the last look has found; None where it has none.

        Raises:
            ValueError: They cannot be read.
        """
        return self._ranks[local_rank].reader.figures()

    def close(self) -> None:
        """Close all cells; a later look opens anew what it finds."""
        for rank in self._ranks.values():
            rank.reader.close()
        self._ranks, self._generation, self._names = {}, None, []

    def _list_cells(self) -> str | None:
        """Find the newest generation.

        Returns:
            Why the folder cannot be read; None when it can.
        """
        folder = os.path.join(self._run_folder, "cells")
        try:
            names = os.listdir(folder)
        except OSError as error:
            return f"{folder}: {error.strerror}"
        if names == self._names:
            return None
        self._names = names
        found = [(int(match[1]), int(match[2])) for name in names if (match := _CELL_NAME.fullmatch(name))]
        newest = max((generation for generation, _ in found if generation > self._over), default=None)
        if newest is None:
            return None
        if self._generation is None or newest > self._generation:
            self.close()
            self._names, self._generation = names, newest
        for generation, local_rank in found:
            if generation == self._generation:
                self._add(local_rank)
        return None

    def _add(self, local_rank: int) -> None:
        if local_rank not in self._ranks and self._generation is not None:
            path = os.path.join(self._run_folder, "cells", f"{self._generation}-{local_rank}")
            self._ranks[local_rank] = _Rank(self._generation, local_rank, CellReader(path))


class _Rank:
    """One rank of one generation, and what is remembered of it between looks."""

    def __init__(self, generation: int, local_rank: int, reader: CellReader) -> None:
        self.reader = reader
        self._generation = generation
        self._local_rank = local_rank
        self._rank: int | None = None
        self._rate = Rate()
        self._noted_ns = 0

    def look(self, now_ns: int, namespace: int) -> RankLook:
        reading = self.reader.look(now_ns)
        view = reading.view
        process, has_ended, rate = None, False, None
        if view is not None:
            self._rank = view.rank if 0 <= view.rank <= _LARGEST_RANK else None
            process, has_ended = _process_of(view, namespace)
            steps = self.reader.steps()
            ended_ns = _ended_ns(view)
            # When it was seen may be a whole interval after that.
            self._noted_ns = min(max(self._noted_ns, ended_ns or now_ns), now_ns)
            last = view.iteration if steps is None else steps.first_iteration + steps.passed - 1
            self._rate.note(self._noted_ns, last)
            if view.state == WATCHED:
                rate = self._rate.per_second(now_ns) or _average(steps, ended_ns, now_ns)
        return RankLook(
            local_rank=self._local_rank,
            generation=self._generation,
            seen_ns=now_ns,
            rank=self._rank,
            cell=reading.cell,
            view=view,
            problem=reading.problem,
            process=process,
            has_ended=has_ended,
            deadline=None if view is None else nearest_deadline(view),
            last_sign_ns=None if view is None else view.last_sign_ns or None,
            steps_per_second=rate,
        )


def _ended_ns(view: CellView) -> int | None:
    """Return when a rank's last step had ended, as near as its cell tells: when the next one has begun, if it has."""
    opened = max((section.opened_ns for section in view.sections if section.name == _STEP), default=0)
    return opened or view.last_sign_ns or None


def _average(steps: Steps | None, ended_ns: int | None, now_ns: int) -> float | None:
    """Return steps per second since the first one, for a first look; None where fewer than two have ended.

    As for :class:`launcher.live.rates.Rate`, one in which no step has ended for longer than a step takes is slower.

    Args:
        steps: What the figures tell.
        ended_ns: When the last one had ended.
        now_ns: When the look is taken.
    """
    if steps is None or ended_ns is None or ended_ns <= steps.first_step_ns or steps.passed < 2:
        return None
    done = steps.passed
    step_ns = (ended_ns - steps.first_step_ns) / done
    return done / (max(ended_ns, now_ns - step_ns) - steps.first_step_ns) * NS_PER_SECOND


def _process_of(view: CellView, namespace: int) -> tuple[ProcessUsage | None, bool]:
    """Return a rank's process, and whether it is known to have ended. A pid of another namespace says nothing here."""
    if view.pid == 0 or view.pid_namespace not in (0, namespace):
        return None, False
    process = process_usage(view.pid)
    if process is None or process.start_time != view.start_time or process.has_ended:
        return None, True
    return process, False
