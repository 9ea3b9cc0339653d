"""A monitor for ranks that something other than ft_launcher starts: a test, a notebook, another launcher."""

from __future__ import annotations

import contextlib
import operator
import os
import reprlib
import time
from types import TracebackType
from typing import Any

from launcher.agent import announcements
from launcher.agent.monitor_handle import MonitorHandle
from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incident, read_incidents
from launcher.monitor.messages import HangReport, WatchOrder
from launcher.records import console
from launcher.records.log_folders import make_log_folder, new_run_id
from launcher.records.run_folders import RunFolder
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.environment import CELL_VARIABLE, CONFIG_VARIABLE, LAUNCHER_VARIABLE, PLUGINS_VARIABLE
from resilience_core.protocol.cell import Cell
from resilience_core.system.readable import wait_until_readable

__all__ = ["RankMonitors", "start_monitor"]


def start_monitor(
    config: FaultToleranceConfig,
    num_ranks: int,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
) -> RankMonitors:
    """Start one monitor process for ranks on this machine that somebody else starts.

    A rank is monitored from its ``init_workload_monitoring()`` on, if it finds :meth:`RankMonitors.environment` in
    its environment. One that is overdue is terminated, and the incident written; starting it again is the
    caller's business, with the same environment: the newcomer takes over its predecessor's place::

        with start_monitor(FaultToleranceConfig(rank_section_timeouts={"step": 60}), num_ranks=2) as monitors:
            ranks = [Popen(command, env={**os.environ, **monitors.environment(n)}) for n in range(2)]
            incident = monitors.wait_for_incident(timeout=3600)

    Args:
        config: What the ranks are held to. ``rank_startup_timeout`` and ``rank_exit_timeout`` have no effect: who has
            not spoken yet is not known, and processes are the caller's.
        num_ranks: How many local ranks there are, at least 1.
        log_dir: Incidents go to a folder of its own in here; ``./ft_logs`` when None.
        run_dir: A folder in memory for cells; ``config.run_dir`` when None.

    Returns:
        The monitors, to be closed; they also end when the calling process does. The ranks are not ended.

    Raises:
        TypeError: An argument has the wrong type; names it.
        ValueError: ``num_ranks`` is below 1.
        ResilienceError: A folder cannot be made, or the monitor not be started.
    """
    return RankMonitors(config, num_ranks, log_dir=log_dir, run_dir=run_dir)


class RankMonitors:
    """The monitors of some ranks; made by :func:`start_monitor`. A context manager that closes itself."""

    def __init__(
        self,
        config: FaultToleranceConfig,
        num_ranks: int,
        *,
        log_dir: str | os.PathLike[str] | None,
        run_dir: str | os.PathLike[str] | None,
    ) -> None:
        if not isinstance(config, FaultToleranceConfig):
            raise TypeError(
                f"config is {reprlib.repr(config)} ({type(config).__name__}); give a FaultToleranceConfig, for example "
                "FaultToleranceConfig(rank_section_timeouts={'step': 60})"
            )
        num_ranks = _whole("num_ranks", num_ranks)
        log_dir, run_dir = _path("log_dir", log_dir), _path("run_dir", run_dir)
        if num_ranks < 1:
            raise ValueError(f"num_ranks is {num_ranks}; give at least 1")
        console.follow(console.State(config.log_level, config.log_format))
        self.num_ranks = num_ranks
        self._load_plugins = config.load_plugins
        with contextlib.ExitStack() as stack:
            self._run_folder = RunFolder(config.run_dir if run_dir is None else run_dir)
            stack.callback(self._run_folder.remove)
            self.log_folder = make_log_folder(log_dir, new_run_id())
            """Where incidents are written, under ``incidents``."""
            self._config_file = self._run_folder.write("config.json", config.to_json())
            cells = [Cell.create(self._cell(local_rank), rank=local_rank) for local_rank in range(num_ranks)]
            self._process = MonitorHandle(
                config,
                run_folder=self._run_folder.path,
                log_folder=self.log_folder,
                owns_ranks=False,
                on_change=_tell_change,
            )
            stack.callback(self._process.close)
            for local_rank, cell in enumerate(cells):
                self._process.watch(WatchOrder(0, local_rank, local_rank, cell.path), cell)
                cell.close()
            self._closing = stack.pop_all()
        self._unread: list[Incident] = []

    @property
    def pid(self) -> int:
        """The monitor's process, as of now; one that dies is replaced."""
        return self._process.pid

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return what a rank must have in its environment, besides what its process group needs.

        Args:
            local_rank: From 0, one process each.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= local_rank < self.num_ranks:
            raise ValueError(f"local_rank is {local_rank}; there are {self.num_ranks}, from 0")
        environment = {
            CELL_VARIABLE: self._cell(local_rank),
            CONFIG_VARIABLE: self._config_file,
            LAUNCHER_VARIABLE: str(os.getpid()),
        }
        return environment if self._load_plugins else {**environment, PLUGINS_VARIABLE: "0"}

    def wait_for_incident(self, timeout: float | None = None) -> Incident:
        """Wait for the next incident that this method has not returned yet.

        It is returned when it is written down, that is just before the condemned are signalled.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: There was none in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._unread:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not wait_until_readable(self._process.channel.fileno(), left):
                raise TimeoutError(f"no incident within {timeout:g} s")
            for report in self._process.read_reports():
                if isinstance(report, HangReport):
                    told = report.incident
                    self._unread.append(told if told.folder is None else read_incident(told.folder))
        return self._unread.pop(0)

    def incidents(self) -> list[Incident]:
        """Return every incident so far, oldest first.

        Raises:
            OSError: The log folder cannot be read.
        """
        return list(read_incidents(self.log_folder))

    def close(self) -> None:
        """End the monitor and remove its folder in memory; the log folder and the ranks stay. Twice is no error."""
        self._closing.close()

    def __enter__(self) -> RankMonitors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cell(self, local_rank: int) -> str:
        return self._run_folder.cell(0, local_rank)


def _whole(name: str, value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {reprlib.repr(value)} ({type(value).__name__}); give a whole number, from 1")
    return number


def _path(name: str, value: str | os.PathLike[str] | None) -> str | None:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is not None and not isinstance(path, str):
        raise TypeError(f"{name} is {reprlib.repr(value)} ({type(value).__name__}); give a path as str or os.PathLike")
    return path


def _tell_change(change: str, reason: str) -> None:
    console.announce(announcements.monitor_changed(change, reason), level=announcements.level_of(change), event=change)
