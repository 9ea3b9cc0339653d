"""The agreement of the nodes in simulated time: a small version of ``python -m benchmarks.simulate_nodes``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.simulate_nodes.rules import BrokenRule, Witness
from benchmarks.simulate_nodes.schedules import explore
from launcher.nodes import raft_election
from launcher.nodes.coordinator import Coordinator
from launcher.nodes.membership import Membership
from launcher.nodes.policy import Policy, choose_members
from launcher.nodes.raft import RaftNode
from launcher.nodes.raft_messages import RequestVote
from launcher.nodes.session import Session

KEPT = (297, 1400, 60, 109, 119, 5, 471, 142, 95, 890, 130392, 214920, 262010, 785562, 782235)
"""Seeds that have found a mistake. 297 and 1400: a view that came late started an old generation, and a KeyError (with
the schedules of that time). With those of today: 60 a new leader removed voters that had not found it yet, and needed
one that was dead; 109 a view that came late; 119 a node that was being taken out got a lease; 5 a generation was made
while ranks lived; 471 (of older schedules) a voter that was being removed did not stand. Since launchers are started
again where the job was begun: 142 one that had begun another job took entries of the first one's log into its own; 95 a
node was left in a job that had been given up; 890 two jobs that waited for each other's nodes; 130392 a learner forgot
what it had acknowledged; 214920 and 262010 a late view of a job that a node had left started ranks under the lease of
the next one; 785562 a launcher that was started again within a lease where the job was begun made a generation of
another job, since the leader did not show itself where a node was silent and not yet missed. 782235 was a mistake of
the witness: a node is taken out of a job while its ranks live in another one."""


def _explore_many(seeds: range) -> None:
    for seed in seeds:
        explore(seed)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(30, 150, 30))])
def test_all_rules_hold(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + 30):
        for what, count in explore(seed).counts.items():
            counts[what] = counts.get(what, 0) + count
    assert counts["faults"] > 30
    assert counts["generations"] > 20
    assert counts["jobs without a majority"] < 15


@pytest.mark.parametrize("seed", KEPT)
def test_what_has_failed_once_holds(seed: int) -> None:
    explore(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2500, 500))
def test_all_rules_hold_in_many_schedules(first: int) -> None:
    _explore_many(range(first, first + 500))


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in (0, 5):
        assert explore(seed) == explore(seed)
    assert explore(0).trace != explore(5).trace


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    program = "from benchmarks.simulate_nodes.schedules import explore; print(*(explore(s).trace for s in range(4)))"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(traces) == 1


# ---- it sees what it claims to see -----------------------------------------------------------------------------


def _no_election_restriction(monkeypatch: pytest.MonkeyPatch) -> None:
    grants = raft_election.RaftElections._requested

    def grant(self: raft_election.RaftElections, sender: str, request: RequestVote, now_ns: int) -> None:
        grants(self, sender, request._replace(last_term=1 << 40), now_ns)

    monkeypatch.setattr(raft_election.RaftElections, "_requested", grant)


def _no_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.nodes.raft.reached_by_majority", max)


def _no_waiting_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def expect(self: Coordinator) -> None:
        self._awaited = set()  # and those that are ready are found when they speak
        self._ready &= self._membership.nodes.keys()

    monkeypatch.setattr(Coordinator, "_expect", expect)


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(self: Session) -> int | None:
        base_ns = self._lease_base_ns
        return None if base_ns is None else base_ns + 2 * self._lease_ns

    monkeypatch.setattr(Session, "fence_ns", property(later))


def _nobody_stands_but_the_founder(monkeypatch: pytest.MonkeyPatch) -> None:
    stands = RaftNode._stand

    def stand(self: RaftNode, now_ns: int, *, is_ahead: bool, is_asked: bool = False) -> None:
        self._await_leader(now_ns)
        if self.voters == (self.name,):
            stands(self, now_ns, is_ahead=is_ahead, is_asked=is_asked)

    monkeypatch.setattr(RaftNode, "_stand", stand)


@pytest.mark.parametrize(
    "break_a_rule",
    [
        _no_fence,
        *(
            pytest.param(rule, marks=pytest.mark.long)
            for rule in (_no_election_restriction, _no_majority, _no_waiting_for_ranks, _nobody_stands_but_the_founder)
        ),
    ],
)
def test_it_sees_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, break_a_rule: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_a_rule(monkeypatch)
    with pytest.raises(BrokenRule):
        _explore_many(range(200))


def test_it_sees_a_spare_that_brings_another_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(membership: Membership, ready: Collection[str], policy: Policy) -> list[str]:
        same = {name: info._replace(slots=1) for name, info in membership.nodes.items()}
        blind: Any = SimpleNamespace(members=membership.members, nodes=same, slots=(1,) * len(membership.members))
        blind.strikes_of = membership.strikes_of
        return choose_members(blind, ready, policy)

    monkeypatch.setattr("launcher.nodes.coordinator.choose_members", choose)
    with pytest.raises(BrokenRule, match="differ in size"):
        _explore_many(range(2_000_000, 2_000_200))


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.long)])
def test_all_rules_hold_where_nodes_run_different_numbers_of_ranks(count: int) -> None:
    _explore_many(range(2_000_000, 2_000_000 + count))


def test_a_witness_sees_ranks_of_two_generations_at_once() -> None:
    witness = Witness()
    witness.started("a", "j", 0, 0, (4, 2, ("h", 1)))
    with pytest.raises(BrokenRule, match="while ranks of others live"):
        witness.started("b", "j", 1, 2, (4, 2, ("h", 1)))
    with pytest.raises(BrokenRule, match="on a and on b"):
        witness.started("b", "j", 0, 0, (4, 2, ("h", 1)))
    with pytest.raises(BrokenRule, match="two generations with number 0"):
        witness.started("b", "j", 0, 2, (2, 1, ("h", 1)))
    with pytest.raises(BrokenRule, match="while its ranks live"):
        witness.applied("b", "j", 1, ("gone", "a", "silent", False, False))
    witness.applied("b", "another", 1, ("gone", "a", "silent", False, False))
    with pytest.raises(BrokenRule, match="while ranks of others live"):
        witness.started("b", "another", 0, 2, (4, 2, ("h", 1)))
    witness.stopped("a")
    witness.started("b", "j", 1, 2, (4, 2, ("h", 1)))
    witness.stopped("b")
    with pytest.raises(BrokenRule, match="after generation 1 was started"):
        witness.started("a", "j", 0, 0, (4, 2, ("h", 1)))


def test_a_witness_sees_two_commands_in_one_place() -> None:
    witness = Witness()
    witness.applied("a", "j", 1, ("finished", 0, "a"))
    witness.applied("b", "j", 1, ["finished", 0, "a"])
    with pytest.raises(BrokenRule, match="applies entry 1 after 1"):
        witness.applied("a", "j", 1, ("finished", 0, "a"))
    with pytest.raises(BrokenRule, match="for one and"):
        witness.applied("c", "j", 1, ("finished", 0, "b"))
    witness.made("a", "j", 1, "state")
    witness.restored("d", "j", "state")
    with pytest.raises(BrokenRule, match="nobody had"):
        witness.restored("d", "j", "another")
    with pytest.raises(BrokenRule, match="the state after entry 1"):
        witness.made("b", "j", 1, "another")
    witness.applied("c", "another job", 1, ("finished", 0, "b"))
    witness.made("c", "another job", 1, "another")
