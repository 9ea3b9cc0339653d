"""RankMonitorClient: heartbeats and sections of one rank, stored where its monitor looks.

A call on the hot path reads the clock once and stores a few aligned words; it makes no system call, takes no
lock and cannot be refused. Everything that may fail (a missing launcher, a misspelt section) fails in
``init_workload_monitoring`` or at the first use of a name.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import attrs

from resilience_core.environment import (
    CELL_VARIABLE,
    CONFIG_VARIABLE,
    CONTROL_VARIABLE,
    LAUNCHER_VARIABLE,
    RELAXED_VARIABLE,
)
from resilience_core.errors import RankMonitorClientError, SectionError, UnconfiguredSectionError
from resilience_core.monitoring.cell import Cell, CellError
from resilience_core.monitoring.cell_layout import (
    CELL_SIZE,
    CLOSED,
    FIRST_CLOSED,
    FIRST_SECTION,
    FIRST_SIGN,
    HEARTBEAT,
    INITIALISED,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    LIMITS_TEXT,
    MAX_SECTIONS,
    NO_LIMIT,
    NOT_COUNTED,
    NOT_SHOWN,
    OUT_OF_SECTION,
    RESUMED_FROM,
    SAVED,
    SHARED_SECTION,
    SHUT_DOWN,
    SMALLEST_LIMIT,
    STATE,
    UNUSED,
    WATCHED,
    WENT_BACK,
)
from resilience_core.monitoring.client_arguments import no_iteration, no_name, selected_names, unconfigured
from resilience_core.monitoring.collectives import maxima, union_of_names
from resilience_core.monitoring.error_capture import note_error, record_errors_in, stop_recording
from resilience_core.monitoring.learned_limits import LearnedLimits, Seen
from resilience_core.monitoring.limit_messages import undercutting
from resilience_core.monitoring.limit_resolver import no_restart_is_left, relaxed_limits
from resilience_core.monitoring.limits_text import SharedOrigin, write_limits
from resilience_core.monitoring.process_hooks import (
    allow_stack_dumps,
    answer_for_stacks,
    cut_off_in_children,
    log_and_leave,
    read_config,
    stop_answering,
    wait_for_files,
)
from resilience_core.monitoring.rank_logging import follow_log_level
from resilience_core.monitoring.timeouts import (
    HeartbeatTimeouts,
    SectionTimeouts,
    evidence_from_state,
    timeouts_from_state,
)
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import process_start_time

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig
    from resilience_core.monitoring.control import WorkloadControlRequest

__all__ = ["RankMonitorClient"]


LONGEST_LIMIT_NS = 2**62
"""More than a century; with the clock added it still fits into a word."""

logger = logging.getLogger(__name__)


_clients: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()
_warned: set[str] = set()


class _Section:
    """What the client keeps of one section name."""

    __slots__ = (
        "closed_word",
        "count",
        "deadline_word",
        "due",
        "limit_ns",
        "longest_ns",
        "name",
        "opened_ns",
        "opened_word",
    )

    def __init__(self, name: str, deadline_word: int) -> None:
        self.name = name
        self.deadline_word = deadline_word
        self.opened_word = deadline_word + 1
        is_shared = deadline_word == NOT_SHOWN
        self.closed_word = NOT_COUNTED if is_shared else FIRST_CLOSED + (deadline_word - FIRST_SECTION) // 2
        self.limit_ns: int | None = None
        self.due: tuple[int, int] = (0, NO_LIMIT)
        """Of one that shares its slot: when it was last opened, and by when it had to be closed then."""
        self.opened_ns = 0
        self.longest_ns = 0
        self.count = 0


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
    worker cannot keep a dead rank alive. Sections may be opened and closed on any thread.
    """

    # What the hot path uses. CPython shares the keys of instances' dictionaries up to 30 attributes (there are more)
    # and looks them up in a hash table beyond, which made a pair of section events 12 % slower.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_gap_limit_ns",
        "_has_more_to_do",
        "_heartbeat_limit_ns",
        "_heartbeats",
        "_last_heartbeat_ns",
        "_left_section_ns",
        "_longest_gap_ns",
        "_longest_heartbeat_gap_ns",
        "_open",
        "_sections",
        "_words",
    )

    def __init__(self) -> None:
        self._cfg: FaultToleranceConfig | None = None
        self._cell: Cell | None = None
        self._words: memoryview = _private_words()
        self._sections: dict[str, _Section] = {}
        self._open: dict[str, _Section] = {}
        self._pending_state: Mapping[str, Any] | None = None
        self._stack_file: TextIO | None = None
        self._was_cut_off = False
        self._was_shut_down = False
        self._evaluated = False
        """A step of an evaluation was the last to say its iteration."""
        self._has_used_section = False
        self._section_events_are_heartbeats = False
        self._state_file: str | None = None
        self._shared_word = 0
        self._tellings = 0
        self._pid = 0
        # Of first calls, of loading and learning limits, of the beginning and of the shutdown. Never taken by a
        # heartbeat or a section event after the first. Held for no input or output; a signal handler may come between.
        self._lock = threading.RLock()
        self._forget_observations(0)

    # ---- life -------------------------------------------------------------------------------------------

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin to be monitored: the initial heartbeat and the out-of-section timeouts start to run.

        Args:
            num_warmup_iters: In place of the configured ``num_warmup_iterations``; heeded by the monitors of the event
                bus, which open the sections. Accepted by nvidia-resiliency-ext from 0.6.

        Raises:
            RankMonitorClientError: Not started by ft_launcher (or another monitor), initialised already here or
                through another client, or another process has taken this rank's cell.
        """
        if self.is_initialized:
            raise RankMonitorClientError("init_workload_monitoring() was called already; shut down first")
        if any(client.is_initialized and not client._was_cut_off for client in _clients):
            # Both would write the same words, and the first to shut down would switch the other's protection off.
            raise RankMonitorClientError(
                "another RankMonitorClient of this process is initialised already; use that one, or shut it down first"
            )
        path = os.environ.get(CELL_VARIABLE)
        config_path = os.environ.get(CONFIG_VARIABLE)
        if not path or not config_path:
            raise RankMonitorClientError(
                f"this process has no rank monitor ({CELL_VARIABLE} is not set). Start it with ft_launcher instead of "
                "torchrun or python; the training itself is fine, it is only not protected"
            )
        wait_for_files((config_path, path), int(os.environ.get(LAUNCHER_VARIABLE, "0")))
        self._cfg = read_config(config_path, CONFIG_VARIABLE)
        try:
            cell = Cell(path)
            cell.claim(os.getpid(), process_start_time(os.getpid()) or 0)
        except CellError as error:
            raise RankMonitorClientError(str(error)) from error
        follow_log_level(self._cfg.log_level, is_given=self._cfg.is_given("log_level"))
        if num_warmup_iters is not None:
            self._cfg = attrs.evolve(self._cfg, num_warmup_iterations=num_warmup_iters)
        self._was_cut_off = False
        self._pid = os.getpid()
        _clients.add(self)
        cut_off_in_children(self)  # before the lock is taken, which a child that is forked meanwhile would wait for
        with self._lock:
            try:
                self._start(cell, monotonic_ns())
            except BaseException:  # a signal handler's, for instance: whoever catches it may begin again
                cell.words[STATE] = UNUSED
                self._cell = None
                self._words = _private_words()
                raise
        allow_stack_dumps(int(os.environ.get(LAUNCHER_VARIABLE, "0")))
        if self._cfg.capture_stacks:
            self._stack_file = answer_for_stacks(path)
        if self._cfg.install_exception_hook:
            sys.excepthook = log_and_leave
        record_errors_in(cell)

    def _start(self, cell: Cell, now: int) -> None:
        self._words = cell.words
        self._sections = {}
        self._open = {}
        self._has_used_section = False
        self._shares = False
        self._slots: dict[str, int] = {}
        self._told_of_shared: set[SharedOrigin] = set()
        self._shared_word = cell.add_section(SHARED_SECTION)
        self._forget_observations(now)
        self._limits = LearnedLimits(
            self.cfg,
            relaxed_limits(os.environ.get(RELAXED_VARIABLE)),
            self._state_file,
            is_last=no_restart_is_left(os.environ),
        )
        self._known_names: set[str] = set()
        if self._pending_state is not None:
            self._limits.load(self._pending_state)
        self._put_limits_in_force()
        self._tell_limits(cell)
        words = self._words
        words[LAST_HEARTBEAT] = words[LEFT_SECTION] = now
        words[HEARTBEAT] = _deadline(now, _ns(self._hb_timeouts.initial))
        words[OUT_OF_SECTION] = _deadline(now, self._gap_limit_ns)
        words[INITIALISED] = now
        words[STATE] = WATCHED
        self._cell = cell  # last: what a signal handler, or another thread, does from here on counts

    def _forget_observations(self, now: int) -> None:
        """Begin a new life of intervals; ``now`` is its first instant."""
        self._last_heartbeat_ns = now
        self._first_heartbeat_gap_ns = 0
        self._longest_heartbeat_gap_ns = 0
        self._heartbeats = 0
        self._left_section_ns = now
        self._longest_gap_ns = 0
        self._nested_starts = 0
        self._forgotten_closings = 0
        self._gaps_learned_from = 0
        self._began_ns = now
        self._learned_ns: dict[str, int] = {}

    def shutdown_workload_monitoring(self) -> None:
        """Switch protection off: from here on this rank may take as long as it likes."""
        if self._cell is not None and self._pid != os.getpid() and not self._was_cut_off:
            # Forked by a C library, unseen by Python.
            if sys.exc_info()[0] is not None:
                self.cut_off()  # it only ends, and its parent trains on
            else:
                # It has stored what it did as if it were its parent, which could be killed for what was closed behind
                # its back.
                logger.warning(
                    "process %d, which a C library has forked from rank process %d, has left the training loop: that "
                    "rank is not watched any more. End such a process with os._exit()",
                    os.getpid(),
                    self._pid,
                )
        with self._lock:
            if self._cell is None:
                return
            words = self._words
            words[STATE] = SHUT_DOWN
            self._was_shut_down = True
            self._pending_state = self.state_dict()
            self._words = _private_words()
            self._sections = {}
            self._open = {}
            self._heartbeats = 0  # so that the next one looks whether we are initialised
            # Not unmapped here: another thread may be in a call, whose stores must not raise. They mean nothing until
            # this cell is initialised again.
            self._cell = None
        stop_recording()
        if self._stack_file is not None:
            stop_answering(self._stack_file)
            self._stack_file = None

    @property
    def is_initialized(self) -> bool:
        """Whether this rank is being monitored through this client."""
        return self._cell is not None

    @property
    def cfg(self) -> FaultToleranceConfig:
        """The configuration that the launcher was started with.

        Raises:
            RankMonitorClientError: Before ``init_workload_monitoring``.
        """
        if self._cfg is None:
            raise RankMonitorClientError("the configuration is known after init_workload_monitoring(); call it first")
        return self._cfg

    # ---- heartbeats -------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Say that this rank is alive; the next word is due within the heartbeat timeout.

        Raises:
            RankMonitorClientError: Before ``init_workload_monitoring`` or after shutdown.
        """
        now = monotonic_ns()
        gap = now - self._last_heartbeat_ns
        self._last_heartbeat_ns = now
        heartbeats = self._heartbeats
        if not heartbeats:
            self._first_heartbeat(now)
        elif gap > self._longest_heartbeat_gap_ns:
            self._longest_heartbeat_gap_ns = gap
        self._heartbeats = heartbeats + 1
        limit = self._heartbeat_limit_ns
        words = self._words  # not before a first one has waited for the initialisation on another thread
        words[HEARTBEAT] = NO_LIMIT if limit is None else now + limit
        words[LAST_HEARTBEAT] = now

    def _first_heartbeat(self, now: int) -> None:
        with self._lock:
            self._require_init("send_heartbeat()")
            # Not the caller's gap: it may have waited for the initialisation, before which there was no interval.
            self._first_heartbeat_gap_ns = max(1, now - self._began_ns)
            self._note_first_sign()
            if not self._has_used_section:
                self._words[OUT_OF_SECTION] = CLOSED

    def _note_first_sign(self) -> None:
        """For the diary of the restart: when this process first used either API."""
        if self._words[FIRST_SIGN] == 0:
            self._words[FIRST_SIGN] = monotonic_ns()

    # ---- sections ---------------------------------------------------------------------------------------

    def start_section(self, name: str) -> None:
        """Open a section: it must be closed within its timeout.

        Args:
            name: One of the configured sections, or any name where the configuration has none.

        Raises:
            SectionError: It is open already, or not configured although others are.
            RankMonitorClientError: Before ``init_workload_monitoring`` or after shutdown.
        """
        now = monotonic_ns()
        try:
            section = self._sections[name]
        except (KeyError, TypeError):  # TypeError: no string, and nothing that could be a key
            section = self._new_section(name)
        opened = self._open
        if not opened:
            gap = now - self._left_section_ns
            if gap > self._longest_gap_ns:
                self._longest_gap_ns = gap
        elif name in opened:
            raise SectionError(f"section '{name}' is open already; sections of one name do not nest")
        else:
            self._nested_starts += 1
        opened[name] = section
        section.opened_ns = now
        words = self._words
        limit = section.limit_ns
        words[section.opened_word] = now
        words[section.deadline_word] = NO_LIMIT if limit is None else now + limit
        if self._has_more_to_do:  # in some configurations; written out twice, to spare each event a call
            if self._shares and section.deadline_word == NOT_SHOWN:
                section.due = (now, NO_LIMIT if limit is None else now + limit)
                self._share_deadline()
            if self._section_events_are_heartbeats:
                limit = self._heartbeat_limit_ns
                words[HEARTBEAT] = NO_LIMIT if limit is None else now + limit
                words[LAST_HEARTBEAT] = now

    def end_section(self, name: str) -> None:
        """Close a section.

        Raises:
            SectionError: It is not open.
        """
        now = monotonic_ns()
        try:
            section = self._open.pop(name)
        except (KeyError, TypeError):  # TypeError: no string, and nothing that could be a key
            raise self._not_open(name) from None
        took = now - section.opened_ns
        section.count = count = section.count + 1
        if took > section.longest_ns:
            section.longest_ns = took
        self._left_section_ns = now
        words = self._words
        limit = self._gap_limit_ns
        words[LEFT_SECTION] = now
        words[section.closed_word] = count
        if limit is not None:  # else the word says so already: a limit that there was is never taken back
            words[OUT_OF_SECTION] = now + limit
        words[section.deadline_word] = CLOSED
        if self._has_more_to_do:
            if self._shares and section.deadline_word == NOT_SHOWN:
                self._share_deadline()
            if self._section_events_are_heartbeats:
                limit = self._heartbeat_limit_ns
                words[HEARTBEAT] = NO_LIMIT if limit is None else now + limit
                words[LAST_HEARTBEAT] = now

    def _share_deadline(self) -> None:
        """Show the first that is due of the open sections without a slot of their own.

        Look again after each store, so that the last of several threads leaves what is true.
        """
        words, deadline_word = self._words, self._shared_word
        while (words[deadline_word + 1], words[deadline_word]) != (shown := self._first_shared()):
            words[deadline_word] = NO_LIMIT  # not the former deadline with the other section's time of opening
            words[deadline_word + 1], words[deadline_word] = shown

    def _first_shared(self) -> tuple[int, int]:
        """Return when the first that is due was opened, and its deadline; ``CLOSED`` once none is open."""
        shared = [each for each in list(self._open.values()) if each.deadline_word == NOT_SHOWN]
        # One that another thread is just opening, which says so next, still has what was due the last time.
        due = [each.due for each in shared if each.due[0] == each.opened_ns]
        return min(due, key=lambda pair: pair[1]) if due else (self._words[self._shared_word + 1], CLOSED)

    def end_all_sections(self) -> None:
        """Close every section that is open; none is no error."""
        for name in list(self._open):
            with contextlib.suppress(RankMonitorClientError):  # another thread closed it, or shut down, meanwhile
                self.end_section(name)

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Open a section for the length of a ``with`` block; it is closed on an exception, too."""
        self.start_section(name)
        try:
            yield
        except BaseException as error:
            note_error(error)  # while the section is still open
            raise
        finally:
            # end_all_sections() inside the block, or a shutdown, may have closed it; on another thread, even now.
            if name in self._open:
                with contextlib.suppress(RankMonitorClientError):
                    self.end_section(name)

    @property
    def open_sections(self) -> frozenset[str]:
        """Names of the sections that are open now."""
        return frozenset(self._open)

    def note_iteration(self, iteration: int) -> None:
        """Say which iteration this is, counted from the beginning of training, through restarts.

        Reports show it, and the launcher tells from it whether a job that fails again and again gets on
        (``max_no_progress_cycles``). It does not where a number is no higher than the one before it in the same
        generation, or the first one lower than that of the checkpoint that was loaded: such numbers are those of
        epochs, or are counted within each, for example.

        Raises:
            TypeError: It is no whole number.
            ValueError: It does not fit into 64 bits.
        """
        words = self._words
        before = words[ITERATION]
        try:
            words[ITERATION] = iteration
        except (TypeError, ValueError):
            raise no_iteration(iteration) from None
        if iteration <= before or (before < 0 and iteration < words[RESUMED_FROM]):
            if iteration != before or not self._evaluated:
                words[WENT_BACK] += 1
            self._evaluated = False

    def note_evaluation(self, iteration: int) -> None:
        """Say at which iteration a step of an evaluation is; the training step before or after it may be of the same.

        Raises:
            TypeError: It is no whole number.
            ValueError: It does not fit into 64 bits.
        """
        self._evaluated = True
        self.note_iteration(iteration)
        self._evaluated = True

    def note_checkpoint_loaded(self, iteration: int) -> None:
        """Say that training resumes from this iteration: where it is higher each time, the job gets on.

        What is no whole number of 64 bits is passed over.
        """
        self._note_highest(RESUMED_FROM, iteration)

    def note_checkpoint_saved(self, iteration: int) -> None:
        """Say that a checkpoint of this iteration is complete: where it is higher each time, the job gets on.

        What is no whole number of 64 bits is passed over.
        """
        self._note_highest(SAVED, iteration)

    def _note_highest(self, word: int, iteration: int) -> None:
        with contextlib.suppress(TypeError, ValueError):
            number = operator.index(iteration)
            if number > self._words[word]:
                self._words[word] = number

    def _not_open(self, name: object) -> RankMonitorClientError:
        if not self.is_initialized:
            return self._not_initialised("end_section()")
        if not isinstance(name, str):
            return no_name("end_section()", name)
        opened = ", ".join(f"'{other}'" for other in list(self._open)) or "none"
        return SectionError(f"section '{name}' is not open; open now: {opened}")

    def _new_section(self, name: str) -> _Section:
        with self._lock:
            self._require_init("start_section()")
            if not isinstance(name, str) or not name:
                raise no_name("start_section()", name)
            if self.cfg.names_sections and name not in self.cfg.rank_section_timeouts:
                raise UnconfiguredSectionError(unconfigured(name, self.cfg.rank_section_timeouts))
            has_timeout = name in self._section_timeouts.section
            section = self._sections.get(name)
            if section is None:  # else another thread was first
                section = self._prepare_section(name)
        if not has_timeout:
            _warn_once(
                "section '%s' has no timeout: the configuration names no sections, so they are measured without a "
                "limit until timeouts are calculated (said once)",
                name,
            )
        if section.deadline_word == NOT_SHOWN:
            _warn_once(
                "section '%s' is one of more than %d names; those beyond share one place, which shows the first "
                "that is due, without its name. Use fewer names (no iteration numbers in them) to have each named "
                "(said once)",
                name,
                MAX_SECTIONS - 1,
            )
        return section

    def _prepare_section(self, name: str) -> _Section:
        """Make a section that was not used before; only once it is ready do other threads and later calls find it.

        A signal handler may raise anywhere in it, or use the client itself.
        """
        section = _Section(name, self._slot_for(name))
        section.limit_ns = _ns(self._section_timeouts.section.get(name))
        if not self._has_used_section:
            self._note_first_sign()
            if self._words[OUT_OF_SECTION] == CLOSED:  # since the first heartbeat; a close need not say it again
                self._words[OUT_OF_SECTION] = NO_LIMIT
            if not self._section_events_are_heartbeats:
                self._words[HEARTBEAT] = CLOSED
            self._has_used_section = True
        if section.limit_ns is not None:
            self._tell_limit_of(section)
        section = self._sections.setdefault(name, section)
        while section.limit_ns != (limit_ns := _ns(self._section_timeouts.section.get(name))):
            section.limit_ns = limit_ns  # it has grown, or a handler has loaded another
        return section

    def _slot_for(self, name: str) -> int:
        if name in self._slots:
            return self._slots[name]
        return self._slots.setdefault(name, self._new_slot(name))

    def _new_slot(self, name: str) -> int:
        cell = self._cell
        if cell is None:  # a signal handler has shut down since the call began
            raise self._not_initialised("start_section()")
        try:
            return cell.add_section(name)
        except CellError:
            self._limits.share(name)
            self._shares = self._has_more_to_do = True
            return NOT_SHOWN

    # ---- learned timeouts -------------------------------------------------------------------------------

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """Heartbeat timeouts in force, None before init."""
        return self._hb_timeouts if self.is_initialized else None

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """Section timeouts in force, None before init."""
        return self._section_timeouts if self.is_initialized else None

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Learn both heartbeat timeouts from the longest intervals any rank saw. A collective.

        New limits apply from the next heartbeat on; where none was running, at once, counted from now.

        Args:
            skip_if_not_ready: Return False instead of raising when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TimeoutsNotReadyError: No rank has sent two heartbeats since the last calculation.
        """
        self._require_init("calculate_and_set_hb_timeouts()")
        now = monotonic_ns()
        later_count = max(0, self._heartbeats - 1)
        observed = now - self._learned_ns.get("heartbeat", self._began_ns)
        first, later, count, observed = maxima(
            [self._first_heartbeat_gap_ns, self._longest_heartbeat_gap_ns, later_count, observed]
        )
        if not self._limits.learn_heartbeats(Seen(first, 1, observed), Seen(later, count, observed), skip_if_not_ready):
            return False
        self._first_heartbeat_gap_ns = self._longest_heartbeat_gap_ns = 0
        self._heartbeats = min(1, self._heartbeats)  # none where the others' were learned from
        self._learned_ns["heartbeat"] = now
        with self._lock:
            self._put_limits_in_force()
            self._limit_what_has_none()
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn section timeouts from the longest intervals any rank saw. A collective.

        A new limit applies from the next time its section is opened. That of the time between sections applies at once,
        counted from now, where no limit was running: else a hang in the interval that is open would not be found.

        Args:
            selected_sections: Names to learn; all that any rank has used when None. Others keep theirs.
            calc_out_of_section: Learn the out-of-section timeout as well.
            skip_if_not_ready: Return False, and change nothing, when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TypeError: What is selected are no names.
            TimeoutsNotReadyError: A selected section was never closed on any rank, or nothing was seen at all.
        """
        self._require_init("calculate_and_set_section_timeouts()")
        now = monotonic_ns()
        used = {name for name, section in list(self._sections.items()) if section.count}
        selected = None if selected_sections is None else selected_names(selected_sections)
        # What was agreed before is asked for again, so that ranks with different names agree at once the next time.
        names = union_of_names(used | self._known_names if selected is None else selected)
        rows = [self._seen(name, now) for name in names]
        rows.append(Seen(self._longest_gap_ns, self._count_gaps(), now - self._learned_ns.get("gap", self._began_ns)))
        agreed = maxima([number for row in rows for number in row])
        *seen, gap = (Seen(*agreed[start : start + 3]) for start in range(0, len(agreed), 3))
        chosen = dict(zip(names, seen, strict=True))
        if selected is None:
            self._known_names.update(names)
            chosen = {name: each for name, each in chosen.items() if each.longest_ns}
        if not self._limits.learn_sections(chosen, gap if calc_out_of_section else None, skip_if_not_ready):
            return False
        for name in chosen:
            self._learned_ns[f"section {name}"] = now
            if name in self._sections:
                self._forgotten_closings += self._sections[name].count
                self._sections[name].longest_ns = self._sections[name].count = 0
        if calc_out_of_section:
            self._learned_ns["gap"] = now
            self._longest_gap_ns = 0
            self._gaps_learned_from += self._count_gaps()
        with self._lock:
            self._put_limits_in_force()
            self._limit_what_has_none()
        return True

    def _count_gaps(self) -> int:
        """How many times a section was opened while none was open, since the limit of these was learned.

        Counted from the rest, which spares the hot path a count of its own.
        """
        closings = self._forgotten_closings + sum(section.count for section in list(self._sections.values()))
        return closings + len(self._open) - self._nested_starts - self._gaps_learned_from

    def _seen(self, name: str, now: int) -> Seen:
        section = self._sections.get(name)
        longest, count = (section.longest_ns, section.count) if section is not None else (0, 0)
        return Seen(longest, count, now - self._learned_ns.get(f"section {name}", self._began_ns))

    def learned_summary(self) -> str:
        """What was learned, from how much, and which limits follow from it, in one line."""
        self._require_init("learned_summary()")
        return self._limits.summary()

    def undercut_limits(self) -> str:
        """Which learned limits in force are shorter than the configured ones; empty where none is."""
        self._require_init("undercut_limits()")
        return undercutting(self._limits.document())

    def spared_limits(self) -> dict[str, str]:
        """Which learned limits in force are longer because no restart is left, by kind; each in words."""
        self._require_init("spared_limits()")
        return self._limits.spared()

    def name_state_file(self, path: str | None) -> None:
        """Name the file that learned timeouts are kept in, for messages about limits that come from it."""
        self._state_file = path
        if self.is_initialized:
            self._limits.state_file = path

    def state_dict(self) -> dict[str, Any]:
        """The learned timeouts as JSON types, equal on all ranks; configured values are not part of it.

        Raises:
            RankMonitorClientError: Before the first ``init_workload_monitoring``.
        """
        if not self.is_initialized:
            if self._pending_state is None:
                raise self._not_initialised("state_dict()")
            return dict(self._pending_state)
        return self._limits.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over timeouts that an earlier run learned; ``learned_limits`` says which of them come into force.

        May be called before ``init_workload_monitoring``, too; then they apply from there on. To what is running, a
        longer limit applies from its beginning, and a shorter one from now on, but never later than the former one.

        Raises:
            RankMonitorClientError: The state does not have the shape that ``state_dict`` gives it.
        """
        timeouts_from_state(state, HeartbeatTimeouts(), SectionTimeouts())
        evidence_from_state(state)
        with self._lock:
            if not self.is_initialized:
                self._pending_state = dict(state)
                return
            self._limits.load(state)
            self._put_limits_in_force()
            self._limit_what_is_running()

    def _limit_what_is_running(self) -> None:
        """Let loaded limits apply to what is running: longer ones from its beginning, shorter ones from now on.

        So nothing expires by being loaded, and what hangs is not put off by loading again.
        """
        now = monotonic_ns()
        words = self._words

        def due(present: int, began_ns: int, limit_ns: int | None) -> int:
            # Closed, of an open section: another thread is just opening it.
            present = NO_LIMIT if present == CLOSED else present
            return max(_deadline(began_ns, limit_ns), min(present, _deadline(now, limit_ns)))

        def heartbeat() -> int:
            if words[HEARTBEAT] == CLOSED:
                return CLOSED
            # With a section used, it runs only where section events are heartbeats, too.
            is_first = not self._heartbeats and not self._has_used_section
            limit = _ns(self._hb_timeouts.initial) if is_first else self._heartbeat_limit_ns
            return due(words[HEARTBEAT], max(self._last_heartbeat_ns, words[LAST_HEARTBEAT]), limit)

        def out_of_section() -> int:
            if words[OUT_OF_SECTION] == CLOSED:
                return CLOSED
            return due(words[OUT_OF_SECTION], words[LEFT_SECTION], self._gap_limit_ns)

        self._store_until_true(HEARTBEAT, heartbeat)
        self._store_until_true(OUT_OF_SECTION, out_of_section)
        for section in list(self._open.values()):
            self._limit_open_section(section, due)
        if self._shares:
            self._share_deadline()

    def _limit_open_section(self, section: _Section, due: Callable[[int, int, int | None], int]) -> None:
        if section.deadline_word == NOT_SHOWN:  # which means nothing: it is one word for all of them
            while section.due != (
                wanted := (section.opened_ns, due(section.due[1], section.opened_ns, section.limit_ns))
            ):
                section.due = wanted
            return

        def deadline() -> int:
            if self._open.get(section.name) is not section:
                return CLOSED
            return due(self._words[section.deadline_word], section.opened_ns, section.limit_ns)

        self._store_until_true(section.deadline_word, deadline)

    def _store_until_true(self, word: int, value: Callable[[], int]) -> None:
        """Look again after each store: another thread may have begun or ended the interval meanwhile."""
        while self._words[word] != (wanted := value()):
            self._words[word] = wanted

    def _limit_what_has_none(self) -> None:
        """Let new limits apply to the intervals that run without any, from now on, as if these began now."""
        now = monotonic_ns()
        words = self._words
        if words[OUT_OF_SECTION] == NO_LIMIT:
            words[OUT_OF_SECTION] = _deadline(now, self._gap_limit_ns)
        if words[HEARTBEAT] == NO_LIMIT and self._heartbeats:
            words[HEARTBEAT] = _deadline(now, self._heartbeat_limit_ns)

    def _put_limits_in_force(self) -> None:
        """Turn timeouts in seconds into what the hot path reads, and tell the monitor how often to look."""
        self._hb_timeouts = self._limits.heartbeat_timeouts
        self._section_timeouts = timeouts = self._limits.section_timeouts
        self._heartbeat_limit_ns = _ns(self._hb_timeouts.subsequent)
        self._gap_limit_ns = _ns(timeouts.out_of_section)
        for section in list(self._sections.values()):
            section.limit_ns = _ns(timeouts.section.get(section.name))
        had_no_sections = self._section_events_are_heartbeats
        self._section_events_are_heartbeats = not timeouts.section
        self._has_more_to_do = self._section_events_are_heartbeats or self._shares
        if had_no_sections and timeouts.section and self._has_used_section:
            # Section events were its heartbeats, and from here on they are not: as with a first section, heartbeat
            # limits are off until it sends one.
            self._words[HEARTBEAT] = CLOSED
        limits = [self._hb_timeouts.initial, self._hb_timeouts.subsequent, timeouts.out_of_section]
        known = [limit for limit in [*limits, *timeouts.section.values()] if limit is not None]
        self._words[SMALLEST_LIMIT] = _ns(min(known, default=None)) or 0
        if self._cell is not None:
            self._tell_limits(self._cell)

    def _tell_limit_of(self, section: _Section) -> None:
        """Leave in the cell where the limit of a section comes from that is used for the first time."""
        if section.deadline_word == NOT_SHOWN:
            if self._limits.relaxes_shared:
                self._put_limits_in_force()  # its limit has just grown
                return
            if self._limits.shared_origin(section.name) in self._told_of_shared:
                return  # which spares a job that makes up names the time to write the text with each of them
        if self._cell is not None:
            self._tell_limits(self._cell)

    def _tell_limits(self, cell: Cell) -> None:
        """Leave in the cell where the limits in force come from, of all sections that have a slot."""
        self._tellings += 1
        telling = None
        while telling != self._tellings:  # a signal handler has told others in between: again, so that none is missing
            telling = self._tellings
            slots = list(self._slots.items())
            named = [name for name, slot in slots if slot != NOT_SHOWN]
            cell.write_text(LIMITS_TEXT, write_limits(self._limits.document(named), LIMITS_TEXT.size))
            shared = [self._limits.shared_origin(name) for name, slot in slots if slot == NOT_SHOWN]
            self._told_of_shared = {origin for origin in shared if origin is not None}

    # ---- a word to the launcher -------------------------------------------------------------------------

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher to go on, to leave this node out, or to end the job.

        Raises:
            RankMonitorClientError: Not initialised, or the launcher cannot be reached.
        """
        self._require_init("send_workload_control_request()")
        from resilience_core.monitoring.control import send

        path = os.environ.get(CONTROL_VARIABLE)
        if not path:
            raise RankMonitorClientError(
                f"no launcher listens for workload control requests ({CONTROL_VARIABLE} is not set); "
                "this rank was started by a monitor alone"
            )
        send(request, path, int(os.environ.get("RANK", "0")))

    # ---- errors -----------------------------------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: two clients would write the same words.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a RankMonitorClient cannot be copied or pickled, since it belongs to the process that made it; leave it "
            "out of what is copied, or make one in each process"
        )

    def _require_init(self, call: str) -> None:
        if not self.is_initialized:
            raise self._not_initialised(call)

    def _not_initialised(self, call: str) -> RankMonitorClientError:
        if self._was_shut_down:
            return RankMonitorClientError(
                f"{call} comes after shutdown_workload_monitoring(), which has switched monitoring off; leave it out, "
                "or call init_workload_monitoring() again before it"
            )
        return RankMonitorClientError(f"{call} needs monitoring; call init_workload_monitoring() first")

    def cut_off(self) -> None:
        """In a forked child: go on without effect, in a cell that nobody reads."""
        self._was_cut_off = True
        self._lock = threading.RLock()  # another thread of the parent may have held it
        if self._cell is not None:
            self._cell = Cell.detached()
            self._words = self._cell.words
        else:  # perhaps while another thread of the parent was initialising it
            self._words = _private_words()


def _warn_once(message: str, *arguments: object) -> None:
    """Log a warning that this process has not logged before, through whichever client."""
    if message not in _warned:
        _warned.add(message)
        logger.warning(message, *arguments)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else min(int(seconds * NS_PER_SECOND), LONGEST_LIMIT_NS)


def _deadline(now: int, limit_ns: int | None) -> int:
    return NO_LIMIT if limit_ns is None else now + limit_ns


def _private_words() -> memoryview:
    return memoryview(bytearray(CELL_SIZE)).cast("q")
