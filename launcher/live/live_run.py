"""Follow one run on this machine: its launchers, their ranks, and how it ends."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from launcher.live.launcher_log import LauncherLog
from launcher.live.rank_cells import RankCells
from launcher.live.rank_look import RankLook
from launcher.live.runs import ELSEWHERE, ENDED, GOES_ON, LOST, RUNS, state_of
from launcher.processes.proc import boot_id
from launcher.records.event_files import event_files
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["LiveRun", "NodeLook", "RunLook"]

_DOUBT_NS = 5 * NS_PER_SECOND
"""How long a run folder may be gone before its launcher is taken for lost; the launcher makes one anew in a second."""


class NodeLook(NamedTuple):
    """One launcher and its ranks at one moment."""

    log: LauncherLog
    """What it has written; it is brought up to date by the next look."""
    state: str
    """One of the constants of :mod:`launcher.live.runs`."""
    generation: int | None
    """The one whose ranks are shown; None while none runs."""
    ranks: tuple[RankLook, ...]
    problem: str | None
    """Why its cells cannot be read."""


class RunLook(NamedTuple):
    """A run at one moment, as far as this machine knows."""

    seen_ns: int
    """``CLOCK_MONOTONIC``."""
    path: str
    """Its log folder."""
    nodes: tuple[NodeLook, ...]
    """The launchers of this machine that run it; when none does any more, those that ended last."""

    @property
    def name(self) -> str:
        """The run's name."""
        return os.path.basename(self.path)

    @property
    def ranks(self) -> tuple[RankLook, ...]:
        """All ranks of this machine."""
        return tuple(rank for node in self.nodes for rank in node.ranks)

    @property
    def goes_on(self) -> bool:
        """Whether a launcher of this machine runs it, or may be starting it."""
        return any(node.state in RUNS for node in self.nodes)


class LiveRun:
    """A run whose log folder is known.

    Args:
        path: The log folder.

    Raises:
        OSError: The folder cannot be read.
        UnknownVersionError: Another release of torch-resilience has written it.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # not through `latest`, which leads elsewhere when another run begins
        self._boot = boot_id() or os.uname().nodename
        self._nodes: dict[str, _Node] = {}
        self._seen_folder_ns = -1
        self._shown: tuple[str, ...] = ()
        self._has_logs = True
        self._find()

    @classmethod
    def of_run_folder(cls, run_folder: str) -> LiveRun:
        """Return a run of which the run folder alone is known: its ranks are shown, and what an event log tells is not.

        Args:
            run_folder: Its path.
        """
        live = cls.__new__(cls)
        live.path, live._boot, live._seen_folder_ns, live._shown = os.path.abspath(run_folder), "", -1, ()
        live._has_logs = False
        live._nodes = {run_folder: _Node(LauncherLog.without_file(run_folder))}
        return live

    def look(self) -> RunLook:
        """Read what is new, and all cells.

        Raises:
            OSError: A file of events can no longer be read.
            UnknownVersionError: Another release of torch-resilience has written one.
        """
        self._find()
        looks = {path: node.look() for path, node in self._nodes.items()}
        going_on = tuple(path for path, look in looks.items() if look.state in RUNS)
        if going_on:
            self._shown = going_on
        elif not self._shown:  # the newest, of this machine where there is one
            ours = [path for path, node in self._nodes.items() if node.log.boot in (None, self._boot)]
            newest = max(ours or self._nodes, key=lambda path: self._nodes[path].log.last_ns, default=None)
            self._shown = () if newest is None else (newest,)
        return RunLook(time.monotonic_ns(), self.path, tuple(looks[path] for path in self._shown))

    def close(self) -> None:
        """Close all files."""
        for node in self._nodes.values():
            node.close()
        self._nodes = {}

    def _find(self) -> None:
        """Take in launchers that have begun to write here since the last look."""
        if not self._has_logs:
            return
        try:
            changed_ns = os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            if self._nodes:  # somebody has removed the log folder of a run that goes on
                return
            raise
        if changed_ns == self._seen_folder_ns:
            return
        # A change within the same tick of the file system's clock is found once that tick is over.
        if time.time_ns() - changed_ns > NS_PER_SECOND:
            self._seen_folder_ns = changed_ns
        for path in filter(os.path.isfile, event_files(self.path)):
            if path not in self._nodes:
                self._nodes[path] = _Node(LauncherLog(path))


class _Node:
    """One launcher, and what is remembered of it between looks."""

    def __init__(self, log: LauncherLog) -> None:
        self.log = log
        self._cells: RankCells | None = None
        self._last_held_ns = 0
        self._is_final = False
        self._last: NodeLook | None = None

    def look(self) -> NodeLook:
        log = self.log
        if self._is_final and self._last is not None and not log.update():
            return self._last
        log.update()
        state = self._state()
        self._is_final = state in (ENDED, ELSEWHERE)
        if state != GOES_ON:
            self.close_cells()
            self._last = NodeLook(log, state, None, (), None)
            return self._last
        if log.run_folder is None:
            return NodeLook(log, state, None, (), None)
        if self._cells is None:
            self._cells = RankCells(log.run_folder)
        if self._cells.run_folder != log.run_folder:
            self._cells.move(log.run_folder)
        if log.generation is not None and log.is_between:
            self._cells.end(log.generation)
        found = self._cells.look() if log.is_between else self._cells.look(log.generation, log.local_ranks)
        return NodeLook(log, state, found.generation, found.ranks, found.problem)

    def close(self) -> None:
        self.log.close()
        self.close_cells()

    def close_cells(self) -> None:
        if self._cells is not None:
            self._cells.close()
            self._cells = None

    def _state(self) -> str:
        state, now_ns = state_of(self.log), time.monotonic_ns()
        if state == GOES_ON:
            self._last_held_ns = now_ns
        elif state == LOST and self._last_held_ns and now_ns - self._last_held_ns < _DOUBT_NS:
            return GOES_ON  # it may be making its run folder anew
        return ENDED if self.log.ending is not None else state
