"""The formula of learned limits: how observed intervals become timeouts. Pure: no clock, no torch, no rank.

``timeout = safety_factor x longest interval``, never below the floor. Where the timeout in force was itself
learned the two are averaged, so that one slow step neither counts for ever nor is forgotten at once; where it
came from the configuration it is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.interval_evidence import LARGEST_NUMBER, Evidence, shown_value

__all__ = [
    "HeartbeatTimeouts",
    "LearnOne",
    "SectionTimeouts",
    "evidence_from_state",
    "learn_heartbeats",
    "learn_sections",
    "learn_timeout",
    "timeouts_from_state",
    "timeouts_to_state",
]


LearnOne = Callable[[int, "float | None", bool], float]
"""Longest interval in nanoseconds, limit in force in seconds, whether that was learned; gives seconds."""


def _frozen(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen(kw_only=True)
class HeartbeatTimeouts:
    """Heartbeat limits in force, seconds; None is no limit."""

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        """Both limits are set, so a silent rank will be found."""
        return self.initial is not None and self.subsequent is not None


@attrs.frozen(kw_only=True)
class SectionTimeouts:
    """Section limits in force, seconds; None is no limit."""

    section: Mapping[str, float | None] = attrs.field(factory=dict)
    out_of_section: float | None = None
    calculated_sections: frozenset[str] = attrs.field(default=frozenset(), converter=_frozen)
    is_out_of_section_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        """Every section and out-of-section time has a limit."""
        return self.out_of_section is not None and all(limit is not None for limit in self.section.values())


def learn_timeout(
    longest_seconds: float,
    in_force: float | None,
    *,
    was_learned: bool,
    safety_factor: float,
    floor_seconds: float,
) -> float:
    """Return the next timeout, from the longest interval that any rank saw since the last calculation.

    Args:
        longest_seconds: The maximum over all ranks, seconds.
        in_force: The timeout that applies now, seconds; None is no limit.
        was_learned: Whether ``in_force`` was itself calculated.
        safety_factor: How many times the longest interval a rank may take.
        floor_seconds: The least a learned timeout may be; 0 switches the floor off.

    Returns:
        Seconds.
    """
    timeout = safety_factor * longest_seconds
    if was_learned and in_force is not None:
        timeout = (timeout + in_force) / 2
    return max(timeout, floor_seconds)


def learn_heartbeats(in_force: HeartbeatTimeouts, first_ns: int, later_ns: int, learn: LearnOne) -> HeartbeatTimeouts:
    """Both heartbeat timeouts from the longest intervals of all ranks.

    Args:
        in_force: Those that apply now.
        first_ns: Longest time to a first heartbeat, nanoseconds; 0 when there was none since the last time.
        later_ns: Longest time between two heartbeats, nanoseconds.
        learn: :func:`learn_timeout` with its settings filled in.
    """
    learnt = in_force.were_calculated
    return HeartbeatTimeouts(
        initial=in_force.initial if first_ns == 0 else learn(first_ns, in_force.initial, learnt),
        subsequent=learn(later_ns, in_force.subsequent, learnt),
        were_calculated=True,
    )


def learn_sections(
    in_force: SectionTimeouts, longest_ns: Mapping[str, int], gap_ns: int | None, learn: LearnOne
) -> SectionTimeouts:
    """Section timeouts from the longest intervals of all ranks; sections that are not given keep theirs.

    Args:
        in_force: Those that apply now.
        longest_ns: Section to longest interval, nanoseconds.
        gap_ns: Longest time out of section, nanoseconds; None to leave that limit alone.
        learn: :func:`learn_timeout` with its settings filled in.
    """
    learned = {
        name: learn(took, in_force.section.get(name), name in in_force.calculated_sections)
        for name, took in longest_ns.items()
    }
    was_learned = in_force.is_out_of_section_calculated
    return SectionTimeouts(
        section={**in_force.section, **learned},
        out_of_section=in_force.out_of_section
        if gap_ns is None
        else learn(gap_ns, in_force.out_of_section, was_learned),
        calculated_sections=in_force.calculated_sections | frozenset(learned),
        is_out_of_section_calculated=was_learned or gap_ns is not None,
    )


def timeouts_to_state(
    heartbeat: HeartbeatTimeouts, section: SectionTimeouts, evidence: Mapping[str, Evidence] | None = None
) -> dict[str, Any]:
    """Return the learned values, and only those, as JSON types; what they rest on beside them, where that is known."""
    learned_sections = sorted(section.calculated_sections)
    known = {kind: evidence[kind].to_json() for kind in sorted(evidence)} if evidence else None
    return {
        "current_timeouts": {
            "heartbeat": {
                "initial": heartbeat.initial if heartbeat.were_calculated else None,
                "subsequent": heartbeat.subsequent if heartbeat.were_calculated else None,
                "were_calculated": heartbeat.were_calculated,
            },
            "section": {
                "section": {name: section.section[name] for name in learned_sections},
                "out_of_section": section.out_of_section if section.is_out_of_section_calculated else None,
                "calculated_sections": learned_sections,
                "is_out_of_section_calculated": section.is_out_of_section_calculated,
            },
        },
        **({"evidence": known} if known else {}),
    }


def evidence_from_state(state: Mapping[str, Any]) -> dict[str, Evidence]:
    """Return what the learned values of a state rest on; nothing for a state that was written before it was kept.

    Raises:
        RankMonitorClientError: It does not have the shape that :func:`timeouts_to_state` gives it.
    """
    if not isinstance(state, Mapping) or "evidence" not in state:
        return {}
    documents = _mapping(state, "evidence", "state")
    for kind in documents:
        if not isinstance(kind, str):
            raise RankMonitorClientError(
                f"learned timeouts: a key of 'state.evidence' must be a name, not {shown_value(kind)}"
            )
    return {kind: Evidence.from_json(document, f"evidence.{kind}") for kind, document in documents.items()}


def timeouts_from_state(
    state: Mapping[str, Any], heartbeat: HeartbeatTimeouts, section: SectionTimeouts
) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """Lay learned values over the timeouts in force.

    Args:
        state: What :func:`timeouts_to_state` made, perhaps in an earlier run.
        heartbeat: In force until now.
        section: In force until now.

    Raises:
        RankMonitorClientError: The state does not have the documented shape; the message names the place.
    """
    current = _mapping(state, "current_timeouts", "state")
    heartbeat_state = _mapping(current, "heartbeat", "current_timeouts")
    section_state = _mapping(current, "section", "current_timeouts")
    if _flag(heartbeat_state, "were_calculated", "heartbeat"):
        heartbeat = HeartbeatTimeouts(
            initial=_seconds(heartbeat_state, "initial", "heartbeat"),
            subsequent=_seconds(heartbeat_state, "subsequent", "heartbeat"),
            were_calculated=True,
        )
    learned = {
        name: _seconds(_mapping(section_state, "section", "section"), name, "section.section")
        for name in _names(section_state, "calculated_sections", "section")
    }
    learns_out_of_section = _flag(section_state, "is_out_of_section_calculated", "section")
    return heartbeat, SectionTimeouts(
        section={**section.section, **learned},
        out_of_section=(
            _seconds(section_state, "out_of_section", "section") if learns_out_of_section else section.out_of_section
        ),
        calculated_sections=section.calculated_sections | frozenset(learned),
        is_out_of_section_calculated=section.is_out_of_section_calculated or learns_out_of_section,
    )


def _get(mapping: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in mapping:
        raise RankMonitorClientError(f"learned timeouts: '{place}' has no '{key}'; delete the state to learn anew")
    return mapping[key]


def _mapping(mapping: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise RankMonitorClientError(f"learned timeouts: '{place}' must be a mapping, not {shown_value(mapping)}")
    value = _get(mapping, key, place)
    if not isinstance(value, Mapping):
        raise RankMonitorClientError(f"learned timeouts: '{place}.{key}' must be a mapping, not {shown_value(value)}")
    return value


def _flag(mapping: Mapping[str, Any], key: str, place: str) -> bool:
    value = _get(mapping, key, place)
    if not isinstance(value, bool):
        raise RankMonitorClientError(
            f"learned timeouts: '{place}.{key}' must be true or false, not {shown_value(value)}"
        )
    return value


def _seconds(mapping: Mapping[str, Any], key: str, place: str) -> float:
    value = _get(mapping, key, place)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
        raise RankMonitorClientError(
            f"learned timeouts: '{place}.{key}' must be seconds above 0, at most {LARGEST_NUMBER:.0f}, not "
            f"{shown_value(value)}"
        )
    return float(value)


def _names(mapping: Mapping[str, Any], key: str, place: str) -> Iterable[str]:
    value = _get(mapping, key, place)
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise RankMonitorClientError(
            f"learned timeouts: '{place}.{key}' must be a list of names, not {shown_value(value)}"
        )
    return value
