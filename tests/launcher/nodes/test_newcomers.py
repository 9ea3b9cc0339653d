"""When a healthy generation is ended so that nodes that have come later take part."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.nodes.membership import Membership, NodeInfo, Phase
from launcher.nodes.newcomers import Newcomers
from launcher.nodes.policy import Policy
from launcher.nodes.session_messages import Doing, Status


class Job:
    """A generation of ``a`` and ``b``, and ``c``, which has joined later."""

    def __init__(self, **policy: Any) -> None:
        settings = {"least": 1, "most": 3, "is_fixed": False, "joins_at_checkpoint": True, **policy}
        self.membership = Membership()
        for name in "abc":
            self.membership.nodes[name] = NodeInfo(f"host {name}", name, 1, "", 2)
        self.membership.members, self.membership.generation = ("a", "b"), 4
        self.membership.phase = Phase.RUNNING
        self.newcomers = Newcomers(
            self.membership, Policy(max_restarts=3, lease_ns=1, last_call_ns=1, join_ns=1, **settings)
        )

    def may(self, a: int, b: int | None, ready: str = "c", **more: Any) -> bool:
        said = {"a": Status(**{"doing": Doing.RUNNING, "generation": 4, "saved": a, **more})}
        if b is not None:
            said["b"] = Status(Doing.RUNNING, 4, saved=b)
        return self.newcomers.may_take_part(set(ready), said)


def test_it_takes_part_when_all_have_a_checkpoint_that_none_had_before() -> None:
    job = Job()
    assert [job.may(*saved) for saved in ((-1, -1), (10, -1), (10, 10))] == [False, False, True]


def test_a_checkpoint_that_is_being_saved_while_it_joins_does_not_count() -> None:
    job = Job()
    assert [job.may(*saved) for saved in ((20, 10), (20, 20), (30, 20), (30, 30))] == [False, False, False, True]


def test_a_member_that_has_not_been_heard_in_this_generation_is_waited_for() -> None:
    job = Job()
    assert [job.may(10, None), job.may(20, None), job.may(30, 20), job.may(30, 30)] == [False] * 4
    assert not job.may(40, 40, generation=3)
    assert not job.may(40, 40, doing=Doing.FINISHED)
    assert job.may(40, 40)


@pytest.mark.parametrize(
    "policy",
    [{"joins_at_checkpoint": False}, {"is_fixed": True, "least": 2}, {"most": 2}],
    ids=lambda each: next(iter(each)),
)
def test_it_waits_for_a_restart_where_it_would_not_take_part_or_nobody_has_asked(policy: dict[str, Any]) -> None:
    job = Job(**policy)
    assert [job.may(-1, -1), job.may(10, 10)] == [False, False]


def test_a_node_that_was_lost_twice_is_not_worth_a_restart() -> None:
    job = Job()
    job.membership.strikes["host c"] = (2, 4)
    assert [job.may(-1, -1), job.may(10, 10)] == [False, False]


def test_a_newcomer_that_goes_again_and_the_next_one_are_two() -> None:
    job = Job()
    assert not job.may(10, 10)
    assert not job.may(20, 20, ready="")
    assert not job.may(20, 20)
    assert job.may(30, 30)


def test_a_generation_that_is_over_or_has_begun_to_finish_is_left_alone() -> None:
    job = Job()
    assert not job.may(10, 10)
    job.membership.finished = {"b"}
    assert not job.may(20, 20)
    job.membership.finished, job.membership.phase = set(), Phase.STOPPING
    assert not job.may(20, 20)


def test_checkpoints_of_the_generation_before_do_not_count() -> None:
    job = Job()
    assert not job.may(10, 10)
    job.membership.generation = 5
    later = {name: Status(Doing.RUNNING, 5, saved=20) for name in "ab"}
    assert not job.newcomers.may_take_part({"c"}, later)
    assert job.newcomers.may_take_part({"c"}, {name: each._replace(saved=30) for name, each in later.items()})
