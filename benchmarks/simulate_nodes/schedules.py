"""Schedules of faults, drawn from a seed, and what each must come to."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulate_nodes.faults import aim, aim_at_a_member, strike
from benchmarks.simulate_nodes.node import Node
from benchmarks.simulate_nodes.rules import BrokenRule
from benchmarks.simulate_nodes.world import MS, SECOND, World
from launcher.nodes import raft
from launcher.nodes.membership import Phase
from launcher.nodes.policy import Policy
from launcher.nodes.session_messages import Doing

__all__ = ["Outcome", "explore"]

_LEASE_NS = SECOND
_SEEDS_WITH_CHECKPOINTS = 500_000
"""From here on the nodes of every third schedule save checkpoints, after which newcomers take part. Seeds below keep
their schedules: some of them are kept for what they have found."""
_SEEDS_WITH_SLOTS = 2_000_000
"""From here on machines of every second schedule run different numbers of ranks."""
_LONGEST_FAULTS_NS = 12 * SECOND
_AFTER_FAULTS_NS = 3 * SECOND
_LONGEST_CALM_NS = 10 * _LEASE_NS
"""When every fault is over, a generation runs within this, or the job has ended."""
_LONGEST_END_NS = 60 * _LEASE_NS
_LOOK_NS = 50 * MS


class Outcome(NamedTuple):
    """What a schedule has come to.

    Args:
        counts: How much of what there was in it.
        trace: A checksum of everything that has happened in it.
        calm_ns: How long after the last fault a generation ran or the job had ended; None where nobody could decide.
    """

    counts: dict[str, int]
    trace: int
    calm_ns: int | None


def explore(seed: int) -> Outcome:
    """Run one schedule.

    Raises:
        BrokenRule: A rule did not hold, or a job that could go on has not gone on, or not ended, in time.
    """
    world = _world(seed)
    chance = world.chance
    counts = {"faults": 0}

    def count() -> None:
        counts["faults"] += 1

    def fault() -> None:
        count()
        strike(world)

    def first_start(place: int) -> None:
        world.start(place, founds=place == 0)

    for place in range(world.places):
        world.at(chance.randrange(SECOND), first_start, place)
    for _ in range(chance.choice((0, 1, 2, 3))):
        world.at(chance.randrange(4 * SECOND), aim, world, count)
    for _ in range(chance.choice((0, 0, 1))):
        world.at(chance.randrange(3 * SECOND), aim_at_a_member, world, count)
    when = 500 * MS
    for _ in range(chance.randrange(1, 9)):
        when += int(chance.expovariate(1 / (0.8 * SECOND)))
        if when > _LONGEST_FAULTS_NS:
            break
        world.at(SECOND + when, fault)
    with _short_logs(chance.choice((2, 6, 1024))):
        world.run(SECOND + min(when + _AFTER_FAULTS_NS, _LONGEST_FAULTS_NS))
        heal(world)
        calm_ns = _wait_for_calm(world)
        if seed % 3 == 0:
            _wait_for_the_end(world)
    counts["generations"] = world.witness.generations
    counts["messages"] = world.messages
    counts["jobs without a majority"] = int(calm_ns is None)
    return Outcome(counts, world.trace, calm_ns)


def has_ended(world: World) -> bool:
    """Whether anybody has heard that the job has ended."""
    views = [node.protocol.view for node in world.nodes.values()]
    return any(view is not None and view.phase == Phase.ENDED for view in views)


def heal(world: World) -> None:
    """End every fault; whoever is missing comes back."""
    world.cut.clear()
    world.deaf.clear()
    world.slow.clear()
    world.groups.clear()
    world.aims.clear()
    world.loss = world.late = world.twice = 0.0
    for node in world.alive:
        if node.is_paused:
            node.paused_until = world.now
            world.after(node)
    if has_ended(world):
        return
    for place in range(world.places):
        if place not in world.nodes or not world.nodes[place].is_alive:
            world.start_again(place)


def can_decide(world: World) -> bool:
    """Whether a job that enough nodes can belong to can still agree; see :func:`_can_decide`."""
    jobs: dict[str, list[Node]] = {}
    for node in world.alive:
        jobs.setdefault(node.protocol.session.job, []).append(node)
    begun = {job for job, nodes in jobs.items() if any(_has_begun(node) for node in nodes)}
    free = {node.name for job, nodes in jobs.items() for node in nodes if job not in begun and _is_free(node)}
    return any(
        len({node.name for node in jobs[job]} | free) >= world.policy.least and _can_decide(jobs[job])
        for job in begun or jobs
    )


def _is_free(node: Node) -> bool:
    """Whether a node that waits for a first generation can join another job; the only voter may have left meanwhile."""
    return node.protocol.raft.is_leader or not node.protocol.raft.log.last_index


def _has_begun(node: Node) -> bool:
    return node.protocol.view is not None and node.protocol.view.generation >= 0


def _can_decide(nodes: list[Node]) -> bool:
    """Whether the living of a job can still agree: they are a majority of the voters that were agreed on last.

    Voters that are not agreed on yet are no excuse, unless one more was being let in, or one taken out that had been
    lost: who needs another one that is lost meanwhile cannot go on.
    """
    newest = max(nodes, key=lambda node: (node.protocol.raft.log.last_term, node.protocol.raft.log.last_index))
    index, agreed = max(
        (node.protocol.raft.commit_index, node.protocol.raft.log.voters_at(node.protocol.raft.commit_index))
        for node in nodes
    )
    latest = newest.protocol.raft.voters
    there = set(newest.protocol.membership.nodes)
    if newest.protocol.raft.log.voters_index > index and not (set(agreed) - set(latest)) & there:
        agreed = latest
    names = {node.name for node in nodes}
    return 2 * sum(voter in names for voter in agreed) > len(agreed)


def is_calm(world: World) -> bool:
    """Whether a generation runs with all its members, or the job has ended."""
    if has_ended(world):
        return True
    leaders = [node.protocol.membership for node in world.alive if node.protocol.raft.is_leader]
    busy = {(node.name, node.generation) for node in world.alive if node.doing in (Doing.RUNNING, Doing.FINISHED)}
    return any(
        each.phase == Phase.RUNNING and {(name, each.generation) for name in each.members} <= busy for each in leaders
    )


def _fill_its_places(world: World) -> bool:
    """Whether the living of a fixed job that has begun have the numbers of ranks that its places need."""
    newest = max((node.protocol.membership for node in world.alive), key=lambda each: each.generation)
    needed = Counter(newest.slots) if world.policy.is_fixed else Counter[int]()
    return needed <= Counter(node.slots for node in world.alive)


def _wait_for_calm(world: World) -> int | None:
    began, last = world.now, 2 * _LEASE_NS
    while not is_calm(world):
        passed = world.now - began
        if not can_decide(world) and passed > last:
            return None
        if (len(world.alive) < world.policy.least or not _fill_its_places(world)) and passed > last:
            return None  # somebody has left for good, and the others wait for longer than is looked at here
        if can_decide(world) and passed > _LONGEST_CALM_NS + world.longest_stop_ns:
            raise BrokenRule(f"{passed / SECOND:.1f} s after the last fault no generation runs: {_told(world)}")
        world.run(world.now + _LOOK_NS)
    return world.now - began


def _wait_for_the_end(world: World) -> None:
    began = world.now
    while world.now - began < _LONGEST_END_NS and can_decide(world):
        if not [node for node in world.alive if not has_ended(world) or node.protocol.view is not None]:
            return  # who came after the end finds nobody
        world.run(world.now + 10 * _LOOK_NS)
    if can_decide(world) and not has_ended(world):
        raise BrokenRule(f"the job has not ended: {_told(world)}")


def _told(world: World) -> dict[str, object]:
    return {node.name: (node.doing, node.generation, node.protocol.view) for node in world.alive}


def _world(seed: int) -> World:
    world = World(seed, 0, Policy(0, 0, False, 0, _LEASE_NS, 0, 0))
    chance = world.chance
    world.places = places = chance.choice((2, 3, 4, 4, 5, 6))
    world.policy = Policy(
        least=chance.randrange(1, places + 1),
        most=places,
        is_fixed=chance.random() < 0.5,
        max_restarts=chance.choice((2, 1000, 1000)),
        lease_ns=_LEASE_NS,
        last_call_ns=SECOND,
        join_ns=30 * SECOND,
        joins_at_checkpoint=seed >= _SEEDS_WITH_CHECKPOINTS and seed % 3 == 0,
    )
    world.loss = chance.choice((0.0, 0.0, 0.02, 0.2))
    world.late = chance.choice((0.0, 0.01, 0.01, 0.1))
    world.longest_late_ns = int(chance.choice((0.5, 0.5, 1.5, 3)) * _LEASE_NS)
    world.twice = chance.choice((0.0, 0.0, 0.05))
    world.is_encoded = chance.random() < 0.15
    world.rates_apart = chance.choice((0.0, 0.004, 0.01))
    world.witness.is_fixed = world.policy.is_fixed
    if seed >= _SEEDS_WITH_SLOTS and seed % 2 == 0:
        world.slots = tuple(chance.choice((1, 1, 1, 2, 3)) for _ in range(places))
    world.longest_stop_ns = int(chance.choice((0.05, 0.25, 0.25, 1.5)) * _LEASE_NS)
    return world


@contextlib.contextmanager
def _short_logs(entries: int) -> Iterator[None]:
    """Have logs replaced by snapshots soon, so that nodes that are behind are sent those."""
    kept, raft._ENTRIES_KEPT = raft._ENTRIES_KEPT, entries
    try:
        yield
    finally:
        raft._ENTRIES_KEPT = kept
