"""RankMonitorClient: heartbeats and sections of one rank, stored where its monitor looks.

A call on the hot path reads the clock once and stores a few aligned words; it makes no system call, takes no lock and
cannot be refused. :mod:`resilience_core.monitoring` says what else the client is made of, and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from resilience_core.errors import RankMonitorClientError, SectionError
from resilience_core.monitoring.client_arguments import no_iteration, refuse_copy
from resilience_core.monitoring.client_state import ClientState
from resilience_core.monitoring.connection import CellConnection
from resilience_core.monitoring.first_use import FirstUse
from resilience_core.monitoring.limits_in_force import LimitsInForce
from resilience_core.monitoring.section_block import SectionBlock
from resilience_core.protocol.cell_layout import (
    CLOSED,
    HEARTBEAT,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    NO_LIMIT,
    NOT_SHOWN,
    OUT_OF_SECTION,
    RESUMED_FROM,
    WENT_BACK,
)

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig
    from resilience_core.monitoring.timeouts import HeartbeatTimeouts, SectionTimeouts
    from resilience_core.protocol.control import WorkloadControlRequest

__all__ = ["RankMonitorClient"]


class RankMonitorClient:
    """A rank's side of the monitoring, with two independent APIs: heartbeats and sections.

    Typical use::

        client = RankMonitorClient()
        client.init_workload_monitoring()
        for batch in loader:
            with client.section("step"):
                train(batch)
        client.shutdown_workload_monitoring()

    A client belongs to the process that made it: a forked child is cut off from the cell, so that a DataLoader
    worker cannot keep a dead rank alive. Sections may be opened and closed on any thread. Calls that need monitoring
    raise ``RankMonitorClientError`` before ``init_workload_monitoring`` and after ``shutdown_workload_monitoring``.
    """

    def __init__(self) -> None:
        self._state = ClientState()
        self._limits = LimitsInForce(self._state)
        self._connection = CellConnection(self._state, self._limits)
        self._first_use = FirstUse(self._state, self._limits)

    __reduce__ = refuse_copy

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin to be monitored: the initial heartbeat and the out-of-section timeouts start to run.

        Args:
            num_warmup_iters: In place of the configured ``num_warmup_iterations``; heeded by the bus's monitors.

        Raises:
            RankMonitorClientError: There is no launcher or monitor, or this rank is monitored through another client.
        """
        self._connection.open(num_warmup_iters)

    def shutdown_workload_monitoring(self) -> None:
        """Switch protection off: from here on this rank may take as long as it likes."""
        self._connection.close()

    @property
    def is_initialized(self) -> bool:
        """Return whether this rank is being monitored through this client."""
        return self._state.cell is not None

    @property
    def cfg(self) -> FaultToleranceConfig:
        """The configuration that the launcher was started with; known from ``init_workload_monitoring`` on."""
        return self._connection.config

    def send_heartbeat(self) -> None:
        """Report that this rank is alive; the next heartbeat is due within the heartbeat timeout."""
        now = monotonic_ns()
        state = self._state
        gap = now - state.last_heartbeat_ns
        state.last_heartbeat_ns = now
        heartbeats = state.heartbeats
        if not heartbeats:
            self._first_use.heartbeat(now)
        elif gap > state.longest_heartbeat_gap_ns:
            state.longest_heartbeat_gap_ns = gap
        state.heartbeats = heartbeats + 1
        words = state.words  # not before a first one has waited for the initialisation on another thread
        words[HEARTBEAT] = NO_LIMIT if (limit := state.heartbeat_limit_ns) is None else now + limit
        words[LAST_HEARTBEAT] = now

    def start_section(self, name: str) -> None:
        """Open a section: it must be closed within its timeout.

        Args:
            name: One of the configured sections, or any name where the configuration has none.

        Raises:
            SectionError: It is open already, or not configured although others are.
        """
        now = monotonic_ns()
        state = self._state
        try:
            section = state.sections[name]
        except (KeyError, TypeError):  # TypeError: no string, and nothing that could be a key
            section = self._first_use.section(name)
        opened = state.open
        if not opened:
            if (gap := now - state.left_section_ns) > state.longest_gap_ns:
                state.longest_gap_ns = gap
        elif name in opened:
            raise SectionError(f"section '{name}' is open already; sections of one name do not nest")
        else:
            state.nested_starts += 1
        opened[name] = section
        section.opened_ns = now
        words = state.words
        words[section.opened_word] = now
        words[section.deadline_word] = NO_LIMIT if (limit := section.limit_ns) is None else now + limit
        if state.has_more_to_do:  # in some configurations; written out twice, to spare each event a call
            if state.shares and section.deadline_word == NOT_SHOWN:
                section.due = (now, NO_LIMIT if limit is None else now + limit)
                state.share_deadline()
            if state.events_are_heartbeats:
                words[HEARTBEAT] = NO_LIMIT if (limit := state.heartbeat_limit_ns) is None else now + limit
                words[LAST_HEARTBEAT] = now

    def end_section(self, name: str) -> None:
        """Close a section; one that is not open is a ``SectionError``."""
        now = monotonic_ns()
        state = self._state
        try:
            section = state.open[name]
        except (KeyError, TypeError):  # TypeError: no string, and nothing that could be a key
            raise self._first_use.not_open(name) from None
        section.count = count = section.count + 1
        if (took := now - section.opened_ns) > section.longest_ns:
            section.longest_ns = took
        state.left_section_ns = now
        words = state.words
        limit = state.gap_limit_ns
        words[LEFT_SECTION] = now
        words[section.closed_word] = count
        if limit is not None:  # else the word says so already: a limit that there was is never taken back
            words[OUT_OF_SECTION] = now + limit
        words[section.deadline_word] = CLOSED
        state.open.pop(name, None)  # the first call: a signal handler that raises finds all of this done, or nothing
        if state.has_more_to_do:
            if state.shares and section.deadline_word == NOT_SHOWN:
                state.share_deadline()
            if state.events_are_heartbeats:
                words[HEARTBEAT] = NO_LIMIT if (limit := state.heartbeat_limit_ns) is None else now + limit
                words[LAST_HEARTBEAT] = now

    def section(self, name: str) -> SectionBlock:
        """Open a section for the length of a ``with`` block; it is closed on an exception, too."""
        return SectionBlock(name, self.start_section, self.end_section, self._state)

    def end_all_sections(self) -> None:
        """Close every section that is open; none is no error."""
        for name in list(self._state.open):
            with contextlib.suppress(RankMonitorClientError):  # another thread closed it, or shut down, meanwhile
                self.end_section(name)

    @property
    def open_sections(self) -> frozenset[str]:
        """Names of the sections that are open now."""
        return frozenset(self._state.open)

    def note_iteration(self, iteration: int) -> None:
        """Report which iteration this is, counted from the beginning of training, through restarts.

        The launcher uses it to judge whether a job that fails repeatedly makes progress (``max_no_progress_cycles``),
        unless numbers repeat or begin below the checkpoint that was loaded, as numbers of epochs do, for example.
        One that is no whole number is a ``TypeError``; one that does not fit into 64 bits is a ``ValueError``.
        """
        words = self._state.words
        before = words[ITERATION]
        try:
            words[ITERATION] = iteration
        except (TypeError, ValueError):
            raise no_iteration(iteration) from None
        if iteration <= before or (before < 0 and iteration < words[RESUMED_FROM]):
            if iteration != before or not self._state.was_evaluation:
                words[WENT_BACK] += 1
            self._state.was_evaluation = False

    def note_evaluation(self, iteration: int) -> None:
        """Report at which iteration an evaluation step is; the training step before or after it may be of the same."""
        self._state.was_evaluation = True
        self.note_iteration(iteration)
        self._state.was_evaluation = True

    def note_checkpoint_loaded(self, iteration: int) -> None:
        """Report that training resumes from this iteration; what is no whole number of 64 bits is ignored."""
        self._state.note_loaded(iteration)

    def note_checkpoint_saved(self, iteration: int) -> None:
        """Report that a checkpoint of this iteration is complete; what is no whole number of 64 bits is ignored."""
        self._state.note_saved(iteration)

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """Heartbeat timeouts in force, None before init."""
        return self._limits.heartbeat_timeouts if self.is_initialized else None

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """Section timeouts in force, None before init."""
        return self._limits.section_timeouts if self.is_initialized else None

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Learn both heartbeat timeouts, in force from the next heartbeat on, from all ranks' intervals. A collective.

        Args:
            skip_if_not_ready: Return False instead of raising when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TimeoutsNotReadyError: No rank has sent two heartbeats since the last calculation.
        """
        return self._limits.learn_heartbeats(skip_if_not_ready)

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn section timeouts from the longest intervals any rank saw. A collective.

        A new limit applies from the next time its section is opened. The out-of-section limit applies at once, counted
        from now, if none was running: otherwise a hang in the interval that is open would not be found.

        Args:
            selected_sections: Names to learn; all that any rank has used when None. Others keep theirs.
            calc_out_of_section: Learn the out-of-section timeout as well.
            skip_if_not_ready: Return False, and change nothing, when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TypeError: ``selected_sections`` holds a value that is no name.
            TimeoutsNotReadyError: A selected section was never closed on any rank, or nothing was seen at all.
        """
        return self._limits.learn_sections(selected_sections, calc_out_of_section, skip_if_not_ready)

    def learned_summary(self) -> str:
        """Return what was learned, from how much, and which limits follow from it, in one line."""
        return self._limits.summary()

    def undercut_limits(self) -> str:
        """Return which learned limits in force are shorter than the configured ones; empty where none is."""
        return self._limits.undercut()

    def spared_limits(self) -> dict[str, str]:
        """Return which learned limits in force are longer because no restart is left, by kind; each in words."""
        return self._limits.spared()

    def name_state_file(self, path: str | None) -> None:
        """Name the file that learned timeouts are kept in, for messages about limits that come from it."""
        self._limits.name_state_file(path)

    def state_dict(self) -> dict[str, Any]:
        """Return the learned timeouts as JSON types, equal on all ranks; configured values are not part of it."""
        return self._limits.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over timeouts that an earlier run learned; ``learned_limits`` says which of them come into force.

        May be called before ``init_workload_monitoring``, too; then they apply from there on. To what is running, a
        longer limit applies from its beginning, and a shorter one from now on, but never later than the former one.

        Raises:
            RankMonitorClientError: The state does not have the shape that ``state_dict`` gives it.
        """
        self._limits.load(state)

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher to go on, to leave this node out, or to end the job; raises where it cannot be reached."""
        self._connection.send(request)
