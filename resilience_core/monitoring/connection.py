"""The connection of a client to its rank's cell: found, claimed, opened, closed, and cut in forked children."""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

import attrs

from resilience_core.environment import CELL_VARIABLE, CONFIG_VARIABLE, CONTROL_VARIABLE, LAUNCHER_VARIABLE
from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.client_state import ClientState, deadline_after, to_ns
from resilience_core.monitoring.error_capture import look_for_caught, record_errors_in, stop_recording, tell_of_errors
from resilience_core.monitoring.group_left import DefaultGroupWatch
from resilience_core.monitoring.group_numbers import NumbersThread, has_groups, start_answering
from resilience_core.monitoring.limit_resolver import relaxed_limits
from resilience_core.monitoring.limits_in_force import LimitsInForce
from resilience_core.monitoring.process_hooks import (
    allow_stack_dumps,
    detach_in_forked_children,
    exit_on_uncaught_exception,
    read_config,
    register_stack_dump,
    unregister_stack_dump,
    wait_for_files,
)
from resilience_core.monitoring.rank_logging import follow_log_settings
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import (
    GENERATION,
    HEARTBEAT,
    INITIALISED,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    OUT_OF_SECTION,
    RANK,
    SHARED_SECTION,
    SHUT_DOWN,
    STATE,
    UNUSED,
    WATCHED,
)
from resilience_core.system.proc import process_start_time

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig
    from resilience_core.protocol.control import WorkloadControlRequest

__all__ = ["CellConnection"]

logger = logging.getLogger(__name__)

_connections: weakref.WeakSet[CellConnection] = weakref.WeakSet()


class CellConnection:
    """One client's hold on the cell that the environment names.

    Args:
        state: The client's.
        limits: The client's.
    """

    def __init__(self, state: ClientState, limits: LimitsInForce) -> None:
        self._state = state
        self._limits = limits
        self._config: FaultToleranceConfig | None = None
        self._pid = 0
        self._was_detached = False
        self._stack_file: TextIO | None = None
        self._numbers: NumbersThread | None = None
        self._group_watch: DefaultGroupWatch | None = None

    @property
    def config(self) -> FaultToleranceConfig:
        """The configuration that the launcher was started with.

        Raises:
            RankMonitorClientError: It was never opened.
        """
        if self._config is None:
            raise RankMonitorClientError("the configuration is known after init_workload_monitoring(); call it first")
        return self._config

    def open(self, num_warmup_iters: int | None) -> None:
        """Claim the cell and begin to be monitored.

        Args:
            num_warmup_iters: In place of the configured number; None: as configured.

        Raises:
            RankMonitorClientError: There is no cell, another process or client has it, or this one has it already.
        """
        self._refuse_second()
        cell = self._claim(num_warmup_iters)
        self._was_detached = False
        self._pid = os.getpid()
        _connections.add(self)
        # Before the lock is taken: a child that is forked while it is held would wait for it.
        detach_in_forked_children(self)
        relaxed = relaxed_limits(os.environ)
        with self._state.lock:
            try:
                self._begin(cell, time.monotonic_ns(), relaxed)
            except BaseException:  # a signal handler's, for instance: whoever catches it may begin again
                cell.words[STATE] = UNUSED
                self._state.give_up()
                raise
        self._install_hooks(cell)
        words = cell.words
        logger.debug(
            "pid %d is monitored through %s as rank %d, generation %d",
            *(self._pid, cell.path, words[RANK], words[GENERATION]),
        )
        self._limits.log()

    def _refuse_second(self) -> None:
        if self._state.cell is not None:
            raise RankMonitorClientError("init_workload_monitoring() was called already; shut down first")
        if any(other._state.cell is not None and not other._was_detached for other in _connections):
            # Both would write the same words, and the first to shut down would switch the other's protection off.
            raise RankMonitorClientError(
                "another RankMonitorClient of this process is initialised already; use that one, or shut it down first"
            )

    def _claim(self, num_warmup_iters: int | None) -> Cell:
        path = os.environ.get(CELL_VARIABLE)
        config_path = os.environ.get(CONFIG_VARIABLE)
        if not path or not config_path:
            raise RankMonitorClientError(
                f"this process has no rank monitor ({CELL_VARIABLE} is not set). Start it with ft_launcher instead of "
                "torchrun or python; the training itself is fine, it is only not protected"
            )
        wait_for_files((config_path, path), int(os.environ.get(LAUNCHER_VARIABLE, "0")))
        self._config = config = read_config(config_path, CONFIG_VARIABLE)
        try:
            cell = Cell(path)
            cell.claim(os.getpid(), process_start_time(os.getpid()) or 0)
        except CellError as error:
            raise RankMonitorClientError(str(error)) from error
        follow_log_settings(config.log_level, config.log_format, is_given=config.is_given("log_level"))
        if num_warmup_iters is not None:
            self._config = attrs.evolve(config, num_warmup_iterations=num_warmup_iters)
        return cell

    def _begin(self, cell: Cell, now: int, relaxed: Mapping[str, int]) -> None:
        state, limits = self._state, self._limits
        state.begin(cell, cell.add_section(SHARED_SECTION), now)
        limits.begin(self.config, cell, relaxed)
        words = state.words
        words[LAST_HEARTBEAT] = words[LEFT_SECTION] = now
        words[HEARTBEAT] = deadline_after(now, to_ns(limits.heartbeat_timeouts.initial))
        words[OUT_OF_SECTION] = deadline_after(now, state.gap_limit_ns)
        words[INITIALISED] = now
        words[STATE] = WATCHED
        state.cell = cell  # last: what a signal handler, or another thread, does from here on counts

    def _install_hooks(self, cell: Cell) -> None:
        allow_stack_dumps(int(os.environ.get(LAUNCHER_VARIABLE, "0")))
        if self.config.capture_stacks:
            self._stack_file = register_stack_dump(cell.path)
        if self.config.install_exception_hook:
            sys.excepthook = exit_on_uncaught_exception
        record_errors_in(cell, self._state.figures)
        self._group_watch = DefaultGroupWatch(cell)
        self.know_groups()

    def know_groups(self) -> None:
        """Answer the monitor's questions from here on, once there is a process group; asked at every first use."""
        if self._group_watch is not None:
            self._group_watch.look()
        if self._numbers is None and has_groups():
            with self._state.lock:
                cell = self._state.cell
                if self._numbers is None and cell is not None and self.config.capture_stacks:
                    self._numbers = start_answering(cell.path, self._look)
                    if self._numbers is not None:
                        tell_of_errors(self._numbers.look_soon)
                        if self._group_watch is not None:
                            self._group_watch.when_ended = self._numbers.look_soon

    def _look(self) -> bool:
        """Look for what only another thread than the one that trains can see; return whether to do so again."""
        watch = self._group_watch
        is_without = watch is not None and watch.look_again()
        return look_for_caught() or is_without

    def send(self, request: WorkloadControlRequest) -> None:
        """Send a workload control request to the launcher.

        Raises:
            RankMonitorClientError: Not initialised, or the launcher cannot be reached.
        """
        self._state.require_init("send_workload_control_request()")
        from resilience_core.protocol.control import send

        path = os.environ.get(CONTROL_VARIABLE)
        if not path:
            raise RankMonitorClientError(
                f"no launcher listens for workload control requests ({CONTROL_VARIABLE} is not set); "
                "this rank was started by a monitor alone"
            )
        send(request, path, int(os.environ.get("RANK", "0")))

    def close(self) -> None:
        """Switch protection off. Twice is no error."""
        state = self._state
        if state.cell is not None and self._pid != os.getpid() and not self._was_detached:
            self._close_in_unseen_child()
        with state.lock:
            if state.cell is None:
                return
            state.words[STATE] = SHUT_DOWN
            used = len(state.sections)
            self._limits.end()
            state.end()
        stop_recording()
        if self._stack_file is not None:
            unregister_stack_dump(self._stack_file)
            self._stack_file = None
        if self._numbers is not None:
            self._numbers.stop()
            self._numbers = None
        self._group_watch = None
        logger.debug("pid %d is not monitored any more; it used %d sections", os.getpid(), used)

    def _close_in_unseen_child(self) -> None:
        """Handle a shutdown in a process that a C library has forked, unseen by Python."""
        if sys.exc_info()[0] is not None:
            self.detach()  # it is only exiting, and its parent goes on training
            return
        # Its stores went into the cell of its parent, which could be killed because of a section closed here.
        logger.warning(
            "process %d, which a C library has forked from rank process %d, has left the training loop: that rank is "
            "not watched any more. End such a process with os._exit()",
            os.getpid(),
            self._pid,
        )

    def detach(self) -> None:
        """In a forked child: go on without effect, in a cell that nobody reads."""
        self._was_detached = True
        self._state.detach()
