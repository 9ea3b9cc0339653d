"""Observed intervals become timeouts; learned ones survive the trip through JSON, configured ones do not take it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.timeouts import (
    HeartbeatTimeouts,
    SectionTimeouts,
    learn_timeout,
    timeouts_from_state,
    timeouts_to_state,
)

seconds = st.floats(min_value=1e-6, max_value=1e6)
limits = st.none() | seconds


@given(longest=seconds, in_force=limits, factor=st.floats(1, 100), floor=st.floats(0, 100))
def test_a_configured_timeout_is_replaced(longest: float, in_force: float | None, factor: float, floor: float) -> None:
    timeout = learn_timeout(longest, in_force, was_learned=False, safety_factor=factor, floor_seconds=floor)

    assert timeout == max(factor * longest, floor)


@given(longest=seconds, in_force=seconds)
def test_a_learned_timeout_is_averaged_half_and_half(longest: float, in_force: float) -> None:
    timeout = learn_timeout(longest, in_force, was_learned=True, safety_factor=5.0, floor_seconds=0.0)

    assert timeout == (5.0 * longest + in_force) / 2


def test_one_slow_step_halves_away() -> None:
    timeout = learn_timeout(100.0, None, was_learned=False, safety_factor=5.0, floor_seconds=1.0)
    for _ in range(10):
        timeout = learn_timeout(1.0, timeout, was_learned=True, safety_factor=5.0, floor_seconds=1.0)

    assert 5.0 < timeout < 6.0


def test_validity_says_whether_a_silent_rank_will_be_found() -> None:
    assert HeartbeatTimeouts(initial=1.0, subsequent=1.0).are_valid
    assert not HeartbeatTimeouts(initial=1.0).are_valid
    assert SectionTimeouts(section={"step": 1.0}, out_of_section=1.0).are_valid
    assert not SectionTimeouts(section={"step": None}, out_of_section=1.0).are_valid
    assert not SectionTimeouts(section={"step": 1.0}).are_valid


@st.composite
def learned(draw: st.DrawFn) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    were_calculated = draw(st.booleans())
    sections = draw(st.dictionaries(st.text(min_size=1), limits))
    known = sorted(name for name, limit in sections.items() if limit is not None)
    calculated = draw(st.frozensets(st.sampled_from(known))) if known else frozenset()
    out_of_section = draw(limits)
    return (
        HeartbeatTimeouts(
            initial=draw(seconds if were_calculated else limits),
            subsequent=draw(seconds if were_calculated else limits),
            were_calculated=were_calculated,
        ),
        SectionTimeouts(
            section=sections,
            out_of_section=out_of_section,
            calculated_sections=calculated,
            is_out_of_section_calculated=out_of_section is not None and draw(st.booleans()),
        ),
    )


@given(learned(), learned())
def test_learned_values_and_only_those_survive_the_trip(
    old: tuple[HeartbeatTimeouts, SectionTimeouts], new: tuple[HeartbeatTimeouts, SectionTimeouts]
) -> None:
    """Laid over what is in force: learned values win, everything else stays as it was configured."""
    state = json.loads(json.dumps(timeouts_to_state(*old)))

    heartbeat, section = timeouts_from_state(state, *new)

    assert heartbeat == (old[0] if old[0].were_calculated else new[0])
    for name in {*new[1].section, *old[1].calculated_sections}:
        source = old[1] if name in old[1].calculated_sections else new[1]
        assert section.section[name] == source.section[name]
    assert section.section.keys() == {*new[1].section, *old[1].calculated_sections}
    assert section.calculated_sections == old[1].calculated_sections | new[1].calculated_sections
    takes_old_gap = old[1].is_out_of_section_calculated
    assert section.out_of_section == (old[1] if takes_old_gap else new[1]).out_of_section
    assert section.is_out_of_section_calculated == (takes_old_gap or new[1].is_out_of_section_calculated)


GOOD: dict[str, Any] = timeouts_to_state(
    HeartbeatTimeouts(initial=2.0, subsequent=1.0, were_calculated=True),
    SectionTimeouts(
        section={"step": 3.0}, out_of_section=4.0, calculated_sections={"step"}, is_out_of_section_calculated=True
    ),
)


def broken(path: str, value: Any) -> dict[str, Any]:
    state = copy.deepcopy(GOOD)
    *parents, last = path.split("/")
    place: Any = state
    for parent in parents:
        place = place[parent]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return state


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("current_timeouts", KeyError, "'current_timeouts'"),
        ("current_timeouts", 5, "state.current_timeouts"),
        ("current_timeouts/heartbeat", None, "current_timeouts.heartbeat"),
        ("current_timeouts/heartbeat/were_calculated", "yes", "heartbeat.were_calculated"),
        ("current_timeouts/heartbeat/initial", -1.0, "heartbeat.initial"),
        ("current_timeouts/heartbeat/initial", True, "heartbeat.initial"),
        ("current_timeouts/heartbeat/subsequent", float("nan"), "heartbeat.subsequent"),
        ("current_timeouts/heartbeat/subsequent", float("inf"), "heartbeat.subsequent"),
        ("current_timeouts/section/calculated_sections", "step", "section.calculated_sections"),
        ("current_timeouts/section/calculated_sections", ["stp"], "section.section"),
        ("current_timeouts/section/section/step", 0, "section.section.step"),
        ("current_timeouts/section/out_of_section", "60s", "section.out_of_section"),
        ("current_timeouts/section/is_out_of_section_calculated", KeyError, "is_out_of_section_calculated"),
    ],
)
def test_a_state_of_another_shape_is_refused_by_place(path: str, value: Any, place: str) -> None:
    with pytest.raises(RankMonitorClientError) as caught:
        timeouts_from_state(broken(path, value), HeartbeatTimeouts(), SectionTimeouts())

    assert place in str(caught.value)


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_mapping_at_all_is_refused(state: Any) -> None:
    with pytest.raises(RankMonitorClientError, match="mapping"):
        timeouts_from_state(state, HeartbeatTimeouts(), SectionTimeouts())
