"""Which limit of each kind is in force: the configured one, or what was learned as the mode allows it.

``--ft-learned-limits`` decides how a learned limit and a configured one meet:

* ``relax``, the default: a configured limit is a person's decision. Learning never shortens it, and lengthens it only
  if ``safety_factor`` times the longest observed interval is longer. If nothing was configured (``null``, or a default
  that nobody chose), the learned limit is in force, never below the floor that its evidence requires (see
  :mod:`resilience_core.monitoring.interval_evidence`).
  This is the default because the two possible errors differ in cost: a limit that is too long delays the detection of a
  hang by seconds; one that is too short kills a healthy job, at the same place in each generation, until no restart is
  left.
* ``replace``: what the documents of nvidia-resiliency-ext describe. A learned limit replaces the configured one,
  ``safety_factor`` times the longest interval and never below ``learned_timeout_floor``, however thin its evidence.
* ``off``: only configured limits. What is learned is still kept in the state, for a later run.

A learned limit that has led to a verdict is four times as long in the generations that follow in this job, once more
with each further verdict at the same place: a hang that repeats is still found, a limit that was wrong costs one or two
restarts and not all of them. The launcher keeps the count and hands it to its ranks in ``FT_RELAXED_LIMITS``, so a
state file cannot bring the short limit back.

If no restart is left, a verdict ends the job, and no generation can follow with a longer limit. The floor for thin
evidence is then an hour by default (see :mod:`resilience_core.monitoring.interval_evidence`). A rank reads from
torchrun's variables whether a restart is left; if they are not set, as under other launchers, it assumes one. This does
not affect configured limits, well-supported learned limits, or ``replace``. The launcher applies the same rule to the
learned limit of a start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import attrs

from resilience_core.environment import RELAXED_VARIABLE
from resilience_core.monitoring.interval_evidence import NO_RESTART_FACTOR, Evidence
from resilience_core.protocol.cell_layout import SHARED_SECTION, shown_name
from resilience_core.protocol.limit_entry import LimitEntry
from resilience_core.protocol.limit_kinds import (
    CONFIGURED,
    DEFAULT,
    FIRST_HEARTBEAT,
    HEARTBEAT,
    LEARNED,
    MOST_VERDICTS,
    OUT_OF_SECTION,
    RELAXATION,
    section_kind,
    section_name,
)
from resilience_core.protocol.verdict_counts import VerdictCountsError, read_verdicts

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig

__all__ = ["LimitResolver", "no_restart_is_left", "relaxed_limits"]

logger = logging.getLogger(__name__)


def relaxed_limits(environment: Mapping[str, str]) -> dict[str, int]:
    """Return how many verdicts each learned limit has led to in this job; none, with a warning, if unreadable."""
    try:
        return read_verdicts(environment.get(RELAXED_VARIABLE))
    except VerdictCountsError as error:
        logger.warning(
            "%s cannot be used, so learned limits that have led to a verdict in this job are not longer: %s. Leave the "
            "variable to ft_launcher, and use one installation for launcher and ranks",
            RELAXED_VARIABLE,
            error,
        )
        return {}


def no_restart_is_left(environment: Mapping[str, str]) -> bool:
    """Return whether the job ends with this generation, as torchrun's variables say; False where they are not set."""
    try:
        return int(environment["TORCHELASTIC_RESTART_COUNT"]) >= int(environment["TORCHELASTIC_MAX_RESTARTS"])
    except (KeyError, ValueError):
        return False


@attrs.frozen
class LimitResolver:
    """Decides for each kind which limit is in force.

    Args:
        config: The configured limits and the rules.
        evidence: What the learned limits rest on, by kind.
        own_intervals: How many intervals of each kind this job has seen.
        relaxed: Verdicts that each learned limit has led to in this job.
        shared: Sections without a slot of their own.
        is_last: No restart is left.
    """

    config: FaultToleranceConfig
    evidence: Mapping[str, Evidence]
    own_intervals: Mapping[str, int]
    relaxed: Mapping[str, int]
    shared: Collection[str]
    is_last: bool

    def entries(self, learned: Mapping[str, float]) -> dict[str, LimitEntry]:
        """Return every limit in force, by kind.

        Args:
            learned: Seconds that were learned, by kind; empty where they are not to be used.
        """
        config = self.config
        configured: dict[str, tuple[float | None, bool]] = {
            FIRST_HEARTBEAT: (config.initial_rank_heartbeat_timeout, config.is_given("initial_rank_heartbeat_timeout")),
            HEARTBEAT: (config.rank_heartbeat_timeout, config.is_given("rank_heartbeat_timeout")),
            OUT_OF_SECTION: (config.rank_out_of_section_timeout, True),
        }
        configured |= {section_kind(name): (limit, True) for name, limit in config.rank_section_timeouts.items()}
        found: dict[str, LimitEntry] = {}
        for kind in [*configured, *(kind for kind in learned if kind not in configured)]:
            limit, is_given = configured.get(kind, (None, True))
            entry = self._learned_entry(kind, limit, is_given, learned[kind]) if kind in learned else None
            if entry is None and limit is not None:
                entry = LimitEntry(limit, CONFIGURED if is_given else DEFAULT)
            if entry is not None:
                found[kind] = entry
        return found

    def _learned_entry(self, kind: str, configured: float | None, is_given: bool, seconds: float) -> LimitEntry | None:
        """Return the limit that was learned, as the mode puts it in force; None where the configured one stays."""
        is_relax = self.config.learned_limits == "relax"
        evidence = self.evidence.get(kind, Evidence())
        floor = self.config.learned_timeout_floor
        relaxed = self._verdicts(kind)
        is_thin = False
        if is_relax and is_given and configured is not None:
            # Floors apply where nobody chose a limit; a chosen one is lengthened by observation only.
            observed = evidence.protective(seconds if seconds > floor else 0.0, floor=0.0)
            if configured >= observed * RELAXATION**relaxed:
                return None
            floor, seconds = 0.0, observed
        elif is_relax:
            is_thin = evidence.is_thin(kind, self.own_intervals.get(kind, 0))
            if is_thin:
                floor = max(floor, self.config.thin_evidence_floor)
            seconds = evidence.protective(seconds, floor)
        else:
            seconds = max(seconds, floor)  # one that an earlier run has learned may be shorter
        seconds *= RELAXATION**relaxed
        else_seconds = None
        if is_thin and self.is_last and seconds < NO_RESTART_FACTOR * self.config.thin_evidence_floor:
            else_seconds, seconds = seconds, NO_RESTART_FACTOR * self.config.thin_evidence_floor
        return LimitEntry(
            seconds=seconds,
            source=LEARNED,
            configured=configured,
            is_default=not is_given,
            factor=evidence.factor,
            longest=evidence.longest,
            intervals=evidence.intervals,
            floor=floor,
            relaxed=relaxed,
            else_seconds=else_seconds,
        )

    def _verdicts(self, kind: str) -> int:
        """Count the verdicts that a learned limit has led to; told by a name that may be cut, or that sections share.

        Counted together: with each of them the launcher has announced a longer limit.
        """
        name = section_name(kind)
        kinds = {kind}
        if name is not None:
            kinds.add(section_kind(shown_name(name)))
            if name in self.shared:
                kinds.add(section_kind(SHARED_SECTION))
        return min(sum(self.relaxed.get(each, 0) for each in kinds), MOST_VERDICTS)
