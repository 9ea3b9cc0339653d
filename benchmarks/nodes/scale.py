"""What a restart costs the leader of a job, by the number of nodes: messages, bytes, and processor time.

    python -m benchmarks.nodes.scale --nodes 10,100,1000,10000
    python -m benchmarks.nodes.scale --real 32,100      control planes with real sockets and threads, in this process

One real leader, with its encoding and decoding, and as many nodes as wanted that are no more than what they say.
Sockets and authentication are not in it.
"""

from __future__ import annotations

import argparse
import random
import select
import sys
import time

from launcher.nodes.membership import NodeInfo, Phase
from launcher.nodes.plane import Plane, PlaneSettings
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, NodeProtocol
from launcher.nodes.session_messages import Doing, Granted, Renew, Status
from launcher.nodes.transport import Transport

__all__ = ["main", "real_restart", "restart_costs"]

SECOND = 1_000_000_000


class _Crowd:
    """A leader, and nodes that answer it."""

    def __init__(self, nodes: int) -> None:
        self.now = SECOND
        policy = Policy(nodes, nodes, False, 1000, 5 * SECOND, 30 * SECOND, 600 * SECOND)
        info = NodeInfo("host0", "10.0.0.1", 29400, "", 8)
        self.leader = NodeProtocol(
            "node-0", info, [(info.address, info.port)], policy, random.Random(1), self.now, founds=True
        )
        self.names = [f"node-{number}" for number in range(1, nodes)]
        self.seen = dict.fromkeys(self.names, (-1, -1))
        self.busy_seconds = 0.0
        self.messages = {"in": 0, "out": 0}
        self.bytes = {"in": 0, "out": 0}

    def say(self, name: str, status: Status) -> None:
        """Let one node speak; the leader's own node is the protocol's."""
        seen, voters = self.seen[name]
        renew = Renew(NodeInfo(name, "10.0.0.2", 29400, "", 8), status, self.now, seen, voters)
        raw = FORMAT.encode(renew)
        began = time.perf_counter()
        self.leader.receive(name, FORMAT.decode(raw), self.now)
        self.busy_seconds += time.perf_counter() - began
        self.messages["in"] += 1
        self.bytes["in"] += len(raw)

    def flush(self) -> None:
        """Let the leader do what follows, and its nodes hear it."""
        self.now += SECOND // 1000
        began = time.perf_counter()
        self.leader.flush(self.now)
        sent = [(name, FORMAT.encode(message)) for name, _, message in self.leader.outbox]
        self.busy_seconds += time.perf_counter() - began
        self.leader.outbox.clear()
        for name, raw in sent:
            self.messages["out"] += 1
            self.bytes["out"] += len(raw)
            message = FORMAT.decode(raw)
            if isinstance(message, Granted) and name in self.seen:
                seen, voters = self.seen[name]
                voters = message.voters_index if message.voters is not None else voters
                self.seen[name] = (message.view.version if message.view is not None else seen, voters)

    def all_say(self, doing: str, generation: int) -> None:
        """Let every node say the same, some dozens between two turns of the leader's loop."""
        status = Status(doing, generation, store_port=1000)
        self.leader.say(status, self.now)
        for at, name in enumerate(self.names):
            self.say(name, status)
            if at % 64 == 63:
                self.flush()
        self.flush()


def restart_costs(nodes: int) -> dict[str, float]:
    """Have a generation fail and the next one made.

    Returns:
        Messages and bytes per node, and seconds of the leader's processor for the whole restart.
    """
    crowd = _Crowd(nodes)
    while crowd.leader.membership.phase != Phase.RUNNING:
        crowd.all_say(Doing.IDLE, -1)
    crowd.all_say(Doing.RUNNING, 0)
    crowd.busy_seconds, crowd.messages, crowd.bytes = 0.0, {"in": 0, "out": 0}, {"in": 0, "out": 0}
    crowd.say(crowd.names[-1], Status(Doing.FAILED, 0, "a rank failed"))
    crowd.flush()
    crowd.all_say(Doing.IDLE, 0)
    crowd.all_say(Doing.RUNNING, 1)
    assert crowd.leader.membership.generation == 1
    assert crowd.leader.membership.phase == Phase.RUNNING
    return {
        "messages": (crowd.messages["in"] + crowd.messages["out"]) / nodes,
        "bytes": (crowd.bytes["in"] + crowd.bytes["out"]) / nodes,
        "seconds": crowd.busy_seconds,
    }


class _CountingTransport(Transport):
    """Counts the messages that its node sends."""

    sent = 0

    def send(self, node_id: str | None, address: tuple[str, int] | None, payload: bytes) -> None:
        """Count a message, and send it."""
        self.sent += 1
        super().send(node_id, address, payload)


def real_restart(nodes: int) -> tuple[float, float]:
    """Let control planes with sockets of their own make a generation, fail, and make the next one.

    Returns:
        Seconds from the failure until every node has been told its place in the next generation, and the messages that
        were sent meanwhile, per node. Renewals of leases that fall due in a slow restart are among them.
    """
    policy = Policy(nodes, nodes, False, 1000, 30 * SECOND, SECOND, 600 * SECOND)
    planes: list[Plane] = []
    transports: list[_CountingTransport] = []
    contact = ("127.0.0.1", 0)
    for number in range(nodes):
        name = f"node-{number}"
        transport = _CountingTransport("run", b"0123456789abcdef", name, ("127.0.0.1", 0), print)
        transports.append(transport)
        contact = transport.address if number == 0 else contact
        settings = PlaneSettings(
            "run", b"", name, name, "127.0.0.1", "", 8, (contact,), policy, number == 0
        )  # fmt: skip
        planes.append(Plane(settings, transport, lambda until_ns: None, lambda addresses, payload: None))
    for plane in planes:
        plane.start(Status(Doing.IDLE, -1, store_port=1000))
    _await(planes, 0, Doing.RUNNING)
    before, began = sum(each.sent for each in transports), time.monotonic()
    planes[-1].say(Status(Doing.FAILED, 0, "a rank failed"))
    _await(planes, 0, Doing.IDLE)
    _await(planes, 1, Doing.RUNNING)
    seconds, sent = time.monotonic() - began, sum(each.sent for each in transports) - before
    for plane in planes:
        plane.close(0.0)
    return seconds, sent / nodes


def _await(planes: list[Plane], generation: int, then: str) -> None:
    """Wait until every plane shows that a generation runs, or is over, and say what its node does then."""
    phase = Phase.RUNNING if then == Doing.RUNNING else Phase.STOPPING
    waiting = {plane.descriptor: plane for plane in planes}
    poll = select.poll()  # select() takes no descriptor above 1,023
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        for descriptor in [descriptor for descriptor, _ in poll.poll(500)] or list(waiting):
            view = waiting[descriptor].take_view()
            if view is not None and view.generation == generation and view.phase == phase:
                poll.unregister(descriptor)
                waiting.pop(descriptor).say(Status(then, generation, store_port=1000))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes.scale", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", default="10,100,1000,10000", help="comma list (default: %(default)s)")
    parser.add_argument("--real", default="", help="comma list: how long real control planes take instead")
    options = parser.parse_args()
    if options.real:
        print("| nodes | failure to the next generation, s | messages per node |\n|---|---|---|")
        for nodes in map(int, options.real.split(",")):
            seconds, messages = real_restart(nodes)
            print(f"| {nodes:,} | {seconds:.3f} | {messages:.2f} |", flush=True)
        return 0
    counts = [int(each) for each in options.nodes.split(",")]
    print("| nodes | messages per node | bytes per node | leader's processor, s |\n|---|---|---|---|")
    for nodes in counts:
        costs = restart_costs(nodes)
        print(f"| {nodes:,} | {costs['messages']:.2f} | {costs['bytes']:.0f} | {costs['seconds']:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
