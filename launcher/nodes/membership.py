"""What the nodes of a job agree on: who is there, which generation runs where, and how the job has ended.

A state machine in the sense of Raft: each voter applies the same commands in the same order, so it asks no clock and
no chance. Every rule that must hold whoever leads is here, and a command that breaks one is ignored:

* A generation is made by one command, its number is one more than the last, and the one before it is over.
* A generation fails once, however many nodes say so; each failure takes one from the budget of the job.
* What is said of another generation than the current one changes nothing.
* A job that has ended stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Membership", "NodeInfo", "Phase"]

_STRIKES_FORGOTTEN_AFTER = 10
"""Generations without a further strike."""


class Phase:
    """What the current generation is in; plain words, since they travel."""

    WAITING = "waiting"
    """No generation was made yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """The generation is over; its ranks are being stopped, and the next one is made when they are."""
    ENDED = "ended"


class NodeInfo(NamedTuple):
    """A node, as it introduces itself.

    Args:
        host: What it calls itself, to people and for strikes and exclusions.
        address: Where its launcher listens.
        port: See ``address``.
        order: What nodes are sorted by, as text, before the order of joining.
        slots: Ranks that it runs.
    """

    host: str
    address: str
    port: int
    order: str
    slots: int


class Membership:
    """The state; read it, and change it through :meth:`apply` alone."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        """Who is there, in the order of joining."""
        self.job = ""
        """Name of the node that has begun it: another job of the same run has another one."""
        self.generation = -1
        self.version = 0
        """Raised with whatever nodes must be told of."""
        self.roster = 0
        """Raised whenever a node joins or goes."""
        self.phase = Phase.WAITING
        self.members: tuple[str, ...] = ()
        """Of the current generation, in rank order; some may be gone by now."""
        self.slots: tuple[int, ...] = ()
        """How many ranks each member runs."""
        self.finished: set[str] = set()
        """Members all of whose ranks have ended with 0."""
        self.store: tuple[str, int] | None = None
        """Where the ranks of the current generation meet."""
        self.why = ""
        """Why the current generation is over, or the job has ended."""
        self.may_save = False
        """Nothing has failed: ranks that are stopped may save first."""
        self.failures = 0
        self.exit_code: int | None = None
        self.excluded: dict[str, str] = {}
        """Hosts that are to join no more, and why."""
        self.strikes: dict[str, tuple[int, int]] = {}
        """Host to (how often it was lost, in which generation last)."""

    # ---- as a state machine ------------------------------------------------------------------------------

    def apply(self, index: int, command: Sequence[Any]) -> None:
        """Carry out a command: its name, then its arguments."""
        if self.phase == Phase.ENDED:
            return
        name, *arguments = command
        getattr(self, f"_{name}")(*arguments)

    def snapshot(self) -> dict[str, Any]:
        """Return the state, of JSON's types."""
        # Copies: a snapshot is kept while the state goes on.
        return {
            **vars(self),
            "nodes": {name: list(info) for name, info in self.nodes.items()},
            "finished": sorted(self.finished),
            "excluded": dict(self.excluded),
            "strikes": {host: list(strikes) for host, strikes in self.strikes.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`snapshot` returned elsewhere."""
        self.__dict__.update(state)
        self.nodes = {name: NodeInfo(*info) for name, info in state["nodes"].items()}
        self.members, self.slots = tuple(state["members"]), tuple(state["slots"])
        self.finished = set(state["finished"])
        self.store = None if state["store"] is None else (state["store"][0], state["store"][1])
        self.strikes = {host: (count, last) for host, (count, last) in state["strikes"].items()}
        self.excluded = dict(state["excluded"])

    # ---- commands ---------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        self.job = self.job or name

    def _join(self, name: str, info: Sequence[Any]) -> None:
        node = NodeInfo(*info)
        if node.host not in self.excluded and name not in self.nodes:
            self.nodes[name] = node
            self.roster += 1

    def _gone(self, name: str, why: str, may_save: bool, is_excluded: bool, is_unhealthy: bool = False) -> None:
        """Take a node out; ``may_save`` where it said goodbye, so that nothing has failed."""
        if name not in self.nodes:
            return
        info = self.nodes.pop(name)
        self.roster += 1
        if is_excluded:
            self.excluded[info.host] = why
        elif not may_save or is_unhealthy:
            self.strikes[info.host] = (self.strikes_of(info.host) + 1, self.generation)
        if self.phase == Phase.RUNNING and name in self.members and name not in self.finished:
            self._over(why, may_save)

    def _failed(self, generation: int, name: str, why: str) -> None:
        if self.phase == Phase.RUNNING and generation == self.generation and name in self.members:
            self._over(why, False)

    def _restart(self, generation: int, name: str, why: str) -> None:
        """End a generation in which nothing has failed, so that the next one has other members.

        Not for a member whose ranks have all ended with 0: nobody needs it any more.
        """
        is_needed = name in self.members and name not in self.finished
        if self.phase == Phase.RUNNING and generation == self.generation and is_needed:
            self._over(why, True)

    def _finished(self, generation: int, name: str) -> None:
        if self.phase != Phase.RUNNING or generation != self.generation or name not in self.members:
            return
        self.finished.add(name)
        if self.finished.issuperset(self.members):
            self._end("every rank has ended with 0", 0)

    def _form(self, generation: int, members: Sequence[str], host: str, port: int) -> None:
        is_next = generation == self.generation + 1 and self.phase in (Phase.WAITING, Phase.STOPPING)
        if not is_next or not members or not self.nodes.keys() >= set(members):
            return
        self.generation, self.members, self.store = generation, tuple(members), (host, port)
        self.slots = tuple(self.nodes[name].slots for name in members)
        self.phase, self.why, self.may_save, self.finished = Phase.RUNNING, "", False, set()
        self.version += 1

    def _end(self, why: str, exit_code: int, may_save: bool = False) -> None:
        self.may_save = may_save and (self.phase == Phase.RUNNING or self.may_save)
        self.phase, self.why, self.exit_code = Phase.ENDED, why, exit_code
        self.version += 1

    def _over(self, why: str, may_save: bool) -> None:
        self.phase, self.why, self.may_save = Phase.STOPPING, why, may_save
        self.failures += not may_save
        self.version += 1

    # ---- questions --------------------------------------------------------------------------------------

    def refusal(self, name: str, info: NodeInfo, most: int) -> str:
        """Return why a node cannot join: its host was excluded, or there are ``most`` nodes. Empty for who is in."""
        if name in self.nodes:
            return ""
        if info.host in self.excluded:
            return f"node {info.host} was excluded from this job before: {self.excluded[info.host]}"
        return f"the job has {len(self.nodes)} nodes, as many as --nnodes lets in" if len(self.nodes) >= most else ""

    def strikes_of(self, host: str) -> int:
        """Return how often a host was lost; strikes lose their weight after ten generations without a further one."""
        count, last = self.strikes.get(host, (0, 0))
        return count if self.generation - last < _STRIKES_FORGOTTEN_AFTER else 0
