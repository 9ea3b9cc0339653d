"""sight: late at the deadline, not one nanosecond before; every running deadline by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import HEARTBEAT, OUT_OF_SECTION, STARTUP, Deadline, deadlines_in_force, sight
from resilience_core.protocol.cell_layout import CLOSED, NO_LIMIT, SHUT_DOWN, UNUSED, WATCHED
from resilience_core.protocol.cell_view import CellView, OpenSection
from tests.launcher.monitor.views import view

S = 1_000_000_000


def section(name: str, deadline_ns: int, opened_ns: int = 0, slot: int = 0) -> OpenSection:
    return OpenSection(name, slot, deadline_ns, opened_ns)


@pytest.mark.parametrize(
    ("facts", "cause", "name"),
    [
        ({"sections": (section("step", 5 * S, 2 * S),)}, "section", "step"),
        ({"heartbeat_ns": 5 * S, "last_heartbeat_ns": 2 * S}, HEARTBEAT, None),
        ({"out_of_section_ns": 5 * S, "left_section_ns": 2 * S}, OUT_OF_SECTION, None),
    ],
)
def test_a_rank_is_late_at_its_deadline_and_not_one_nanosecond_before(
    facts: dict[str, Any], cause: str, name: str | None
) -> None:
    assert sight(view(**facts), 5 * S - 1).verdict is None

    verdict = sight(view(**facts), 5 * S).verdict
    assert verdict is not None
    assert (verdict.cause, verdict.section, verdict.iteration) == (cause, name, 3)
    assert (verdict.limit_seconds, verdict.open_seconds(6 * S)) == (3.0, 4.0)


def test_an_expired_outer_section_is_a_verdict_even_while_a_younger_one_has_time() -> None:
    cell = view(sections=(section("setup", 5 * S), section("step", 90 * S, slot=1)))

    verdict = sight(cell, 6 * S).verdict

    assert verdict is not None
    assert verdict.section == "setup"


def test_out_of_section_time_is_not_heeded_while_any_section_is_open() -> None:
    """Whatever that section is called, and whether it has a limit or not."""
    for opened in (section("evaluate", NO_LIMIT), section("step", 90 * S)):
        assert sight(view(out_of_section_ns=1, sections=(opened,)), 60 * S).verdict is None
    assert sight(view(out_of_section_ns=1), 60 * S).verdict is not None


def test_the_deadline_that_passed_first_is_the_one_told() -> None:
    cell = view(heartbeat_ns=4 * S, sections=(section("a", 5 * S), section("b", 3 * S, slot=1)))

    verdict = sight(cell, 9 * S).verdict

    assert verdict is not None
    assert verdict.section == "b"


@pytest.mark.parametrize("state", [UNUSED, SHUT_DOWN])
def test_a_rank_that_is_not_watched_may_take_as_long_as_it_likes(state: int) -> None:
    cell = view(state=state, heartbeat_ns=1, out_of_section_ns=1, sections=(section("step", 1),))

    assert deadlines_in_force(cell) == []
    assert sight(cell, NO_LIMIT).verdict is None


def test_no_limit_is_never_late() -> None:
    cell = view(heartbeat_ns=NO_LIMIT, out_of_section_ns=NO_LIMIT, sections=())
    assert sight(cell, NO_LIMIT).verdict is None
    assert sight(view(sections=(section("step", NO_LIMIT),)), NO_LIMIT).verdict is None


def test_the_startup_limit_counts_until_monitoring_is_initialised() -> None:
    startup = Deadline(STARTUP, None, -1, 5 * S, 1 * S)
    silent = view(pid=0, state=UNUSED)

    assert sight(silent, 5 * S - 1, startup=startup).verdict is None
    verdict = sight(silent, 5 * S, startup=startup).verdict
    assert verdict is not None
    assert (verdict.cause, verdict.limit_seconds) == (STARTUP, 4.0)
    assert sight(view(), 60 * S, startup=startup).verdict is None
    for pid in (0, 4711):
        assert sight(view(pid=pid, state=SHUT_DOWN), 60 * S, startup=startup).verdict is None


def test_lost_time_moves_the_deadline_but_not_what_is_told() -> None:
    cell = view(sections=(section("step", 5 * S, 2 * S),))

    assert sight(cell, 8 * S - 1, [Freeze(3 * S, 6 * S)]).verdict is None
    verdict = sight(cell, 8 * S, [Freeze(3 * S, 6 * S)]).verdict
    assert verdict is not None
    assert (verdict.deadline_ns, verdict.limit_seconds) == (5 * S, 3.0)


instants = st.integers(0, 20) | st.just(NO_LIMIT)
views = st.builds(
    view,
    state=st.sampled_from([UNUSED, WATCHED, SHUT_DOWN]),
    heartbeat_ns=instants,
    out_of_section_ns=instants,
    sections=st.lists(st.integers(1, 20) | st.just(NO_LIMIT), max_size=3).map(
        lambda ends: tuple(section(f"s{slot}", end, slot=slot) for slot, end in enumerate(ends))
    ),
)


@given(views, st.integers(0, 25))
def test_judged_as_the_rules_say_them(cell: CellView, now: int) -> None:
    ends = [s.deadline_ns for s in cell.sections] + [cell.heartbeat_ns]
    if not cell.sections:
        ends.append(cell.out_of_section_ns)
    running = [end for end in ends if end not in (CLOSED, NO_LIMIT)] if cell.state == WATCHED else []

    verdict = sight(cell, now).verdict

    assert (verdict is not None) == any(end <= now for end in running)
    if verdict is not None:
        assert verdict.deadline_ns == min(running)
