"""What the nodes agree on: each command, each command that comes too late, and any order of commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from launcher.nodes.membership import Membership, NodeInfo, Phase


def info(host: str, order: str = "", slots: int = 2) -> tuple[Any, ...]:
    return tuple(NodeInfo(host, f"{host}.example", 7, order, slots))


def state(membership: Membership) -> str:
    return json.dumps(membership.snapshot(), sort_keys=True)


class Job:
    """A membership and the index of its last command."""

    def __init__(self, *names: str, generation: bool = True) -> None:
        self.membership, self.index = Membership(), 0
        for name in names:
            self.does("join", name, info(f"host of {name}"))
        if generation and names:
            self.does("form", 0, names, "h", 1)

    def does(self, *command: Any) -> bool:
        """Apply a command; whether it has changed anything."""
        before = state(self.membership)
        self.index += 1
        self.membership.apply(self.index, command)
        return state(self.membership) != before


def test_it_begins_empty() -> None:
    membership = Membership()
    assert (membership.generation, membership.phase, membership.nodes) == (-1, Phase.WAITING, {})


def test_a_node_joins_once() -> None:
    job = Job()
    assert job.does("join", "a", info("x"))
    assert not job.does("join", "a", info("other"))
    assert job.membership.nodes == {"a": NodeInfo(*info("x"))}
    assert (job.membership.roster, job.membership.version) == (1, 0)


def test_a_generation_is_made_of_those_who_are_there() -> None:
    job = Job("a", "b", generation=False)
    assert not job.does("form", 1, ("a",), "h", 1)
    assert not job.does("form", 0, (), "h", 1)
    assert not job.does("form", 0, ("a", "c"), "h", 1)
    assert job.does("form", 0, ["b", "a"], "h", 1)
    assert job.membership.members == ("b", "a")
    assert (job.membership.slots, job.membership.store, job.membership.version) == ((2, 2), ("h", 1), 1)
    assert not job.does("form", 0, ("a",), "h", 1)
    assert not job.does("form", 1, ("a",), "h", 1)  # the one before it is not over


def test_a_generation_fails_once() -> None:
    job = Job("a", "b")
    assert job.does("failed", 0, "a", "first")
    assert not job.does("failed", 0, "b", "second")
    assert not job.does("restart", 0, "b", "third")
    membership = job.membership
    assert (membership.phase, membership.failures, membership.why) == (Phase.STOPPING, 1, "first")
    assert not membership.may_save
    assert job.does("form", 1, ("a", "b"), "h", 1)
    assert (membership.phase, membership.why, membership.finished) == (Phase.RUNNING, "", set())


def test_what_is_said_of_another_generation_or_by_no_member_changes_nothing() -> None:
    job = Job("a", "b")
    job.does("join", "spare", info("s"))
    for name, generation in (("a", -1), ("a", 1), ("spare", 0), ("unknown", 0)):
        assert not job.does("failed", generation, name, "why")
        assert not job.does("restart", generation, name, "why")
        assert not job.does("finished", generation, name)


def test_a_restart_is_no_failure() -> None:
    job = Job("a", "b")
    assert job.does("restart", 0, "a", "leaves")
    assert (job.membership.failures, job.membership.may_save, job.membership.phase) == (0, True, Phase.STOPPING)


def test_a_member_that_has_finished_needs_no_restart_when_it_goes() -> None:
    job = Job("a", "b")
    job.does("finished", 0, "b")
    assert not job.does("restart", 0, "b", "SIGTERM")
    assert job.does("restart", 0, "a", "SIGTERM")


def test_the_job_ends_when_all_members_have_finished() -> None:
    job = Job("a", "b")
    assert job.does("finished", 0, "a")
    assert not job.does("finished", 0, "a")
    assert job.membership.phase == Phase.RUNNING
    assert job.does("finished", 0, "b")
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 0)


def test_an_end_is_final() -> None:
    job = Job("a", "b")
    assert job.does("end", "enough", 7)
    for command in (
        ("join", "c", info("c")),
        ("gone", "a", "why", False, False),
        ("failed", 0, "a", "why"),
        ("form", 1, ("a",), "h", 1),
        ("end", "again", 0),
    ):
        assert not job.does(*command)
    assert (job.membership.why, job.membership.exit_code) == ("enough", 7)


@pytest.mark.parametrize(("failure", "may_save"), [((), True), ((("failed", 0, "b", "a rank failed on b"),), False)])
def test_ranks_of_a_job_that_is_ended_may_save_if_nothing_has_failed(failure: tuple[Any, ...], may_save: bool) -> None:
    job = Job("a", "b")
    for command in failure:
        job.does(*command)
    assert job.does("end", "enough", 1, True)
    assert job.membership.may_save is may_save
    other = Job("a", "b")
    assert other.does("end", "a rank failed on b and no restart is left", 1, False)
    assert not other.membership.may_save


def test_a_member_that_is_gone_ends_its_generation_and_another_node_does_not() -> None:
    job = Job("a", "b")
    job.does("join", "spare", info("s"))
    assert job.does("gone", "spare", "silent", False, False)
    assert job.membership.phase == Phase.RUNNING
    assert job.does("gone", "b", "silent", False, False)
    assert not job.does("gone", "b", "silent", False, False)
    assert (job.membership.phase, job.membership.failures, job.membership.why) == (Phase.STOPPING, 1, "silent")
    assert list(job.membership.nodes) == ["a"]


def test_a_member_that_had_finished_may_go() -> None:
    job = Job("a", "b")
    job.does("finished", 0, "b")
    job.does("gone", "b", "silent", False, False)
    assert job.membership.phase == Phase.RUNNING


def test_a_goodbye_is_no_failure_and_no_strike() -> None:
    job = Job("a", "b")
    job.does("gone", "b", "bye", True, False)
    assert (job.membership.failures, job.membership.may_save) == (0, True)
    assert job.membership.strikes_of("host of b") == 0


def test_an_excluded_host_joins_no_more() -> None:
    job = Job("a", "b")
    job.does("gone", "b", "broken", True, True)
    assert job.membership.excluded == {"host of b": "broken"}
    assert not job.does("join", "b2", info("host of b"))


def test_strikes_add_up_and_are_forgotten_after_ten_generations() -> None:
    job = Job("a", "b")
    membership = job.membership
    job.does("gone", "b", "silent", False, False)
    job.does("join", "b2", info("host of b"))
    job.does("gone", "b2", "silent", False, False)
    assert membership.strikes_of("host of b") == 2
    for number in range(1, 10):
        job.does("form", number, ("a",), "h", 1)
        job.does("failed", number, "a", "why")
    assert membership.strikes_of("host of b") == 2
    job.does("form", 10, ("a",), "h", 1)
    assert membership.strikes_of("host of b") == 0
    assert membership.strikes_of("unknown") == 0


NAMES = st.sampled_from(["a", "b", "c", "d"])
NUMBERS = st.integers(-1, 12)
WORDS = st.sampled_from(["x", "y"])


class AnyOrder(RuleBasedStateMachine):
    """Commands in any order, with any arguments; a second replica is made anew from a snapshot again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Membership(), Membership()
        self.index = 0
        self.generations: list[int] = []
        self.lost: set[int] = set()
        self.ended: str | None = None

    def both(self, *command: Any) -> None:
        before = (self.one.generation, self.one.phase, self.one.failures, self.one.version, self.one.roster)
        self.index += 1
        self.one.apply(self.index, command)
        self.other.apply(self.index, json.loads(json.dumps(command)))
        generation, phase, failures, version, roster = before
        if self.one.generation != generation:
            assert phase in (Phase.WAITING, Phase.STOPPING)
            self.generations.append(self.one.generation)
        if self.one.failures != failures:
            assert self.one.generation not in self.lost
            self.lost.add(self.one.generation)
        if (self.one.generation, self.one.phase) != (generation, phase):
            assert self.one.version == version + 1
        assert (self.one.version, self.one.roster) >= (version, roster)

    @rule(name=NAMES, host=st.sampled_from(["h", "i", "j"]))
    def join(self, name: str, host: str) -> None:
        self.both("join", name, info(host))

    @rule(name=NAMES, why=WORDS, may_save=st.booleans(), is_excluded=st.sampled_from([False, False, False, True]))
    def gone(self, name: str, why: str, may_save: bool, is_excluded: bool) -> None:
        self.both("gone", name, why, may_save, is_excluded)

    @rule(command=st.sampled_from(["failed", "restart"]), name=NAMES, why=WORDS, number=NUMBERS)
    def over(self, command: str, number: int, name: str, why: str) -> None:
        self.both(command, number, name, why)

    @rule(command=st.sampled_from(["failed", "restart"]), name=NAMES)
    def over_now(self, command: str, name: str) -> None:
        self.both(command, self.one.generation, name, "now")

    @rule(name=NAMES)
    def finished(self, name: str) -> None:
        self.both("finished", self.one.generation, name)

    @rule(number=NUMBERS, members=st.lists(NAMES, unique=True))
    def form(self, number: int, members: list[str]) -> None:
        self.both("form", number, members, "h", 1)

    @rule()
    def form_next(self) -> None:
        self.both("form", self.one.generation + 1, tuple(self.one.nodes), "h", 1)

    @rule(code=st.integers(0, 2), is_meant=st.sampled_from([False, False, False, False, True]))
    def end(self, code: int, is_meant: bool) -> None:
        if is_meant:
            self.both("end", "enough", code)

    @rule()
    def starts_anew_from_a_snapshot(self) -> None:
        travelled = json.loads(json.dumps(self.one.snapshot()))
        self.other = Membership()
        self.other.restore(travelled)
        assert vars(self.other) == vars(self.one)

    @invariant()
    def all_rules_hold(self) -> None:
        membership = self.one
        assert state(membership) == state(self.other)
        assert self.generations == list(range(len(self.generations)))
        assert membership.failures == len(self.lost)
        assert membership.finished <= set(membership.members)
        assert not {node.host for node in membership.nodes.values()} & {
            host for host in membership.excluded if host not in {each.host for each in membership.nodes.values()}
        }
        if membership.phase == Phase.RUNNING:
            assert set(membership.members) - set(membership.nodes) <= membership.finished
        if self.ended is not None:
            assert state(membership) == self.ended
        elif membership.phase == Phase.ENDED:
            self.ended = state(membership)


TestAnyOrder = AnyOrder.TestCase
