"""The faults of a schedule: at random times, or aimed at the moment when a leader has written a certain command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.simulate_nodes.node import Node
from benchmarks.simulate_nodes.world import MS, SECOND, World

__all__ = ["aim", "aim_at_a_member", "come_back", "strike"]

_COMMANDS = ("form", "form", "gone", "gone", "failed", "join", "finished", "restart")


def strike(world: World, node: Node | None = None) -> None:
    """Let one fault happen, to a node or to whom chance hits."""
    chance, alive = world.chance, world.alive
    if not alive:
        return
    if node is None or not node.is_alive:
        node = chance.choice(alive)
        if chance.random() < 0.3:
            node = _leader(world) or node
    until = world.now + int(chance.choice((0.2, 0.5, 1, 1.3, 2, 5)) * world.policy.lease_ns)
    what = chance.randrange(10)
    if what == 0:
        node.fail()
    elif what == 1:
        world.kill(node)
        come_back(world, node)
    elif what == 2:
        world.power_off(node)
        come_back(world, node)
    elif what == 3:
        _unreachable(world, node, until)
    elif what == 4:
        world.groups = {place: chance.randrange(2) for place in range(world.places)}
        world.at(until, world.groups.clear)
    elif what == 5:
        world.pause(node, until)
    elif what == 6:
        node.leave()
        come_back(world, node)
    elif what == 7:
        world.deaf.add(node.place)
        world.at(until, world.deaf.discard, node.place)
    elif what == 8:  # several, one after the other
        for each in chance.sample(alive, min(2, len(alive))):
            world.at(world.now + chance.randrange(SECOND), _unreachable, world, each, until)
    else:
        for each in alive:  # at once
            if chance.random() < 0.4:
                each.fail()


def aim(world: World, count: Callable[[], None]) -> None:
    """Have one or two faults wait for a command: the leader that writes it, another node, or both are hit."""
    chance = world.chance

    def hit(leader: Node, _: Any) -> None:
        count()
        others = [node for node in world.alive if node is not leader]
        if others and chance.random() < 0.7:
            victim = chance.choice(others)
            if chance.random() < 0.7:
                lease_ns = world.policy.lease_ns
                _unreachable(world, victim, world.now + lease_ns // 2 + chance.randrange(2 * lease_ns))
            else:
                strike(world, victim)
        if chance.random() < 0.5:
            how = chance.randrange(3)
            if how == 0:
                world.power_off(leader)
                come_back(world, leader)
            elif how == 1:
                _unreachable(world, leader, world.now + chance.randrange(2 * world.policy.lease_ns))
            else:
                world.pause(leader, world.now + chance.randrange(2 * world.policy.lease_ns))

    world.aims.append((chance.choice(_COMMANDS), hit))


def aim_at_a_member(world: World, count: Callable[[], None]) -> None:
    """Have a member miss that a generation is made, and be there again when it is being taken out."""
    chance = world.chance

    def miss(leader: Node, command: Any) -> None:
        others = [node for node in world.alive if node is not leader and node.name in command[2]]
        if not others:
            return
        count()
        victim = chance.choice(others)
        lease_ns = world.policy.lease_ns
        if chance.random() < 0.5:  # what it was told comes when all is over
            world.slow[victim.place] = world.now + lease_ns + chance.randrange(lease_ns)
            return
        world.cut.add(victim.place)
        world.at(world.now + 3 * lease_ns, world.cut.discard, victim.place)
        world.aims.append(("gone", lambda leader, _: back(leader, victim)))

    def back(leader: Node, victim: Node) -> None:
        count()
        world.cut.discard(victim.place)
        for node in world.alive:  # so that it is not agreed on at once
            if node is not leader and node is not victim:
                world.slow[node.place] = world.now + 20 * MS + chance.randrange(300 * MS)
        if chance.random() < 0.4:
            world.at(world.now + chance.randrange(10 * MS), world.power_off, leader)

    world.aims.append(("form", miss))


def come_back(world: World, node: Node) -> None:
    """Start a launcher again on a machine, perhaps."""

    def start() -> None:
        if not world.nodes[node.place].is_alive:
            world.start_again(node.place)

    if world.chance.random() < 0.7:
        world.at(world.now + 200 * MS + world.chance.randrange(4 * SECOND), start)


def _unreachable(world: World, node: Node, until: int) -> None:
    """Cut a machine off; in some cases what is on its way is held up first."""
    world.at(until, world.cut.discard, node.place)
    if world.chance.random() < 0.3:
        held_until = world.now + world.chance.randrange(world.policy.lease_ns * 7 // 10)
        world.slow[node.place] = held_until
        if held_until + MS < until:
            world.at(held_until + MS, world.cut.add, node.place)
    else:
        world.cut.add(node.place)


def _leader(world: World) -> Node | None:
    return next((node for node in world.alive if node.protocol.raft.is_leader), None)
