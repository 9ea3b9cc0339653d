"""A node's own lease: until when it may run ranks, whom it asks, and what it believes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.membership import NodeInfo, Phase
from launcher.nodes.session import Session
from launcher.nodes.session_messages import Doing, Elsewhere, Granted, Renew, Status, View

MS = 1_000_000
LEASE = 1000 * MS
JOB = "the first one's"
INFO = NodeInfo("host", "here", 1, "", 2)
CONTACTS = (("x", 1), ("y", 2), ("z", 3))


def make(now_ns: int = 0, lease_ns: int = LEASE, job: str = "") -> Session:
    return Session(INFO, CONTACTS, lease_ns, now_ns, job)


def view(version: int, phase: str = Phase.RUNNING, generation: int = 0) -> View:
    return View(version, generation, phase, 0, 1, 0, 2, "h", 1, 0, "", False, None)


def grant(
    stamp_ns: int | None = None,
    age_ns: int = 0,
    seen: View | None = None,
    voters: dict[str, tuple[str, int]] | None = None,
) -> Granted:
    return Granted(stamp_ns, age_ns, seen, 1, voters, JOB)


def asked(session: Session) -> list[tuple[str | None, tuple[str, int] | None]]:
    sent = [(name, address) for name, address, _ in session.outbox]
    session.outbox.clear()
    return sent


def renewals(session: Session) -> list[Renew]:
    sent = [renew for _, _, renew in session.outbox]
    session.outbox.clear()
    return sent


# ---- the lease -----------------------------------------------------------------------------------------------


def test_nobody_holds_a_lease_that_nobody_has_granted() -> None:
    session = make()
    assert session.fence_ns is None
    assert not session.holds_lease(0)
    session.granted("l", grant(seen=view(1)), 0)  # the leader's word where nobody asked
    assert session.fence_ns is None


def test_a_lease_runs_from_when_it_was_asked_for_and_a_fifth_of_it_is_left() -> None:
    session = make()
    session.granted("l", grant(100 * MS), 700 * MS)
    assert session.fence_ns == 900 * MS
    assert session.holds_lease(900 * MS - 1)
    assert not session.holds_lease(900 * MS)


def test_ranks_of_a_job_that_has_ended_may_save_although_nobody_grants_a_lease_any_more() -> None:
    session = make()
    session.granted("l", grant(100 * MS, seen=view(1)), 100 * MS)
    assert session.deadline_ns(5000 * MS) == session.fence_ns == 900 * MS
    session.granted("l", grant(200 * MS, seen=view(2, Phase.ENDED)), 300 * MS)
    assert session.deadline_ns(5000 * MS) == 5300 * MS
    assert session.deadline_ns(10 * MS) == session.fence_ns == 1000 * MS


def test_the_end_of_a_job_counts_for_none_that_is_found_later() -> None:
    session = make()
    session.granted("l", grant(100 * MS, seen=view(1, Phase.ENDED)), 100 * MS)
    session.start_over(200 * MS)
    assert session.deadline_ns(5000 * MS) is None
    session.granted("l", grant(300 * MS, seen=view(1)), 300 * MS)
    assert session.deadline_ns(5000 * MS) == 1100 * MS


def test_at_most_a_second_is_left() -> None:
    session = make(lease_ns=60_000 * MS)
    session.granted("l", grant(0), 0)
    assert session.fence_ns == 59_000 * MS


def test_the_time_for_which_the_leader_was_not_sure_to_lead_is_taken_off() -> None:
    session = make()
    session.granted("l", grant(500 * MS, 120 * MS), 510 * MS)
    assert session.fence_ns == 500 * MS - 120 * MS + 800 * MS


def test_a_leader_that_has_heard_from_the_future_grants_no_more_than_a_lease() -> None:
    session = make()
    session.granted("l", grant(500 * MS, -50 * MS), 510 * MS)
    assert session.fence_ns == 1300 * MS


def test_a_late_answer_takes_nothing_back() -> None:
    session = make()
    session.granted("l", grant(500 * MS), 600 * MS)
    session.granted("l", grant(300 * MS), 700 * MS)
    assert session.fence_ns == 1300 * MS


@given(
    st.integers(1, 10_000),
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 300),
    st.floats(-0.005, 0.005),
    st.floats(-0.005, 0.005),
)
def test_ranks_are_fenced_before_the_leader_or_its_successor_counts_to_the_end_of_the_lease(
    asked_ms: int, there_ms: int, back_ms: int, unsure_ms: int, node_rate: float, leader_rate: float
) -> None:
    """All times are of the world; each clock has a rate of its own."""
    node, leader = 1 + node_rate, 1 + leader_rate
    received_ms = asked_ms + there_ms
    session = make()
    age_ns = int(unsure_ms * MS * leader)
    session.granted("l", grant(int(asked_ms * MS * node), age_ns), int((received_ms + back_ms) * MS * node))
    assert session.fence_ns is not None
    fenced_at = session.fence_ns / node
    assert fenced_at < received_ms * MS + LEASE / leader
    assert fenced_at < (received_ms - unsure_ms) * MS + LEASE / leader  # what a new leader counts from


# ---- what it says --------------------------------------------------------------------------------------------


def test_it_asks_ten_times_in_a_lease_and_at_once_for_a_new_status() -> None:
    session = make()
    session.tick(0)
    assert session.due_ns == 100 * MS
    session.tick(99 * MS)
    assert len({renew.stamp_ns for renew in renewals(session)}) == 1
    session.tick(100 * MS)
    assert session.due_ns == 200 * MS
    renewals(session)
    failed = Status(Doing.FAILED, 3, "why")
    session.say(failed, 120 * MS)
    assert {renew.status for renew in renewals(session)} == {failed}
    session.say(failed, 130 * MS)
    assert renewals(session) == []


def test_stamps_rise_though_the_clock_stands() -> None:
    session = make(5)
    session.tick(5)
    first = renewals(session)[-1].stamp_ns
    session.say(Status(Doing.FAILED, 0), 5)
    session.say(Status(Doing.IDLE, 0), 5)
    stamps = [renew.stamp_ns for renew in renewals(session)]
    assert first < min(stamps) < max(stamps)


def test_it_says_which_view_and_voters_it_has_seen() -> None:
    session = make()
    session.tick(0)
    assert {(renew.seen, renew.seen_voters) for renew in renewals(session)} == {(-1, -1)}
    session.granted("l", grant(0, 0, view(7), {"l": ("x", 1)}), 1)
    assert {(renew.seen, renew.seen_voters) for renew in renewals(session)} == {(7, 1)}


def test_only_who_is_idle_answers_a_view_at_once() -> None:
    session = make(job=JOB)
    session.say(Status(Doing.RUNNING, 0), 0)
    renewals(session)
    assert session.granted("l", grant(None, 0, view(7)), 1)
    assert renewals(session) == []
    session.granted("l", grant(None, 0, view(8, Phase.ENDED)), 2)
    assert len(renewals(session)) == 1


@pytest.mark.parametrize("version", [6, 7])
def test_a_view_that_is_not_newer_is_not_taken(version: int) -> None:
    session = make(job=JOB)
    assert session.granted("l", grant(None, 0, view(7, generation=3)), 1)
    assert not session.granted("l", grant(None, 0, view(version, generation=2)), 2)
    assert not session.granted("l", grant(), 3)
    assert session.view == view(7, generation=3)


def test_an_older_list_of_voters_is_not_taken() -> None:
    session = make(job=JOB)
    session.granted("l", Granted(None, 0, None, 5, {"l": ("x", 1)}, JOB), 1)
    session.granted("l", Granted(None, 0, None, 4, {"m": ("y", 1)}, JOB), 2)
    assert session.voters == {"l": ("x", 1)}


# ---- whom it asks --------------------------------------------------------------------------------------------


def test_where_nobody_is_known_contacts_are_asked_in_turn() -> None:
    session = make()
    seen = []
    for number in range(3):
        session.tick(number * 100 * MS)
        seen += asked(session)
    assert seen == [(None, CONTACTS[number % 3]) for number in range(6)]


def test_the_leader_is_asked_until_it_is_silent_for_two_renewals() -> None:
    session = make()
    session.granted("l", grant(0, 0, None, {"l": ("x", 9), "m": ("y", 9)}), 0)
    for now_ms in (0, 100, 200):
        session.tick(now_ms * MS)
        assert asked(session) == [("l", ("x", 9))]
    session.tick(300 * MS)
    assert len(asked(session)) == 2
    assert session.leader is None


def test_a_hint_is_followed_soon_but_two_that_name_each_other_are_not_asked_without_end() -> None:
    session = make()
    session.tick(0)
    asked(session)
    session.elsewhere("a", Elsewhere("b", "y", 2), 1 * MS)
    assert session.due_ns == 25 * MS
    sent, now = 0, 1 * MS
    while now < 1000 * MS:
        now = max(now, session.due_ns)
        session.tick(now)
        for name, address in asked(session):
            sent += 1
            session.elsewhere(name or str(address), Elsewhere("b" if name == "a" else "a", "y", 2), now + 1)
    assert sent < 100


def test_a_hint_at_itself_or_at_nobody_makes_it_ask_others() -> None:
    session = make()
    session.granted("l", grant(0, 0, None, {"l": ("x", 9)}), 0)
    session.elsewhere("l", Elsewhere(None, "", 0), 1 * MS)
    assert session.leader is None
    session.elsewhere("l", Elsewhere("m", "", 0), 1 * MS)
    assert session.leader is None
    session.elsewhere("l", Elsewhere("m", "y", 4), 2 * MS)
    session.tick(session.due_ns)
    assert ("m", ("y", 4)) in asked(session)


# ---- another job ---------------------------------------------------------------------------------------------


def test_nothing_of_another_job_counts_for_a_node_that_belongs_to_one() -> None:
    """A launcher that was started again where the job was begun may have begun another one."""
    session = make()
    session.granted("l", grant(stamp_ns=0, seen=view(1))._replace(job="first"), 0)
    fence_ns = session.fence_ns

    later = grant(stamp_ns=LEASE, seen=view(9), voters={"m": ("h", 1)})._replace(job="second")
    assert session.granted("m", later, LEASE) is False

    assert (session.fence_ns, session.leader, session.view) == (fence_ns, "l", view(1))
    assert "m" not in session.voters
    session.tick(LEASE)
    assert renewals(session)[-1].job == "first"


def test_who_is_not_let_in_belongs_to_no_job_yet() -> None:
    session = make()
    session.granted("l", grant()._replace(job="first"), 0)
    session.granted("m", grant(stamp_ns=0)._replace(job="second"), 0)
    assert session.job == "second"


def test_who_is_let_in_while_it_does_not_ask_asks_at_once() -> None:
    """What the leader says unasked may be late, and of a job that has gone; its answer is not."""
    session = make()
    session.tick(0)
    renewals(session)

    assert not session.granted("l", grant(seen=view(4), voters={"l": ("x", 1)}), 1)
    assert (session.job, session.view, session.fence_ns) == ("", None, None)
    (renew,) = renewals(session)
    assert session.granted("l", grant(stamp_ns=renew.stamp_ns, seen=view(4)), 2)
    assert (session.job, session.view) == (JOB, view(4))


def test_who_has_started_over_takes_no_answer_of_before() -> None:
    """Its ranks would run a generation of the job that has gone, with a lease of the next one."""
    session = make()
    session.tick(5)
    session.start_over(5)

    assert not session.granted("l", grant(stamp_ns=5, seen=view(4)), 6)
    assert (session.job, session.view, session.fence_ns) == ("", None, None)
    session.tick(session.due_ns)
    stamp_ns = renewals(session)[-1].stamp_ns
    assert session.granted("m", grant(stamp_ns=stamp_ns, seen=view(1))._replace(job="next"), stamp_ns)
    assert (session.job, session.view) == ("next", view(1))
