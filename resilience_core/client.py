"""RankMonitorClient: heartbeats and sections of one rank, stored where its monitor looks.

A call on the hot path reads the clock once and stores a few aligned words; it makes no system call, takes no
lock and cannot be refused. Everything that may fail (a missing launcher, a misspelt section) fails in
``init_workload_monitoring`` or at the first use of a name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from resilience_core.agreement import gather_json
from resilience_core.cell import (
    CELL_SIZE,
    CLOSED,
    FIRST_SIGN,
    HEARTBEAT,
    INITIALISED,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    NO_LIMIT,
    OUT_OF_SECTION,
    SHUT_DOWN,
    SMALLEST_LIMIT,
    STATE,
    WATCHED,
    Cell,
    CellError,
    process_start_time,
)
from resilience_core.error_record import note_error, record_errors_in, stop_recording
from resilience_core.errors import (
    RankMonitorClientError,
    SectionError,
    TimeoutsNotReadyError,
    UnconfiguredSectionError,
)
from resilience_core.rank_process import (
    allow_stack_dumps,
    answer_for_stacks,
    cut_off_in_children,
    log_and_leave,
    stop_answering,
)
from resilience_core.timeouts import (
    NANOSECONDS,
    HeartbeatTimeouts,
    SectionTimeouts,
    learn_heartbeats,
    learn_sections,
    learn_timeout,
    timeouts_from_state,
    timeouts_to_state,
)

if TYPE_CHECKING:
    from resilience_core.config import FaultToleranceConfig
    from resilience_core.control import WorkloadControlRequest

__all__ = ["CELL_VARIABLE", "CONFIG_VARIABLE", "CONTROL_VARIABLE", "LAUNCHER_VARIABLE", "RankMonitorClient"]

CELL_VARIABLE = "FT_CELL"
CONFIG_VARIABLE = "FT_CONFIG_FILE"
CONTROL_VARIABLE = "FT_CONTROL_SOCKET"
LAUNCHER_VARIABLE = "FT_LAUNCHER_PID"


logger = logging.getLogger(__name__)


_clients: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()


class _Section:
    """What the client keeps of one section name."""

    __slots__ = ("deadline_word", "limit_ns", "longest_ns", "name", "opened_ns", "opened_word", "was_seen")

    def __init__(self, name: str, deadline_word: int) -> None:
        self.name = name
        self.deadline_word = deadline_word
        self.opened_word = deadline_word + 1
        self.limit_ns: int | None = None
        self.opened_ns = 0
        self.longest_ns = 0
        self.was_seen = False


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

    def __init__(self) -> None:
        self._cfg: FaultToleranceConfig | None = None
        self._cell: Cell | None = None
        self._words: memoryview = _private_words()
        self._sections: dict[str, _Section] = {}
        self._open: dict[str, _Section] = {}
        self._pending_state: Mapping[str, Any] | None = None
        self._stack_file: TextIO | None = None
        self._was_cut_off = False
        self._has_sent_heartbeat = False
        self._has_used_section = False
        self._section_events_are_heartbeats = False
        self._forget_observations(0)

    # ---- life -------------------------------------------------------------------------------------------

    def init_workload_monitoring(self) -> None:
        """Begin to be monitored: the initial heartbeat and the out-of-section timeouts start to run.

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
        from resilience_core.config import FaultToleranceConfig

        try:
            with open(config_path, encoding="utf-8") as file:
                self._cfg = FaultToleranceConfig.from_json(file.read())
            cell = Cell(path)
            cell.claim(os.getpid(), process_start_time(os.getpid()) or 0)
        except OSError as error:
            raise RankMonitorClientError(
                f"{CONFIG_VARIABLE} leads to {config_path}, which cannot be read: {error.strerror}; the launcher that "
                "set it is gone"
            ) from error
        except CellError as error:
            raise RankMonitorClientError(str(error)) from error
        self._was_cut_off = False
        self._cell = cell
        self._words = cell.words
        self._start(time.monotonic_ns())
        allow_stack_dumps(int(os.environ.get(LAUNCHER_VARIABLE, "0")))
        if self._cfg.capture_stacks:
            self._stack_file = answer_for_stacks(path)
        _clients.add(self)
        cut_off_in_children(self)
        if self._cfg.install_exception_hook:
            sys.excepthook = log_and_leave
        record_errors_in(cell)

    def _start(self, now: int) -> None:
        self._sections = {}
        self._open = {}
        self._has_sent_heartbeat = False
        self._has_used_section = False
        self._unlimited_said = False
        self._forget_observations(now)
        self._hb_timeouts = HeartbeatTimeouts(
            initial=self.cfg.initial_rank_heartbeat_timeout, subsequent=self.cfg.rank_heartbeat_timeout
        )
        self._section_timeouts = SectionTimeouts(
            section=dict(self.cfg.rank_section_timeouts), out_of_section=self.cfg.rank_out_of_section_timeout
        )
        if self._pending_state is not None:
            self._take_state(self._pending_state)
        self._put_limits_in_force()
        words = self._words
        words[LAST_HEARTBEAT] = words[LEFT_SECTION] = now
        words[HEARTBEAT] = _deadline(now, _ns(self._hb_timeouts.initial))
        words[OUT_OF_SECTION] = _deadline(now, self._gap_limit_ns)
        words[INITIALISED] = now
        words[STATE] = WATCHED

    def _forget_observations(self, now: int) -> None:
        """Begin a new life of intervals; ``now`` is its first instant."""
        self._last_heartbeat_ns = now
        self._first_heartbeat_gap_ns = 0
        self._longest_heartbeat_gap_ns = 0
        self._left_section_ns = now
        self._longest_gap_ns = 0

    def shutdown_workload_monitoring(self) -> None:
        """Switch protection off: from here on this rank may take as long as it likes."""
        if self._cell is None:
            return
        words = self._words
        words[STATE] = SHUT_DOWN
        self._pending_state = self.state_dict()
        self._words = _private_words()
        self._sections = {}
        self._open = {}
        self._has_sent_heartbeat = False  # so that the next one looks whether we are initialised
        stop_recording()
        self._cell.close()
        self._cell = None
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
        now = time.monotonic_ns()
        words = self._words
        gap = now - self._last_heartbeat_ns
        self._last_heartbeat_ns = now
        if not self._has_sent_heartbeat:
            self._first_heartbeat(gap)
        elif gap > self._longest_heartbeat_gap_ns:
            self._longest_heartbeat_gap_ns = gap
        limit = self._heartbeat_limit_ns
        words[HEARTBEAT] = NO_LIMIT if limit is None else now + limit
        words[LAST_HEARTBEAT] = now

    def _first_heartbeat(self, gap: int) -> None:
        self._require_init("send_heartbeat()")
        self._has_sent_heartbeat = True
        self._first_heartbeat_gap_ns = gap
        self._note_first_sign()
        if not self._has_used_section:
            self._words[OUT_OF_SECTION] = CLOSED

    def _note_first_sign(self) -> None:
        """For the diary of the restart: when this process first used either API."""
        if self._words[FIRST_SIGN] == 0:
            self._words[FIRST_SIGN] = time.monotonic_ns()

    # ---- sections ---------------------------------------------------------------------------------------

    def start_section(self, name: str) -> None:
        """Open a section: it must be closed within its timeout.

        Args:
            name: One of the configured sections, or any name where the configuration has none.

        Raises:
            SectionError: It is open already, or not configured although others are.
            RankMonitorClientError: Before ``init_workload_monitoring`` or after shutdown.
        """
        now = time.monotonic_ns()
        section = self._sections.get(name) or self._new_section(name)
        opened = self._open
        if not opened:
            gap = now - self._left_section_ns
            if gap > self._longest_gap_ns:
                self._longest_gap_ns = gap
        elif name in opened:
            raise SectionError(f"section '{name}' is open already; sections of one name do not nest")
        opened[name] = section
        section.opened_ns = now
        words = self._words
        limit = section.limit_ns
        words[section.opened_word] = now
        words[section.deadline_word] = NO_LIMIT if limit is None else now + limit
        if self._section_events_are_heartbeats:
            words[HEARTBEAT] = _deadline(now, self._heartbeat_limit_ns)
            words[LAST_HEARTBEAT] = now

    def end_section(self, name: str) -> None:
        """Close a section.

        Raises:
            SectionError: It is not open.
        """
        now = time.monotonic_ns()
        section = self._open.pop(name, None)
        if section is None:
            raise self._not_open(name)
        took = now - section.opened_ns
        if took > section.longest_ns:
            section.longest_ns = took
            section.was_seen = True
        self._left_section_ns = now
        words = self._words
        limit = self._gap_limit_ns
        words[LEFT_SECTION] = now
        words[OUT_OF_SECTION] = NO_LIMIT if limit is None else now + limit
        words[section.deadline_word] = CLOSED
        if self._section_events_are_heartbeats:
            words[HEARTBEAT] = _deadline(now, self._heartbeat_limit_ns)
            words[LAST_HEARTBEAT] = now

    def end_all_sections(self) -> None:
        """Close every section that is open; none is no error."""
        for name in list(self._open):
            with contextlib.suppress(SectionError):  # another thread closed it meanwhile
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
            # end_all_sections() inside the block, or a shutdown, may have closed it.
            if name in self._open:
                self.end_section(name)

    @property
    def open_sections(self) -> frozenset[str]:
        """Names of the sections that are open now."""
        return frozenset(self._open)

    def note_iteration(self, iteration: int) -> None:
        """Tell the monitor's story which iteration this is. Decides nothing."""
        self._words[ITERATION] = iteration

    def _not_open(self, name: str) -> RankMonitorClientError:
        if not self.is_initialized:
            return self._not_initialised("end_section()")
        opened = ", ".join(f"'{other}'" for other in self._open) or "none"
        return SectionError(f"section '{name}' is not open; open now: {opened}")

    def _new_section(self, name: str) -> _Section:
        self._require_init("start_section()")
        if not isinstance(name, str) or not name:
            raise SectionError(f"a section's name must be a string that is not empty, not {name!r}")
        if self.cfg.names_sections and name not in self.cfg.rank_section_timeouts:
            raise UnconfiguredSectionError(_unconfigured(name, self.cfg.rank_section_timeouts))
        if name not in self._section_timeouts.section and not self._unlimited_said:
            self._unlimited_said = True
            logger.warning(
                "section '%s' has no timeout: the configuration names no sections, so they are measured without a "
                "limit until timeouts are calculated (said once)",
                name,
            )
        assert self._cell is not None
        try:
            section = _Section(name, self._cell.add_section(name))
        except CellError as error:
            raise SectionError(str(error)) from error
        section.limit_ns = _ns(self._section_timeouts.section.get(name))
        self._sections[name] = section
        if not self._has_used_section:
            self._has_used_section = True
            self._note_first_sign()
            if not self._section_events_are_heartbeats:
                self._words[HEARTBEAT] = CLOSED
        return section

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

        Args:
            skip_if_not_ready: Return False instead of raising when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TimeoutsNotReadyError: No rank has sent two heartbeats since the last calculation.
        """
        self._require_init("calculate_and_set_hb_timeouts()")
        seen = gather_json([self._first_heartbeat_gap_ns, self._longest_heartbeat_gap_ns])
        first, later = (max(rank[index] for rank in seen) for index in (0, 1))
        # The first heartbeat comes once in a life of a process; a later calculation keeps what it taught.
        if later == 0 or (first == 0 and not self._hb_timeouts.were_calculated):
            return _not_ready("heartbeat timeouts: send at least two heartbeats first", skip_if_not_ready)
        self._hb_timeouts = learn_heartbeats(self._hb_timeouts, first, later, self._learn_one)
        self._first_heartbeat_gap_ns = 0
        self._longest_heartbeat_gap_ns = 0
        self._put_limits_in_force()
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn section timeouts from the longest intervals any rank saw. A collective.

        A new limit applies from the next time its section is opened.

        Args:
            selected_sections: Names to learn; all that any rank has used when None. Others keep theirs.
            calc_out_of_section: Learn the out-of-section timeout as well.
            skip_if_not_ready: Return False, and change nothing, when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TimeoutsNotReadyError: A selected section was never closed on any rank, or nothing was seen at all.
        """
        self._require_init("calculate_and_set_section_timeouts()")
        own = {s.name: s.longest_ns for s in self._sections.values() if s.was_seen}
        seen = gather_json({"sections": own, "gap": self._longest_gap_ns})
        longest: dict[str, int] = {}
        for rank in seen:
            for name, took in rank["sections"].items():
                longest[name] = max(took, longest.get(name, 0))
        gap = max(rank["gap"] for rank in seen) if calc_out_of_section else None
        # A string is a sequence of letters, and surely not what was meant.
        selected = [selected_sections] if isinstance(selected_sections, str) else selected_sections
        names = sorted(longest) if selected is None else sorted(set(selected))
        missing = [name for name in names if name not in longest]
        if missing or gap == 0 or not (names or calc_out_of_section):
            what = f"section(s) {', '.join(missing)} not seen" if missing else "no interval was seen"
            return _not_ready(f"section timeouts: {what} on any rank since the last time", skip_if_not_ready)
        chosen = {name: longest[name] for name in names}
        self._section_timeouts = learn_sections(self._section_timeouts, chosen, gap, self._learn_one)
        self._forget_what_was_learnt(names, with_gap=gap is not None)
        self._put_limits_in_force()
        return True

    def _forget_what_was_learnt(self, names: Iterable[str], with_gap: bool) -> None:
        for section in (self._sections[name] for name in names if name in self._sections):
            section.longest_ns = 0
            section.was_seen = False
        if with_gap:
            self._longest_gap_ns = 0

    def _learn_one(self, longest_ns: int, in_force: float | None, was_learned: bool) -> float:
        return learn_timeout(
            longest_ns / NANOSECONDS,
            in_force,
            was_learned=was_learned,
            safety_factor=self.cfg.safety_factor,
            floor_seconds=self.cfg.learned_timeout_floor,
        )

    def state_dict(self) -> dict[str, Any]:
        """The learned timeouts as JSON types, equal on all ranks; configured values are not part of it.

        Raises:
            RankMonitorClientError: Before the first ``init_workload_monitoring``.
        """
        if not self.is_initialized:
            if self._pending_state is None:
                raise self._not_initialised("state_dict()")
            return dict(self._pending_state)
        return timeouts_to_state(self._hb_timeouts, self._section_timeouts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over timeouts that an earlier run learned; they beat the configured ones.

        May be called before ``init_workload_monitoring``, too; then they apply from there on.

        Raises:
            RankMonitorClientError: The state does not have the shape that ``state_dict`` gives it.
        """
        timeouts_from_state(state, HeartbeatTimeouts(), SectionTimeouts())
        if not self.is_initialized:
            self._pending_state = dict(state)
            return
        self._take_state(state)
        self._put_limits_in_force()
        self._restart_running_deadlines()

    def _take_state(self, state: Mapping[str, Any]) -> None:
        self._hb_timeouts, self._section_timeouts = timeouts_from_state(
            state, self._hb_timeouts, self._section_timeouts
        )

    def _restart_running_deadlines(self) -> None:
        """Let loaded limits apply at once to what is running, from now on, so that none expires by being loaded."""
        now = time.monotonic_ns()
        words = self._words
        if words[HEARTBEAT] != CLOSED:
            initial = _ns(self._hb_timeouts.initial)
            words[HEARTBEAT] = _deadline(now, self._heartbeat_limit_ns if self._has_sent_heartbeat else initial)
        if words[OUT_OF_SECTION] != CLOSED:
            words[OUT_OF_SECTION] = _deadline(now, self._gap_limit_ns)
        for section in list(self._open.values()):
            words[section.deadline_word] = _deadline(now, section.limit_ns)

    def _put_limits_in_force(self) -> None:
        """Turn timeouts in seconds into what the hot path reads, and tell the monitor how often to look."""
        timeouts = self._section_timeouts
        self._heartbeat_limit_ns = _ns(self._hb_timeouts.subsequent)
        self._gap_limit_ns = _ns(timeouts.out_of_section)
        for section in self._sections.values():
            section.limit_ns = _ns(timeouts.section.get(section.name))
        had_no_sections = self._section_events_are_heartbeats
        self._section_events_are_heartbeats = not timeouts.section
        if had_no_sections and timeouts.section and self._has_used_section:
            # Section events were its heartbeats, and from here on they are not: as with a first section, heartbeat
            # limits are off until it sends one.
            self._words[HEARTBEAT] = CLOSED
        limits = [self._hb_timeouts.initial, self._hb_timeouts.subsequent, timeouts.out_of_section]
        known = [limit for limit in [*limits, *timeouts.section.values()] if limit is not None]
        self._words[SMALLEST_LIMIT] = _ns(min(known, default=None)) or 0

    # ---- a word to the launcher -------------------------------------------------------------------------

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher to go on, to leave this node out, or to end the job.

        Raises:
            RankMonitorClientError: Not initialised, or the launcher cannot be reached.
        """
        self._require_init("send_workload_control_request()")
        from resilience_core.control import send

        path = os.environ.get(CONTROL_VARIABLE)
        if not path:
            raise RankMonitorClientError(
                f"no launcher listens for workload control requests ({CONTROL_VARIABLE} is not set); "
                "this rank was started by a monitor alone"
            )
        send(request, path, int(os.environ.get("RANK", "0")))

    # ---- errors -----------------------------------------------------------------------------------------

    def _require_init(self, call: str) -> None:
        if not self.is_initialized:
            raise self._not_initialised(call)

    def _not_initialised(self, call: str) -> RankMonitorClientError:
        return RankMonitorClientError(f"{call} needs monitoring; call init_workload_monitoring() first")

    def cut_off(self) -> None:
        """In a forked child: go on without effect, in a cell that nobody reads."""
        self._was_cut_off = True
        if self._cell is not None:
            self._cell = Cell.detached()
            self._words = self._cell.words


def _not_ready(what: str, skip: bool) -> bool:
    if skip:
        return False
    raise TimeoutsNotReadyError(f"cannot calculate {what}; or pass skip_if_not_ready=True")


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * NANOSECONDS)


def _deadline(now: int, limit_ns: int | None) -> int:
    return NO_LIMIT if limit_ns is None else now + limit_ns


def _private_words() -> memoryview:
    return memoryview(bytearray(CELL_SIZE)).cast("q")


def _unconfigured(name: str, configured: Iterable[str]) -> str:
    import difflib

    names = sorted(configured)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"configured: {', '.join(names)}."
    return (
        f"section '{name}' is used but not in rank_section_timeouts; {hint} Add '{name}' with a timeout in seconds, "
        "or null for no limit"
    )
