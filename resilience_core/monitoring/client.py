"""RankMonitorClient: heartbeats and sections of one rank, stored where its monitor looks.

A call on the hot path reads the clock once and stores a few aligned words; it makes no system call, takes no lock and
cannot be refused. :mod:`resilience_core.monitoring` says what else the client is made of, and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

from resilience_core.errors import RankMonitorClientError, SectionError
from resilience_core.monitoring.client_arguments import no_iteration, refuse_copy
from resilience_core.monitoring.client_limits import ClientLimits
from resilience_core.monitoring.client_state import ClientState
from resilience_core.monitoring.connection import CellConnection
from resilience_core.monitoring.error_capture import note_error
from resilience_core.monitoring.first_use import FirstUse
from resilience_core.monitoring.handled import exception
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
from resilience_core.protocol.figures import DONE, LONGEST_GAP, LONGEST_HEARTBEAT_GAP, PASSED, note_first_step

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig
    from resilience_core.protocol.control import WorkloadControlRequest

__all__ = ["RankMonitorClient"]


class RankMonitorClient(ClientLimits):
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
        super().__init__(ClientState())
        self._connection = CellConnection(self._state, self._limits)
        self._first_use = FirstUse(self._state, self._limits, self._connection.know_groups)

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
        """Report that this rank is alive; the next heartbeat is due within the heartbeat timeout.

        While an exception is handled this is no progress in reports, unless a later iteration was noted since.
        """
        now = monotonic_ns()
        state = self._state
        gap, state.last_heartbeat_ns = now - state.last_heartbeat_ns, now
        heartbeats = state.heartbeats
        if not heartbeats:
            self._first_use.heartbeat(now)
        if (exception() is not None or state.leaving) and state.handled.is_no_progress(
            exception(), heartbeats, state.words[ITERATION], is_leaving=get_ident() in state.leaving
        ):
            if not heartbeats:
                state.heartbeats, state.first_heartbeat_gap_ns = 1, 0  # no interval that a limit is learned from
            state.words[HEARTBEAT] = NO_LIMIT if (limit := state.heartbeat_limit_ns) is None else now + limit
            return
        if heartbeats and gap > state.longest_heartbeat_gap_ns:
            state.longest_heartbeat_gap_ns = gap
            if gap > state.figures[LONGEST_HEARTBEAT_GAP]:
                state.figures[LONGEST_HEARTBEAT_GAP] = gap
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
        handled = 0 if (error := exception()) is None else id(error)  # before all else: a signal handler may raise here
        opened = state.open
        if not opened:
            if (gap := now - state.left_section_ns) > state.longest_gap_ns:
                state.longest_gap_ns = gap
                if gap > state.figures[LONGEST_GAP]:
                    state.figures[LONGEST_GAP] = gap
        elif name in opened:
            raise SectionError(f"section '{name}' is open already; sections of one name do not nest")
        else:
            state.nested_starts += 1
        opened[name] = section
        section.opened_ns = now
        section.handled = handled
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
        """Close a section; one that is not open is a ``SectionError``.

        If an exception leaves the section, it is recorded, and the time is not counted as a duration.
        """
        now = monotonic_ns()
        state = self._state
        try:
            section = state.open[name]
        except (KeyError, TypeError):  # TypeError: no string, and nothing that could be a key
            raise self._first_use.not_open(name) from None
        if (error := exception()) is not None and id(error) != section.handled:
            note_error(error)  # while the section is still open
            now = monotonic_ns()  # not before the exception was noted: reports tell by that what has left the section
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
        try:  # no call is made until here: a signal handler that raises finds all of this done, or nothing
            del state.open[name]
        except KeyError:  # another thread has closed it meanwhile
            pass
        if state.has_more_to_do:
            if state.shares and section.deadline_word == NOT_SHOWN:
                state.share_deadline()
            if state.events_are_heartbeats:
                words[HEARTBEAT] = NO_LIMIT if (limit := state.heartbeat_limit_ns) is None else now + limit
                words[LAST_HEARTBEAT] = now
            if state.leaving and get_ident() in state.leaving:
                section.note_left(now, 0, state.figures)
                return
        if error is not None and id(error) != section.handled:
            section.note_left(now, 0, state.figures)
            return
        figures, row, bits = state.figures, section.row, took.bit_length()  # last: nothing is decided by them
        figures[row.took_word] = row.took_ns = row.took_ns + took
        row.buckets[bits] = closed = row.buckets[bits] + 1
        figures[row.buckets_word + bits] = closed
        if took > section.notable_ns:
            section.note_long(took, figures)

    def section(self, name: str) -> SectionBlock:
        """Open a section for the length of a ``with`` block; it is closed on an exception, too."""
        return SectionBlock(name, self.start_section, self.end_section, self._state)

    @contextlib.contextmanager
    def leaving_sections(self) -> Iterator[None]:
        """Count sections that this thread closes inside the block as left by an exception.

        Such a section was not completed, and it may have waited for a peer that has failed. Its duration is left out of
        reports and metrics, and a step that ends here is not counted as done. ``end_section()`` detects this itself
        while an exception is propagating that was raised after the section was opened, as in a ``finally`` or an
        ``except``. Use this block where the section is closed later.
        """
        state, thread = self._state, get_ident()
        is_outermost = thread not in state.leaving
        state.leaving.add(thread)
        state.has_more_to_do = True  # until limits are applied again: another thread may be in such a block, too
        try:
            yield
        finally:
            if is_outermost:
                state.leaving.discard(thread)

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
            state = self._state  # a step that was not done is tried again; an evaluation is of a step beside it
            words[WENT_BACK] += iteration != before or not (state.was_evaluation or 0 <= state.figures[DONE] < before)
            state.was_evaluation = False

    def note_first_step(self, iteration: int) -> None:
        """Report that the first training step of this process begins; of further calls, the first one counts."""
        note_first_step(self._state.figures, iteration, monotonic_ns())

    def note_step_done(self) -> None:
        """Report that the step of the last iteration is done; inside :meth:`leaving_sections`, that it has ended."""
        state = self._state
        state.steps_ended = ended = state.steps_ended + 1
        if not state.leaving or get_ident() not in state.leaving:
            figures = state.figures
            figures[PASSED] = ended  # first: there are never fewer than the iterations tell
            figures[DONE] = state.words[ITERATION]

    def note_evaluation(self, iteration: int) -> None:
        """Report at which iteration an evaluation step is; the training step before or after it may be of the same."""
        self._state.was_evaluation = True
        self.note_iteration(iteration)
        self._state.was_evaluation = True

    def note_checkpoint_loaded(self, iteration: int) -> None:
        """Report that training resumes from this iteration; what is no whole number of 64 bits is ignored."""
        self._state.note_loaded(iteration)

    def note_checkpoint_saved(self, iteration: int, began_ns: int | None = None) -> None:
        """Report that a checkpoint of this iteration is complete; what is no whole number of 64 bits is ignored.

        Args:
            iteration: That training would resume from.
            began_ns: Of a save beside which training steps went on: when it began, by ``time.monotonic_ns()``. Needed
                only where the sections ``step`` and ``checkpointing`` do not tell, as with heartbeats.
        """
        self._state.note_saved(iteration, began_ns)

    def note_checkpoint_finalized(self, iteration: int) -> None:
        """Report that asynchronous saves are complete, after so many iterations; each was reported as saved before."""
        self._state.note_finalized(iteration)

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher to go on, to leave this node out, or to end the job; raises where it cannot be reached."""
        self._connection.send(request)
