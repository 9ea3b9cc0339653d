"""One launcher of the simulation: its clock, its monitor and its ranks, around the protocol of a node."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.simulate_nodes.rules import Witness
from launcher.nodes.membership import Membership, NodeInfo, Phase
from launcher.nodes.protocol import Farewell, NodeProtocol
from launcher.nodes.session_messages import Doing, Status

if TYPE_CHECKING:
    from benchmarks.simulate_nodes.world import World

__all__ = ["Node"]


class _Witnessed(Membership):
    """A membership that tells the witness what it applies."""

    def __init__(self, witness: Witness, protocol: NodeProtocol) -> None:
        super().__init__()
        self.__dict__["_seen_by"] = (witness, protocol)

    def apply(self, index: int, command: Any) -> None:
        witness, protocol = self.__dict__["_seen_by"]
        job = self.job or command[1]  # the first command begins it
        witness.applied(protocol.name, job, index, command)
        super().apply(index, command)

    def snapshot(self) -> dict[str, Any]:
        state = super().snapshot()
        witness, protocol = state.pop("_seen_by")
        witness.made(protocol.name, self.job, protocol.raft.commit_index, json.dumps(state, sort_keys=True))
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        travelled = json.dumps(state, sort_keys=True)
        witness, protocol = self.__dict__["_seen_by"]
        if state["job"]:  # else it begins anew
            witness.restored(protocol.name, state["job"], travelled)
        super().restore(json.loads(travelled))


class Node:
    """One incarnation of a launcher, its monitor and its ranks.

    Args:
        world: Where it lives.
        place: Its machine.
        number: Of the incarnation, unique in the world.
        founds: Whether it begins the job.
    """

    def __init__(self, world: World, place: int, number: int, *, founds: bool) -> None:
        chance = world.chance
        self.world, self.place = world, place
        self.name = f"n{place}.{number}"
        self.rate = 1 + chance.choice((-1, 1, chance.uniform(-1, 1))) * world.rates_apart / 2
        self.offset_ns = chance.randrange(1000 * 1_000_000_000)
        self.paused_until = 0
        self.is_alive = True
        self.generation = -1
        self.doing = Doing.IDLE
        self.why = ""
        self.saved = -1
        self.has_finished = False
        self.ranks_until: int | None = None
        self.ended_at: int | None = None
        self.wakes_at = -1
        self.slots = world.slots[place] if place < len(world.slots) else 2
        info = NodeInfo(f"host{place}", f"a{place}", 1, f"{place:03}", self.slots)
        contacts = [(f"a{each}", 1) for each in range(world.places)]
        self.protocol = NodeProtocol(
            self.name, info, contacts, world.policy, random.Random(chance.random()), self.clock(), founds=founds
        )
        witnessed = _Witnessed(world.witness, self.protocol)
        self.protocol.membership = witnessed
        self.protocol.raft._machine = witnessed
        self.protocol.say(self.status(), self.clock())

    # ---- time --------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return this node's monotonic clock."""
        return self.offset_ns + int(self.world.now * self.rate)

    def real(self, clock_ns: int) -> int:
        """Return the world's time at which this node's clock shows a value."""
        return int((clock_ns - self.offset_ns) / self.rate) + 1

    @property
    def is_paused(self) -> bool:
        """Whether the launcher is stopped; its monitor and its ranks go on."""
        return self.paused_until > self.world.now

    # ---- the launcher ------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return what the launcher says of itself."""
        saved = self.saved if self.doing == Doing.RUNNING else -1
        port = 1000 + self.generation
        return Status(
            self.doing, self.generation, self.why, store_port=port, saved=saved, has_finished=self.has_finished
        )

    @property
    def has_ranks(self) -> bool:
        """Whether a rank lives."""
        return self.name in self.world.witness.running

    def look(self) -> bool:
        """Do what the launcher does on seeing its view; True where its status has changed."""
        view = self.protocol.view
        if view is None:
            return False
        if view.phase == Phase.ENDED:
            if self.doing == Doing.RUNNING:
                self.stop(Doing.FINISHED)
            elif self.ranks_until is None and not self.has_ranks:
                if self.ended_at is None:
                    self.ended_at = self.world.now
                if self.protocol.is_released or self.world.now - self.ended_at > 5 * self.world.policy.lease_ns:
                    self.exit("ended", view.exit_code)
            return False
        is_current = view.phase == Phase.RUNNING and view.generation == self.generation
        if self.doing == Doing.IDLE:
            may_run = self.protocol.session.holds_lease(self.clock())
            is_next = view.phase == Phase.RUNNING and view.generation > self.generation
            if may_run and is_next and view.group_rank is not None:
                self.generation, self.doing = view.generation, Doing.RUNNING
                place = (view.world_size, view.group_size, (view.store_host, view.store_port))
                job = self.protocol.session.job
                self.world.witness.started(self.name, job, view.generation, view.first_rank, place)
                lease_ns = self.world.policy.lease_ns
                lasts_ns = self.world.chance.randrange(lease_ns, 8 * lease_ns)
                self.world.at(self.world.now + lasts_ns, self._finish, view.generation)
                self.saved = -1
                if self.world.policy.joins_at_checkpoint:
                    self.world.at(self.world.now + lease_ns, self._save, view.generation)
                self._say()
                return True
        elif self.doing in (Doing.RUNNING, Doing.FAILED, Doing.FINISHED) and not is_current:
            self.stop(Doing.IDLE)
        return False

    def stop(self, then: str) -> None:
        """End the ranks within a while; then say what the node is."""
        if self.ranks_until is None:
            self.ranks_until = self.world.now + self.world.chance.randrange(self.world.longest_stop_ns)
            self.world.at(self.ranks_until, self._stopped, then)

    def fail(self) -> None:
        """Have a rank fail."""
        if self.is_alive and self.doing == Doing.RUNNING and self.has_ranks and not self.is_paused:
            self._change(Doing.FAILED, f"a rank failed on {self.name}")
            if self.world.chance.random() < 0.5:  # nor does a launcher wait for an answer
                self.stop(Doing.IDLE)

    def leave(self) -> None:
        """Send SIGTERM to a launcher."""
        if not self.is_alive or self.is_paused or self.doing in (Doing.LEAVING, Doing.LEFT):
            return
        if self.doing == Doing.FINISHED:
            self.has_finished = True
            self._left()
        else:
            self._change(Doing.LEAVING, f"{self.name} was asked to leave")
            self.world.at(self.world.now + self.world.chance.randrange(self.world.longest_stop_ns), self._left)

    def exit(self, why: str, code: int | None) -> None:
        """End the launcher."""
        if self.is_alive:
            self.is_alive = False
            self.world.exits.append((self.name, why, code))

    def _say(self) -> None:
        self.protocol.say(self.status(), self.clock())

    def _change(self, doing: str, why: str | None = None) -> None:
        self.doing = doing
        if why is not None:
            self.why = why
        self._say()
        self.world.after(self)

    def _stopped(self, then: str) -> None:
        if not self.is_alive or self._waits(self._stopped, then):
            return
        self.ranks_until = None
        self.world.witness.stopped(self.name)
        if self.doing not in (Doing.LEAVING, Doing.LEFT):
            self._change(then)

    def _finish(self, generation: int) -> None:
        """Have all ranks of a node end with 0, if they still run."""
        if not self.is_alive or self.generation != generation or self.doing != Doing.RUNNING:
            return
        if self.ranks_until is not None or not self.has_ranks or self._waits(self._finish, generation):
            return
        self.world.witness.stopped(self.name)
        self._change(Doing.FINISHED)

    def _save(self, generation: int) -> None:
        """Have all ranks of a node save a checkpoint, and later the next one."""
        if not self.is_alive or self.generation != generation or self.doing != Doing.RUNNING or not self.has_ranks:
            return
        if not self._waits(self._save, generation):
            self.saved += 1
            self._change(Doing.RUNNING)
            self.world.at(
                self.world.now + self.world.chance.randrange(1, self.world.policy.lease_ns), self._save, generation
            )

    def _left(self) -> None:
        if not self.is_alive or self._waits(self._left):
            return
        self.world.witness.stopped(self.name)
        self.world.at(self.world.now + self.world.policy.lease_ns, self.exit, "left", 0)
        self._change(Doing.LEFT)

    def _waits(self, what: Any, *arguments: Any) -> bool:
        """Put something off until the launcher goes on."""
        if self.is_paused:
            self.world.at(self.paused_until, what, *arguments)
            return True
        return False

    # ---- the monitor -------------------------------------------------------------------------------------

    def fence(self) -> None:
        """Have the monitor kill the ranks when the lease has run out by the node's clock, stopped launcher or not."""
        fence_ns = self.protocol.session.fence_ns
        if fence_ns is not None and self.has_ranks:
            self.world.at(self.real(fence_ns), self._fenced, fence_ns)

    def _fenced(self, fence_ns: int) -> None:
        if self.protocol.session.fence_ns == fence_ns and self.has_ranks:
            self.world.at(self.world.now + self.world.chance.randrange(self.world.policy.lease_ns // 10), self._killed)

    def _killed(self) -> None:
        self.world.witness.stopped(self.name)
        if self.is_alive and self.doing == Doing.RUNNING:
            self._change(Doing.FAILED, f"{self.name} was cut off")

    def farewell(self) -> None:
        """Have the monitor of a dead launcher kill the ranks and say so."""
        self.world.witness.stopped(self.name)
        for place in range(self.world.places):
            if place != self.place:
                word = Farewell(self.name, f"the launcher of {self.name} was killed")
                self.world.deliver(self, place, None, word)
