"""The simulated world: nodes with clocks and launchers of their own, and a network between them, in virtual time.

Nothing in it is random but through the seed, so a schedule that fails is replayed by its number.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Any

from benchmarks.simulate_nodes.node import Node
from benchmarks.simulate_nodes.rules import Witness
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, Message

__all__ = ["MS", "SECOND", "World"]

MS = 1_000_000
SECOND = 1_000 * MS


class World:
    """See the module.

    Args:
        seed: Of everything.
        places: Machines.
        policy: Of the job.
    """

    def __init__(self, seed: int, places: int, policy: Policy) -> None:
        self.seed, self.places, self.policy = seed, places, policy
        self.chance = random.Random(seed)
        self.now = 0
        self.witness = Witness()
        self.nodes: dict[int, Node] = {}
        self.messages = 0
        self.exits: list[tuple[str, str, int | None]] = []
        self.trace = 0
        """A checksum of everything that has happened."""
        self.aims: list[tuple[str, Callable[[Node, Any], None]]] = []
        """The name of a command, and what happens (with the leader, and the command) when it has just written one."""
        # ---- the network and the machines ----
        self.loss = 0.0
        """Share of messages that are lost."""
        self.late, self.longest_late_ns = 0.01, policy.lease_ns // 2
        """Share of messages that are late, and by how much at most."""
        self.twice = 0.0
        """Share of messages that arrive twice."""
        self.is_encoded = False
        """Messages travel as bytes."""
        self.rates_apart = 0.004
        """By how much clocks differ in rate at most."""
        self.longest_stop_ns = max(1, policy.lease_ns // 4)
        self.slots: tuple[int, ...] = ()
        """How many ranks each machine runs; beyond the end two."""
        self.cut: set[int] = set()
        self.deaf: set[int] = set()
        """Machines that nothing reaches, though they are heard."""
        self.slow: dict[int, int] = {}
        """Machines whose messages, to and from them, are held up, and until when."""
        self.groups: dict[int, int] = {}
        self._written: dict[str, int] = {}
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._incarnations = 0

    # ---- time -------------------------------------------------------------------------------------------

    def at(self, when: int, what: Callable[..., None], *arguments: Any) -> None:
        """Have something happen at a time."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, what, arguments))

    def run(self, until: int, stops: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until and not stops():
            self.now, count, what, arguments = heapq.heappop(self._events)
            self.trace = zlib.crc32(b"%d %d" % (self.now, count), self.trace)
            what(*arguments)
        if not stops():
            self.now = max(self.now, until)

    # ---- nodes ------------------------------------------------------------------------------------------

    def start_again(self, place: int) -> Node:
        """Start a launcher on a machine where there was one; see :mod:`launcher.agent.open_plane` for who begins."""
        return self.start(place, founds=place == 0 and 2 * self.policy.least > self.policy.most)

    def start(self, place: int, *, founds: bool = False) -> Node:
        """Start a launcher on a machine."""
        self._incarnations += 1
        node = self.nodes[place] = Node(self, place, self._incarnations, founds=founds)
        self.after(node)
        return node

    @property
    def alive(self) -> list[Node]:
        """Launchers that live."""
        return [node for node in self.nodes.values() if node.is_alive]

    def after(self, node: Node) -> None:
        """Send what a node has to send, let its launcher look, and see to it that it wakes in time."""
        if not node.is_alive or node.paused_until > self.now:
            return
        for _ in range(3):
            if not self._turn(node):
                break
        if node.is_alive:
            self._see_to(node)

    def _turn(self, node: Node) -> bool:
        """Have a node do what is due; whether its launcher has more to say."""
        node.protocol.flush(node.clock())
        if node.protocol.raft.is_leader:
            raft = node.protocol.raft
            self.witness.elected(node.name, node.protocol.membership.job or raft.voters[0], raft)
        self._send(node)
        if self.aims:
            self._aim(node)
        return node.is_alive and node.look()

    def _see_to(self, node: Node) -> None:
        """Have a node woken, and its ranks killed, when it is time."""
        wakes_at = node.real(node.protocol.due_ns)
        if node.wakes_at <= self.now or wakes_at < node.wakes_at:
            node.wakes_at = max(wakes_at, self.now + 1)
            self.at(node.wakes_at, self._wake, node, node.wakes_at)
        node.fence()

    def _wake(self, node: Node, when: int) -> None:
        if node.wakes_at == when and node.is_alive:
            node.wakes_at = -1
            self.after(node)

    def _aim(self, node: Node) -> None:
        """Let the fault happen that waits for what a leader has written."""
        raft = node.protocol.raft
        last, self._written[node.name] = self._written.get(node.name, 0), raft.log.last_index
        if not raft.is_leader:
            return
        first = max(last, raft.log.snapshot.last_index) + 1
        # Read before any of them is met by a fault, which may have the leader replace its log by a snapshot.
        for entry in [raft.log.entry(index) for index in range(first, raft.log.last_index + 1)]:
            for aim in [each for each in self.aims if entry.kind == "command" and each[0] == entry.data[0]]:
                if aim not in self.aims:
                    continue  # what the one before it has done was the aim of this one, too
                self.aims.remove(aim)
                aim[1](node, entry.data)

    # ---- the network -------------------------------------------------------------------------------------

    def _send(self, node: Node) -> None:
        for name, address, message in node.protocol.outbox:
            place = int(address[0][1:]) if address is not None else int(name[1:].split(".")[0]) if name else None
            if place is not None:
                self.deliver(node, place, name, message)
        node.protocol.outbox.clear()

    def deliver(self, node: Node, place: int, name: str | None, message: Message) -> None:
        """Put a message on its way, unless the network loses it."""
        chance = self.chance
        self.messages += 1
        if self.loss and chance.random() < self.loss:
            return
        is_twice = self.twice and chance.random() < self.twice
        sent: Message | bytes = FORMAT.encode(message) if self.is_encoded else message
        for _ in range(2 if is_twice else 1):
            delay = int(chance.expovariate(1 / MS)) + 100_000
            if chance.random() < self.late:
                delay += chance.randrange(self.longest_late_ns)
            self.at(self.now + delay, self._arrive, node.name, node.place, place, name, sent)

    def is_linked(self, one: int, other: int) -> bool:
        """Whether the network carries messages from one machine to another."""
        if one in self.cut or other in self.cut or other in self.deaf:
            return False
        return self.groups.get(one, 0) == self.groups.get(other, 0)

    def _arrive(self, sender: str, origin: int, place: int, name: str | None, sent: Message | bytes) -> None:
        node = self.nodes.get(place)
        if node is None or not node.is_alive or not self.is_linked(origin, place):
            return
        if name is not None and node.name != name:
            return
        held_until = max(node.paused_until, self.slow.get(place, 0), self.slow.get(origin, 0))
        if held_until > self.now:
            self.at(held_until, self._arrive, sender, origin, place, name, sent)
            return
        message = FORMAT.decode(sent) if isinstance(sent, bytes) else sent
        node.protocol.receive(sender, message, node.clock())
        self.after(node)

    # ---- faults -----------------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """Kill a launcher; its monitor kills the ranks and says so."""
        if node.is_alive:
            node.is_alive = False
            self.at(self.now + self.chance.randrange(SECOND // 10), node.farewell)

    def power_off(self, node: Node) -> None:
        """Take a machine away without a word."""
        node.is_alive = False
        self.witness.stopped(node.name)

    def pause(self, node: Node, until: int) -> None:
        """Stop a launcher as SIGSTOP does; its monitor and its ranks go on."""
        if node.is_alive:
            node.paused_until = until
            self.at(until, self.after, node)
