"""The limits of one rank: what was configured, what was learned, and which of the two is in force.

:mod:`~resilience_core.monitoring.limit_resolver` decides the latter; this module learns and remembers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience_core.errors import TimeoutsNotReadyError
from resilience_core.monitoring.interval_evidence import Evidence
from resilience_core.monitoring.limit_resolver import LimitResolver
from resilience_core.monitoring.timeouts import (
    HeartbeatTimeouts,
    SectionTimeouts,
    evidence_from_state,
    learn_heartbeats,
    learn_sections,
    learn_timeout,
    timeouts_from_state,
    timeouts_to_state,
)
from resilience_core.protocol.cell_layout import SHARED_SECTION
from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument, SharedOrigin
from resilience_core.protocol.limit_kinds import (
    FIRST_HEARTBEAT,
    HEARTBEAT,
    OUT_OF_SECTION,
    section_kind,
)
from resilience_core.system.clock import NS_PER_SECOND

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig

__all__ = ["LearnedLimits", "Seen"]


class Seen(NamedTuple):
    """What was seen of one kind of interval since the last calculation."""

    longest_ns: int
    intervals: int
    observed_ns: int


class LearnedLimits:
    """The limits that were learned and those in force; uses neither clock nor process group.

    Args:
        config: The configured limits and the rules.
        relaxed: Verdicts that each learned limit has led to in this job.
        state_file: Where learned limits are kept, for messages.
        is_last: No restart is left.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        relaxed: Mapping[str, int] | None = None,
        state_file: str | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        self.state_file = state_file
        self._is_last = is_last
        self._config = config
        self._relaxed = dict(relaxed or {})
        self._heartbeat = HeartbeatTimeouts()
        self._section = SectionTimeouts()
        self._evidence: dict[str, Evidence] = {}
        self._own_intervals: dict[str, int] = {}
        self._shared: set[str] = set()
        self._version = object()
        """Another object after each change, so that entries computed meanwhile on another thread are computed again."""
        self._found: tuple[object, dict[str, LimitEntry]] = (None, {})

    # ---- in force ---------------------------------------------------------------------------------------

    @property
    def heartbeat_timeouts(self) -> HeartbeatTimeouts:
        """Heartbeat limits in force."""
        entries = self._entries()
        return HeartbeatTimeouts(
            initial=_seconds(entries.get(FIRST_HEARTBEAT)),
            subsequent=_seconds(entries.get(HEARTBEAT)),
            were_calculated=self._is_used and self._heartbeat.were_calculated,
        )

    @property
    def section_timeouts(self) -> SectionTimeouts:
        """Section limits in force."""
        names = self._section.calculated_sections if self._is_used else frozenset()
        entries = self._entries()
        return SectionTimeouts(
            section={
                name: _seconds(entries.get(section_kind(name)))
                for name in [*self._config.rank_section_timeouts, *sorted(names)]
            },
            out_of_section=_seconds(entries.get(OUT_OF_SECTION)),
            calculated_sections=names,
            is_out_of_section_calculated=self._is_used and self._section.is_out_of_section_calculated,
        )

    def document(self, names: Iterable[str] | None = None) -> LimitsDocument:
        """Return where each limit in force comes from, for :mod:`resilience_core.protocol.limit_messages`.

        Args:
            names: Of these sections, with a slot of their own, only, and those that share one apart; of all sections
                when None.
        """
        entries = self._entries()
        general = (FIRST_HEARTBEAT, HEARTBEAT, OUT_OF_SECTION)
        kinds = list(entries) if names is None else [*general, *map(section_kind, names)]
        shared = () if names is None else map(section_kind, sorted(self._shared))
        return LimitsDocument(
            self._config.learned_limits,
            self.state_file,
            self._config.names_sections,
            {kind: entries[kind] for kind in kinds if kind in entries},
            {kind: entries[kind] for kind in shared if kind in entries},
        )

    def share(self, name: str) -> None:
        """Note that a section has no slot of its own: a verdict of any of these relaxes the limits of all of them."""
        with self._changing() if self.relaxes_shared else contextlib.nullcontext():
            self._shared.add(name)

    @property
    def relaxes_shared(self) -> bool:
        """Return whether a verdict has made the limits of all sections longer that have no slot of their own."""
        return section_kind(SHARED_SECTION) in self._relaxed

    def shared_origin(self, name: str) -> SharedOrigin | None:
        """Return what is told of a section without a slot of its own; None where it has no limit."""
        entry = self._entries().get(section_kind(name))
        return None if entry is None else entry.shared_origin(self._config.learned_limits)

    def summary(self) -> str:
        """Say what was learned and what follows from it, in one line."""
        entries = self._entries()
        return "; ".join(self._told(kind, entries.get(kind)) for kind in self._learned_seconds())

    def in_words(self) -> str:
        """Return every limit in force with its source, in one line."""
        return "; ".join(f"{kind} {e.seconds:.4g} s ({e.source})" for kind, e in self._entries().items()) or "none"

    def spared(self) -> dict[str, str]:
        """Which learned limits in force are longer because no restart is left, by kind; each in words."""
        return {
            kind: f"{kind} {entry.seconds:.4g} s (else {entry.else_seconds:.4g} s)"
            for kind, entry in self._entries().items()
            if entry.else_seconds is not None
        }

    def _told(self, kind: str, entry: LimitEntry | None) -> str:
        evidence = self._evidence.get(kind)
        seen = f"longest {evidence.longest:.3g} s of {evidence.intervals}, " if evidence is not None else ""
        return f"{kind}: {seen}" + (
            f"limit {entry.seconds:.4g} s ({entry.source})" if entry is not None else "no limit"
        )

    @property
    def _is_used(self) -> bool:
        return self._config.learned_limits != "off"

    def _entries(self) -> dict[str, LimitEntry]:
        """Every limit in force, by kind."""
        version, found = self._version, self._found
        if found[0] is not version:
            self._found = found = (version, self._find_entries())
        return found[1]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Have the entries found anew after a change, also one that a signal handler has interrupted by raising."""
        try:
            yield
        finally:
            self._version = object()

    def _find_entries(self) -> dict[str, LimitEntry]:
        resolver = LimitResolver(
            self._config, self._evidence, self._own_intervals, self._relaxed, self._shared, self._is_last
        )
        return resolver.entries(self._learned_seconds() if self._is_used else {})

    def _learned_seconds(self) -> dict[str, float]:
        learned = {
            section_kind(name): self._section.section[name] for name in sorted(self._section.calculated_sections)
        }
        if self._section.is_out_of_section_calculated:
            learned[OUT_OF_SECTION] = self._section.out_of_section
        if self._heartbeat.were_calculated:
            learned[FIRST_HEARTBEAT] = self._heartbeat.initial
            learned[HEARTBEAT] = self._heartbeat.subsequent
        return {kind: seconds for kind, seconds in learned.items() if seconds is not None}

    # ---- learning ---------------------------------------------------------------------------------------

    def learn_heartbeats(self, first: Seen, later: Seen, skip_if_not_ready: bool) -> bool:
        """Learn both heartbeat limits from what all ranks have seen; returns whether there was enough to learn from."""
        # The first heartbeat comes once in a life of a process; a later calculation keeps what it taught.
        if later.longest_ns == 0 or (first.longest_ns == 0 and not self._heartbeat.were_calculated):
            return _not_ready("heartbeat timeouts: send at least two heartbeats first", skip_if_not_ready)
        with self._changing():
            self._heartbeat = learn_heartbeats(self._heartbeat, first.longest_ns, later.longest_ns, self._learn_one)
            self._note(HEARTBEAT, later)
            if first.longest_ns:
                self._note(FIRST_HEARTBEAT, first)
        return True

    def learn_sections(self, sections: Mapping[str, Seen], gap: Seen | None, skip_if_not_ready: bool) -> bool:
        """Learn section limits from what all ranks have seen.

        Args:
            sections: Every section to learn; a longest of 0 was not seen on any rank.
            gap: Out-of-section time; None to leave that limit alone.
            skip_if_not_ready: Return False instead of raising when there is too little to learn from.

        Returns:
            Whether limits were learned.

        Raises:
            TimeoutsNotReadyError: There was too little to learn from.
        """
        missing = [name for name, seen in sections.items() if not seen.longest_ns]
        if missing or (gap is not None and not gap.longest_ns) or (not sections and gap is None):
            what = f"section(s) {', '.join(missing)} not seen" if missing else "no interval was seen"
            return _not_ready(f"section timeouts: {what} on any rank since the last time", skip_if_not_ready)
        with self._changing():
            self._section = learn_sections(
                self._section,
                {name: seen.longest_ns for name, seen in sections.items()},
                gap.longest_ns if gap is not None else None,
                self._learn_one,
            )
            for name, seen in sections.items():
                self._note(section_kind(name), seen)
            if gap is not None:
                self._note(OUT_OF_SECTION, gap)
        return True

    def _note(self, kind: str, seen: Seen) -> None:
        self._own_intervals[kind] = self._own_intervals.get(kind, 0) + seen.intervals
        self._evidence[kind] = self._evidence.get(kind, Evidence()).grown(
            intervals=seen.intervals,
            seconds=seen.observed_ns / NS_PER_SECOND,
            longest=seen.longest_ns / NS_PER_SECOND,
            factor=self._config.safety_factor,
        )

    def _learn_one(self, longest_ns: int, in_force: float | None, was_learned: bool) -> float:
        return learn_timeout(
            longest_ns / NS_PER_SECOND,
            in_force,
            was_learned=was_learned,
            safety_factor=self._config.safety_factor,
            floor_seconds=self._config.learned_timeout_floor,
        )

    # ---- from job to job --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, with its evidence, as JSON types."""
        return timeouts_to_state(self._heartbeat, self._section, self._evidence)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what an earlier run has learned.

        Raises:
            RankMonitorClientError: The state does not have the documented shape; nothing was changed.
        """
        evidence = evidence_from_state(state)
        with self._changing():
            self._heartbeat, self._section = timeouts_from_state(state, self._heartbeat, self._section)
            self._evidence |= evidence


def _seconds(entry: LimitEntry | None) -> float | None:
    return None if entry is None else entry.seconds


def _not_ready(what: str, skip: bool) -> bool:
    if skip:
        return False
    raise TimeoutsNotReadyError(f"cannot calculate {what}; or pass skip_if_not_ready=True")
