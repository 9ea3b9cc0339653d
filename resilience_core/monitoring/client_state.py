"""What a client remembers between two calls: the cell's words, its sections, its intervals and their limits.

One record, so that a call on the hot path loads one attribute of the client, and works on slots from there. It keeps
the numbers and decides nothing; the client's hot path and its collaborators store into it.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time

from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.handled import HandledAtHeartbeats
from resilience_core.monitoring.learned_limits import Seen
from resilience_core.monitoring.saves_beside_steps import SavesBesideSteps
from resilience_core.monitoring.section_state import FigureRow, Section, plausible
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CELL_SIZE,
    CLOSED,
    ITERATION,
    NO_LIMIT,
    NOT_SHOWN,
    RESUMED_FROM,
    SAVED,
)
from resilience_core.protocol.figures import PASSED, figures_path, open_figures, private_figures, row_of
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["ClientState", "deadline_after", "to_ns"]

LONGEST_LIMIT_NS = 2**62
"""More than a century; with the clock added it still fits into a word."""


class ClientState:
    """The state of one client. Times are ``CLOCK_MONOTONIC`` nanoseconds, limits nanoseconds; None is no limit."""

    __slots__ = (
        "began_ns",
        "beside",
        "cell",
        "events_are_heartbeats",
        "figures",
        "first_heartbeat_gap_ns",
        "forgotten_closings",
        "gap_limit_ns",
        "gaps_learned_from",
        "handled",
        "has_more_to_do",
        "has_used_section",
        "heartbeat_limit_ns",
        "heartbeats",
        "last_heartbeat_ns",
        "learned_ns",
        "leaving",
        "left_section_ns",
        "lock",
        "longest_gap_ns",
        "longest_heartbeat_gap_ns",
        "nested_starts",
        "open",
        "rows",
        "sections",
        "shared_word",
        "shares",
        "steps_ended",
        "was_evaluation",
        "was_shut_down",
        "words",
    )

    def __init__(self) -> None:
        self.cell: Cell | None = None
        """The cell that is being written; None before the initialisation and after the shutdown."""
        self.words: memoryview = private_words()
        """The cell's; before and after it some that nobody reads, so that no store has to ask."""
        self.figures: memoryview = private_figures()
        """The file of figures beside the cell; private words where there is none."""
        self.rows: dict[int, FigureRow] = {}
        """By number."""
        self.steps_ended = 0
        """Training steps in this generation, whatever has ended them."""
        self.was_shut_down = False
        self.was_evaluation = False
        """A step of an evaluation was the last to report its iteration."""
        self.events_are_heartbeats = False
        """No section has a limit, so section events stand in for heartbeats."""
        self.heartbeat_limit_ns: int | None = None
        self.gap_limit_ns: int | None = None
        self.leaving: set[int] = set()
        """The threads that are inside ``leaving_sections``."""
        self.handled = HandledAtHeartbeats()
        # Of first calls, of loading and learning limits, of the beginning and of the shutdown. Never taken by a
        # heartbeat or a section event after the first. Held for no input or output; a signal handler may come between.
        self.lock = threading.RLock()
        self.shared_word = 0
        """The deadline word of the slot that sections beyond the others share."""
        self.sections: dict[str, Section] = {}
        self.open: dict[str, Section] = {}
        self._reset_sections()
        self._reset_intervals(0)

    def begin(self, cell: Cell, shared_word: int, now: int) -> None:
        """Write into a cell from now on.

        Args:
            cell: The cell, which counts as initialised only once it is stored in ``self.cell``.
            shared_word: The deadline word of the slot that sections beyond the others share.
            now: The first instant of all intervals.
        """
        self.words = cell.words
        self.figures, self.rows = open_figures(figures_path(cell.path)), {}
        self.steps_ended = plausible(self.figures[PASSED])
        self.shared_word = shared_word
        self._reset_sections()
        self._reset_intervals(now)

    def end(self) -> None:
        """Write to private memory from now on; the observed intervals are kept.

        The cell is not unmapped: another thread may be in a call, whose stores must not raise. They mean nothing until
        this cell is initialised again.
        """
        self.was_shut_down = True
        self.words = private_words()
        self.figures = private_figures()
        self.sections = {}
        self.open = {}
        self.heartbeats = 0  # so that the next one looks whether we are initialised
        self.cell = None

    def give_up(self) -> None:
        """Undo a :meth:`begin` that was not completed."""
        self.cell = None
        self.words = private_words()
        self.figures = private_figures()

    def detach(self) -> None:
        """In a forked child: go on without effect, in a cell that nobody reads."""
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self.figures = private_figures()
        if self.cell is not None:
            self.cell = Cell.detached()
            self.words = self.cell.words
        else:  # perhaps while another thread of the parent was initialising it
            self.words = private_words()

    def _reset_sections(self) -> None:
        self.sections = {}
        self.open = {}
        self.beside = SavesBesideSteps(self.sections, self.open)
        self.has_used_section = False
        self.shares = False
        """Some sections share a slot."""
        self.has_more_to_do = self.events_are_heartbeats
        """A section event has more to store than its own words: those of a shared slot, or of a heartbeat."""

    def _reset_intervals(self, now: int) -> None:
        """Reset the observed intervals, starting at ``now``."""
        self.began_ns = now
        self.last_heartbeat_ns = now
        self.first_heartbeat_gap_ns = 0
        self.longest_heartbeat_gap_ns = 0
        self.heartbeats = 0
        self.left_section_ns = now
        self.longest_gap_ns = 0
        self.nested_starts = 0
        self.forgotten_closings = 0
        self.gaps_learned_from = 0
        self.learned_ns: dict[str, int] = {}
        """When each kind of interval was last learned from."""

    def row_of(self, name: str) -> FigureRow:
        """Return the row of a section's figures. Under the lock."""
        number = row_of(self.figures, name)
        return self.rows.setdefault(number, FigureRow(number, self.figures))

    # ---- checks -----------------------------------------------------------------------------------------

    def require_init(self, call: str) -> None:
        """Refuse a call that needs monitoring.

        Raises:
            RankMonitorClientError: The client is not initialised.
        """
        if self.cell is None:
            raise self.not_initialised(call)

    def not_initialised(self, call: str) -> RankMonitorClientError:
        """Return the error of a call before ``init_workload_monitoring``, or after shutdown."""
        if self.was_shut_down:
            return RankMonitorClientError(
                f"{call} comes after shutdown_workload_monitoring(), which has switched monitoring off; leave it out, "
                "or call init_workload_monitoring() again before it"
            )
        return RankMonitorClientError(f"{call} needs monitoring; call init_workload_monitoring() first")

    # ---- checkpoints ------------------------------------------------------------------------------------

    def note_loaded(self, iteration: int) -> None:
        """Store the iteration of a checkpoint that was loaded, where it is the highest so far."""
        self._store_highest(RESUMED_FROM, iteration)

    def note_finalized(self, iteration: int) -> None:
        """Store how far training had come when a checkpoint was complete, where it is the highest so far."""
        self._store_highest(SAVED, iteration)

    def note_saved(self, iteration: int, began_ns: int | None) -> None:
        """Store the iteration of a checkpoint that was saved, where it is the highest so far, and what is in it."""
        self._store_highest(SAVED, iteration)
        with contextlib.suppress(TypeError, ValueError):
            number, now = operator.index(iteration), time.monotonic_ns()
            begun = -1 if self.was_evaluation else self.words[ITERATION]
            self.beside.note_save(self.figures, number, now, self.left_section_ns, began_ns, begun)

    def _store_highest(self, word: int, iteration: int) -> None:
        with contextlib.suppress(TypeError, ValueError):
            number = operator.index(iteration)
            if number > self.words[word]:
                self.words[word] = number

    # ---- sections that share a slot ---------------------------------------------------------------------

    def share_deadline(self) -> None:
        """Show the first that is due of the open sections without a slot of their own.

        Check again after each store, so that the last of several threads leaves the correct value.
        """
        words, deadline_word = self.words, self.shared_word
        while (words[deadline_word + 1], words[deadline_word]) != (shown := self._first_shared()):
            words[deadline_word] = NO_LIMIT  # not the former deadline with the other section's time of opening
            words[deadline_word + 1], words[deadline_word] = shown

    def _first_shared(self) -> tuple[int, int]:
        """Return when the first that is due was opened, and its deadline; ``CLOSED`` once none is open."""
        shared = [each for each in list(self.open.values()) if each.deadline_word == NOT_SHOWN]
        # One that another thread is just opening still has its previous deadline; that thread stores the new one next.
        due = [each.due for each in shared if each.due[0] == each.opened_ns]
        return min(due, key=lambda pair: pair[1]) if due else (self.words[self.shared_word + 1], CLOSED)

    # ---- what was observed ------------------------------------------------------------------------------

    def seen_of_section(self, name: str, now: int) -> Seen:
        """Return what was seen of a section since its limit was learned."""
        section = self.sections.get(name)
        longest, count = (section.longest_ns, section.count) if section is not None else (0, 0)
        return Seen(longest, count, now - self.learned_ns.get(f"section {name}", self.began_ns))

    def seen_of_gaps(self, now: int) -> Seen:
        """Return what was seen of the time between sections since its limit was learned."""
        return Seen(self.longest_gap_ns, self._count_gaps(), now - self.learned_ns.get("gap", self.began_ns))

    def forget_section(self, name: str, now: int) -> None:
        """Begin to observe a section anew: its limit was learned."""
        self.learned_ns[f"section {name}"] = now
        if name in self.sections:
            self.forgotten_closings += self.sections[name].count
            self.sections[name].longest_ns = self.sections[name].count = 0

    def forget_gaps(self, now: int) -> None:
        """Begin to observe the time between sections anew: its limit was learned."""
        self.learned_ns["gap"] = now
        self.longest_gap_ns = 0
        self.gaps_learned_from += self._count_gaps()

    def forget_heartbeats(self, now: int) -> None:
        """Begin to observe heartbeats anew: their limits were learned."""
        self.first_heartbeat_gap_ns = self.longest_heartbeat_gap_ns = 0
        self.heartbeats = min(1, self.heartbeats)  # none where the others' were learned from
        self.learned_ns["heartbeat"] = now

    def _count_gaps(self) -> int:
        """Return how many times a section was opened while none was open, since the limit of these was learned.

        Counted from the rest, which spares the hot path a count of its own.
        """
        closings = self.forgotten_closings + sum(section.count for section in list(self.sections.values()))
        return closings + len(self.open) - self.nested_starts - self.gaps_learned_from


def to_ns(seconds: float | None) -> int | None:
    """Convert a limit from seconds to nanoseconds that fit into a word."""
    return None if seconds is None else min(int(seconds * NS_PER_SECOND), LONGEST_LIMIT_NS)


def deadline_after(now: int, limit_ns: int | None) -> int:
    """Return the deadline word of an interval that begins now."""
    return NO_LIMIT if limit_ns is None else now + limit_ns


def private_words() -> memoryview:
    """Return words that nobody else reads."""
    return memoryview(bytearray(CELL_SIZE)).cast("q")
