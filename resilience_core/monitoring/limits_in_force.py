"""The limits of one client: put in force, learned together with the other ranks, kept and loaded.

:class:`LearnedLimits` decides which limit is in force, in seconds. This module turns it into the nanoseconds that
the hot path reads, brings intervals that are running under new limits, and tells the monitor where each comes from.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from resilience_core.monitoring.client_arguments import selected_names
from resilience_core.monitoring.client_state import ClientState, to_ns
from resilience_core.monitoring.collectives import maxima, union_of_names
from resilience_core.monitoring.learned_limits import LearnedLimits, Seen
from resilience_core.monitoring.limit_resolver import no_restart_is_left
from resilience_core.monitoring.running_limits import limit_what_has_none, limit_what_is_running
from resilience_core.monitoring.section_state import Section
from resilience_core.monitoring.timeouts import (
    HeartbeatTimeouts,
    SectionTimeouts,
    evidence_from_state,
    timeouts_from_state,
)
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import CLOSED, HEARTBEAT, LIMITS_TEXT, NOT_SHOWN, SMALLEST_LIMIT
from resilience_core.protocol.limit_entry import SharedOrigin
from resilience_core.protocol.limit_messages import undercutting
from resilience_core.protocol.limits_text import write_limits

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig

__all__ = ["LimitsInForce"]

logger = logging.getLogger(__name__)


class LimitsInForce:
    """Configured and learned limits, applied to a client's state.

    Args:
        state: The client's.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._pending: Mapping[str, Any] | None = None
        self._state_file: str | None = None
        self.slots: dict[str, int] = {}
        """The deadline word of each section that was used, by name; ``NOT_SHOWN`` of those that share a slot."""
        self._tellings = 0
        self._told_of_shared: set[SharedOrigin] = set()

    def begin(self, config: FaultToleranceConfig, cell: Cell, relaxed: Mapping[str, int]) -> None:
        """Put the limits of a configuration in force, and those that were learned before on top of them.

        Args:
            config: The configuration.
            cell: The cell, in which it is left where the limits come from.
            relaxed: Verdicts that each learned limit has led to in this job.
        """
        self.config = config
        self.slots = {}
        self._told_of_shared = set()
        self._limits = LearnedLimits(
            config,
            relaxed,
            self._state_file,
            is_last=no_restart_is_left(os.environ),
        )
        self._known_names: set[str] = set()
        if self._pending is not None:
            self._limits.load(self._pending)
        self.apply()
        self._tell(cell)

    def end(self) -> None:
        """Keep what was learned for a later initialisation."""
        self._pending = self._limits.state_dict()

    # ---- in force ---------------------------------------------------------------------------------------

    def apply(self) -> None:
        """Turn timeouts in seconds into what the hot path reads, and tell the monitor how often to look."""
        state = self._state
        self.heartbeat_timeouts: HeartbeatTimeouts = self._limits.heartbeat_timeouts
        self.section_timeouts: SectionTimeouts = self._limits.section_timeouts
        timeouts = self.section_timeouts
        state.heartbeat_limit_ns = to_ns(self.heartbeat_timeouts.subsequent)
        state.gap_limit_ns = to_ns(timeouts.out_of_section)
        for section in list(state.sections.values()):
            section.limit_ns = to_ns(timeouts.section.get(section.name))
            section.notable_ns = 0  # to be found anew with that limit
        had_no_sections = state.events_are_heartbeats
        state.events_are_heartbeats = not timeouts.section
        state.has_more_to_do = state.events_are_heartbeats or state.shares or bool(state.leaving)
        if had_no_sections and timeouts.section and state.has_used_section:
            # Section events were its heartbeats, and from here on they are not: as with a first section, heartbeat
            # limits are off until it sends one.
            state.words[HEARTBEAT] = CLOSED
        limits = [self.heartbeat_timeouts.initial, self.heartbeat_timeouts.subsequent, timeouts.out_of_section]
        known = [limit for limit in [*limits, *timeouts.section.values()] if limit is not None]
        state.words[SMALLEST_LIMIT] = to_ns(min(known, default=None)) or 0
        if state.cell is not None:
            self._tell(state.cell)

    def limit_ns(self, name: str) -> int | None:
        """Return the limit of a section, nanoseconds."""
        return to_ns(self.section_timeouts.section.get(name))

    def share(self, name: str) -> None:
        """Note that a section has no slot of its own."""
        self._limits.share(name)
        self._state.shares = self._state.has_more_to_do = True

    def tell_limit_of(self, section: Section) -> None:
        """Leave in the cell where the limit of a section comes from that is used for the first time."""
        if section.deadline_word == NOT_SHOWN:
            if self._limits.relaxes_shared:
                self.apply()  # its limit has just grown
                return
            if self._limits.shared_origin(section.name) in self._told_of_shared:
                return  # a job that makes up names need not write the text for each of them
        if self._state.cell is not None:
            self._tell(self._state.cell)

    def _tell(self, cell: Cell) -> None:
        """Leave in the cell where the limits in force come from, of all sections that have a slot."""
        self._tellings += 1
        telling = None
        while telling != self._tellings:  # a signal handler has written a text in between: write again
            telling = self._tellings
            slots = list(self.slots.items())
            named = [name for name, slot in slots if slot != NOT_SHOWN]
            cell.write_text(LIMITS_TEXT, write_limits(self._limits.document(named), LIMITS_TEXT.size))
            shared = [self._limits.shared_origin(name) for name, slot in slots if slot == NOT_SHOWN]
            self._told_of_shared = {origin for origin in shared if origin is not None}

    # ---- learning, with the other ranks -----------------------------------------------------------------

    def learn_heartbeats(self, skip_if_not_ready: bool) -> bool:
        """Learn both heartbeat timeouts from the longest intervals any rank saw. A collective.

        Raises:
            TimeoutsNotReadyError: No rank has sent two heartbeats since the last calculation.
        """
        self._state.require_init("calculate_and_set_hb_timeouts()")
        state = self._state
        now = time.monotonic_ns()
        later_count = max(0, state.heartbeats - 1)
        observed = now - state.learned_ns.get("heartbeat", state.began_ns)
        first, later, count, observed = maxima(
            [state.first_heartbeat_gap_ns, state.longest_heartbeat_gap_ns, later_count, observed]
        )
        if not self._limits.learn_heartbeats(Seen(first, 1, observed), Seen(later, count, observed), skip_if_not_ready):
            return False
        state.forget_heartbeats(now)
        self._apply_learned()
        return True

    def learn_sections(self, selected_sections: Iterable[str] | None, learn_gap: bool, skip_if_not_ready: bool) -> bool:
        """Learn section timeouts from the longest intervals any rank saw. A collective.

        Raises:
            TypeError: ``selected_sections`` holds a value that is no name.
            TimeoutsNotReadyError: A selected section was never closed on any rank, or nothing was seen at all.
        """
        self._state.require_init("calculate_and_set_section_timeouts()")
        state = self._state
        now = time.monotonic_ns()
        used = {name for name, section in list(state.sections.items()) if section.count}
        selected = None if selected_sections is None else selected_names(selected_sections)
        # Names agreed on before are included, so that ranks with different names agree at once the next time.
        names = union_of_names(used | self._known_names if selected is None else selected)
        rows = [*(state.seen_of_section(name, now) for name in names), state.seen_of_gaps(now)]
        agreed = maxima([number for row in rows for number in row])
        *seen, gap = (Seen(*agreed[start : start + 3]) for start in range(0, len(agreed), 3))
        chosen = dict(zip(names, seen, strict=True))
        if selected is None:
            self._known_names.update(names)
            chosen = {name: each for name, each in chosen.items() if each.longest_ns}
        if not self._limits.learn_sections(chosen, gap if learn_gap else None, skip_if_not_ready):
            return False
        for name in chosen:
            state.forget_section(name, now)
        if learn_gap:
            state.forget_gaps(now)
        self._apply_learned()
        return True

    def _apply_learned(self) -> None:
        with self._state.lock:
            self.apply()
            limit_what_has_none(self._state)
        self.log()

    # ---- in words ---------------------------------------------------------------------------------------

    def summary(self) -> str:
        """Return what was learned, from how much, and which limits follow from it, in one line."""
        self._state.require_init("learned_summary()")
        return self._limits.summary()

    def log(self) -> None:
        """Log which limits are in force at DEBUG. Call it without the lock, which is held for no output."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("limits in force (learned_limits %s): %s", self.config.learned_limits, self._limits.in_words())

    def undercut(self) -> str:
        """Return which learned limits in force are shorter than the configured ones; empty where none is."""
        self._state.require_init("undercut_limits()")
        return undercutting(self._limits.document())

    def spared(self) -> dict[str, str]:
        """Return which learned limits in force are longer because no restart is left, by kind; each in words."""
        self._state.require_init("spared_limits()")
        return self._limits.spared()

    def name_state_file(self, path: str | None) -> None:
        """Name the file that learned timeouts are kept in, for messages."""
        self._state_file = path
        if self._state.cell is not None:
            self._limits.state_file = path

    # ---- from job to job --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the learned timeouts as JSON types.

        Raises:
            RankMonitorClientError: Before the first initialisation.
        """
        if self._state.cell is not None:
            return self._limits.state_dict()
        if self._pending is None:
            raise self._state.not_initialised("state_dict()")
        return dict(self._pending)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over timeouts that an earlier run learned, at once or with the initialisation.

        Raises:
            RankMonitorClientError: The state does not have the shape that :meth:`state_dict` gives it.
        """
        timeouts_from_state(state, HeartbeatTimeouts(), SectionTimeouts())
        evidence_from_state(state)
        with self._state.lock:
            if self._state.cell is None:
                self._pending = dict(state)
                return
            self._limits.load(state)
            self.apply()
            limit_what_is_running(self._state, to_ns(self.heartbeat_timeouts.initial))
        self.log()
