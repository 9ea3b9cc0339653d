"""The limits of one rank: what was configured, what was learned, and which of the two is in force.

``--ft-learned-limits`` decides how a learned limit and a configured one meet:

* ``relax``, the default: a configured limit is a person's word and is never undercut; learning may only lengthen it,
  where observation says that it is too short: where ``safety_factor`` times the longest interval seen is longer. Where
  nothing was configured (``null``, or a default that nobody chose) the learned limit is in force, never below the
  floor that its evidence earns (see :mod:`resilience_core.monitoring.interval_evidence`).
  This is the default because the two ways to be wrong do not cost the same: a limit that is too long finds a hang some
  seconds later, one that is too short kills a healthy job, at the same place in each generation, until no restart is
  left.
* ``replace``: what the documents of nvidia-resiliency-ext describe. A learned limit replaces the configured one,
  ``safety_factor`` times the longest interval and never below ``learned_timeout_floor``, whatever it rests on.
* ``off``: only configured limits. What is learned is still kept in the state, for a later run.

A learned limit that has led to a verdict is four times as long in the generations that follow in this job, once more
with each further verdict at the same place: a hang that repeats is still found, a limit that was wrong costs one or two
restarts and not all of them. The launcher keeps the count and hands it to its ranks in ``FT_RELAXED_LIMITS``, so a
state file cannot bring the short limit back.

Where no restart is left, there is no generation that could follow with a longer limit: a verdict ends the job. There
the floor that thin evidence earns is an hour by default (see :mod:`resilience_core.monitoring.interval_evidence`);
whether one is left, a
rank reads from torchrun's variables. Unknown, as under other launchers, counts as left. Configured limits, plenty of
evidence and ``replace`` are as ever. The learned limit of a start, the launcher's, keeps the same rule.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience_core.errors import TimeoutsNotReadyError
from resilience_core.monitoring.cell_layout import SHARED_SECTION, shown_name
from resilience_core.monitoring.interval_evidence import NO_RESTART_FACTOR, Evidence
from resilience_core.monitoring.limit_kinds import (
    CONFIGURED,
    DEFAULT,
    FIRST_HEARTBEAT,
    HEARTBEAT,
    LEARNED,
    OUT_OF_SECTION,
    RELAXATION,
    section_kind,
    section_name,
)
from resilience_core.monitoring.limits_text import SharedOrigin, shared_origin
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
from resilience_core.system.clock import NS_PER_SECOND

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig

__all__ = ["LearnedLimits", "Seen", "no_restart_is_left", "relaxed_limits"]

MOST_VERDICTS = 10
"""How many verdicts make a limit longer; beyond it is a million times as long."""


class Seen(NamedTuple):
    """What was seen of one kind of interval since the last calculation."""

    longest_ns: int
    intervals: int
    observed_ns: int


def relaxed_limits(text: str | None) -> dict[str, int]:
    """How many verdicts each learned limit has led to in this job, from the launcher's environment variable."""
    try:
        counts = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(counts, dict):
        return {}
    return {kind: min(count, MOST_VERDICTS) for kind, count in counts.items() if isinstance(count, int) and count > 0}


def no_restart_is_left(environment: Mapping[str, str]) -> bool:
    """Whether the job ends with this generation, as torchrun's variables say; False where they are not set."""
    try:
        return int(environment["TORCHELASTIC_RESTART_COUNT"]) >= int(environment["TORCHELASTIC_MAX_RESTARTS"])
    except (KeyError, ValueError):
        return False


class LearnedLimits:
    """What is learned and what is in force; knows neither clock nor group.

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
        """Another object after each change: what was found meanwhile, on another thread, is found again."""
        self._found: tuple[object, dict[str, dict[str, Any]]] = (None, {})

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

    def document(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Where each limit in force comes from, for :mod:`resilience_core.monitoring.limit_messages`.

        Args:
            names: Of these sections, with a slot of their own, only, and those that share one apart; of all sections
                when None.
        """
        entries = self._entries()
        general = (FIRST_HEARTBEAT, HEARTBEAT, OUT_OF_SECTION)
        kinds = list(entries) if names is None else [*general, *map(section_kind, names)]
        shared = () if names is None else map(section_kind, sorted(self._shared))
        return {
            "mode": self._config.learned_limits,
            "state_file": self.state_file,
            "names_sections": self._config.names_sections,
            "limits": {kind: entries[kind] for kind in kinds if kind in entries},
            "shared": {kind: entries[kind] for kind in shared if kind in entries},
        }

    def share(self, name: str) -> None:
        """Note that a section has no slot of its own: a verdict of any of these relaxes the limits of all of them."""
        with self._changing() if self.relaxes_shared else contextlib.nullcontext():
            self._shared.add(name)

    @property
    def relaxes_shared(self) -> bool:
        """Whether a verdict has made the limits of all sections longer that have no slot of their own."""
        return section_kind(SHARED_SECTION) in self._relaxed

    def shared_origin(self, name: str) -> SharedOrigin | None:
        """What is told of a section without a slot of its own; None where it has no limit."""
        entry = self._entries().get(section_kind(name))
        return None if entry is None else shared_origin(self._config.learned_limits, entry)

    def summary(self) -> str:
        """What was learned and what follows from it, in one line."""
        entries = self._entries()
        return "; ".join(self._told(kind, entries.get(kind)) for kind in self._learned_seconds())

    def spared(self) -> dict[str, str]:
        """Which learned limits in force are longer because no restart is left, by kind; each in words."""
        return {
            kind: f"{kind} {entry['seconds']:.4g} s (else {entry['else_seconds']:.4g} s)"
            for kind, entry in self._entries().items()
            if entry.get("else_seconds") is not None
        }

    def _told(self, kind: str, entry: Mapping[str, Any] | None) -> str:
        evidence = self._evidence.get(kind)
        seen = f"longest {evidence.longest:.3g} s of {evidence.intervals}, " if evidence is not None else ""
        return f"{kind}: {seen}" + (
            f"limit {entry['seconds']:.4g} s ({entry['source']})" if entry is not None else "no limit"
        )

    @property
    def _is_used(self) -> bool:
        return self._config.learned_limits != "off"

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Every limit in force, by kind, as the cell's document has it."""
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

    def _find_entries(self) -> dict[str, dict[str, Any]]:
        config = self._config
        configured: dict[str, tuple[float | None, bool]] = {
            FIRST_HEARTBEAT: (config.initial_rank_heartbeat_timeout, config.is_given("initial_rank_heartbeat_timeout")),
            HEARTBEAT: (config.rank_heartbeat_timeout, config.is_given("rank_heartbeat_timeout")),
            OUT_OF_SECTION: (config.rank_out_of_section_timeout, True),
        }
        configured |= {section_kind(name): (limit, True) for name, limit in config.rank_section_timeouts.items()}
        learned = self._learned_seconds() if self._is_used else {}
        found = {}
        for kind in [*configured, *(kind for kind in learned if kind not in configured)]:
            limit, is_given = configured.get(kind, (None, True))
            entry = self._learned_entry(kind, limit, is_given, learned[kind]) if kind in learned else None
            if entry is None and limit is not None:
                entry = {"seconds": limit, "source": CONFIGURED if is_given else DEFAULT}
            if entry is not None:
                found[kind] = entry
        return found

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

    def _learned_entry(
        self, kind: str, configured: float | None, is_given: bool, seconds: float
    ) -> dict[str, Any] | None:
        """The limit that was learned, as the mode puts it in force; None where the configured one stays."""
        is_relax = self._config.learned_limits == "relax"
        evidence = self._evidence.get(kind, Evidence())
        floor = self._config.learned_timeout_floor
        relaxed = self._verdicts(kind)
        is_thin = False
        if is_relax and is_given and configured is not None:
            # Floors stand in for a limit that nobody chose; this one is lengthened by what was observed alone.
            observed = evidence.protective(seconds if seconds > floor else 0.0, floor=0.0)
            if configured >= observed * RELAXATION**relaxed:
                return None
            floor, seconds = 0.0, observed
        elif is_relax:
            is_thin = evidence.is_thin(kind, self._own_intervals.get(kind, 0))
            if is_thin:
                floor = max(floor, self._config.thin_evidence_floor)
            seconds = evidence.protective(seconds, floor)
        else:
            seconds = max(seconds, floor)  # one that an earlier run has learned may be shorter
        seconds *= RELAXATION**relaxed
        else_seconds = None
        if is_thin and self._is_last and seconds < NO_RESTART_FACTOR * self._config.thin_evidence_floor:
            else_seconds, seconds = seconds, NO_RESTART_FACTOR * self._config.thin_evidence_floor
        return {
            "seconds": seconds,
            "source": LEARNED,
            "configured": configured,
            "is_default": not is_given,
            "factor": evidence.factor,
            "longest": evidence.longest,
            "intervals": evidence.intervals,
            "floor": floor,
            "relaxed": relaxed,
            "else_seconds": else_seconds,
        }

    def _verdicts(self, kind: str) -> int:
        """How many verdicts a learned limit has led to; told by a name that may be cut, or that sections share.

        Counted together: with each of them the launcher has announced a longer limit.
        """
        name = section_name(kind)
        kinds = {kind}
        if name is not None:
            kinds.add(section_kind(shown_name(name)))
            if name in self._shared:
                kinds.add(section_kind(SHARED_SECTION))
        return min(sum(self._relaxed.get(each, 0) for each in kinds), MOST_VERDICTS)

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
        """What was learned, with its evidence, as JSON types."""
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


def _seconds(entry: Mapping[str, Any] | None) -> float | None:
    return None if entry is None else float(entry["seconds"])


def _not_ready(what: str, skip: bool) -> bool:
    if skip:
        return False
    raise TimeoutsNotReadyError(f"cannot calculate {what}; or pass skip_if_not_ready=True")
