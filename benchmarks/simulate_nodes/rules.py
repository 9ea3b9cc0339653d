"""What must hold in every schedule, checked as it happens, by a witness who sees the whole world and its real time."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

from launcher.nodes.raft import RaftNode

__all__ = ["BrokenRule", "Witness"]


def _plain(command: Any) -> Any:
    """Return a command as it is after it has travelled."""
    return json.loads(json.dumps(command))


class BrokenRule(AssertionError):
    """A rule was broken; the text says which, when and by whom."""


class _Formed(NamedTuple):
    world_size: int
    group_size: int
    store: tuple[str, int]


class _Seen:
    """What was seen of one job."""

    def __init__(self) -> None:
        self.highest = -1
        self.formed: dict[int, _Formed] = {}
        self.places: dict[tuple[int, int], str] = {}
        self.leaders: dict[int, str] = {}
        self.commands: dict[int, Any] = {}
        self.last_index = 0
        self.states: dict[int, Any] = {}


class Witness:
    """Sees every start and end of ranks, every election and every command that is applied.

    A launcher that is started again where the job was begun begins another one, which is to come to nothing while the
    first one lives. What is agreed in one job is compared within it; ranks of two jobs must never live at once.
    """

    def __init__(self) -> None:
        self.running: dict[str, tuple[str, int]] = {}
        """Incarnations of nodes whose ranks live, and of which job and generation."""
        self.is_fixed = False
        """Every generation of a job has the same places."""
        self._jobs: defaultdict[str, _Seen] = defaultdict(_Seen)
        self._applied: dict[tuple[str, str], int] = {}

    @property
    def generations(self) -> int:
        """How many generations were started, of all jobs."""
        return sum(seen.highest + 1 for seen in self._jobs.values())

    def started(
        self, name: str, job: str, generation: int, first_rank: int, formed: tuple[int, int, tuple[str, int]]
    ) -> None:
        """Note that a node's ranks start."""
        seen = self._jobs[job]
        if seen.formed.setdefault(generation, _Formed(*formed)) != _Formed(*formed):
            raise BrokenRule(f"two generations with number {generation}: {seen.formed[generation]} and {formed}")
        if self.is_fixed and len({(each.world_size, each.group_size) for each in seen.formed.values()}) > 1:
            raise BrokenRule(f"generations of a fixed job differ in size: {seen.formed}")
        if seen.places.setdefault((generation, first_rank), name) != name:
            raise BrokenRule(
                f"rank {first_rank} of generation {generation} on {seen.places[generation, first_rank]} and on {name}"
            )
        if name in self.running:
            raise BrokenRule(f"{name} starts generation {generation} while its ranks of {self.running[name]} live")
        if generation < seen.highest:
            raise BrokenRule(f"{name} starts generation {generation} after generation {seen.highest} was started")
        others = {each: other for each, other in self.running.items() if other != (job, generation)}
        if others:
            raise BrokenRule(f"{name} starts generation {generation} of {job} while ranks of others live: {others}")
        seen.highest = generation
        self.running[name] = job, generation

    def stopped(self, name: str) -> None:
        """Note that no rank of a node lives any more."""
        self.running.pop(name, None)

    def elected(self, name: str, job: str, raft: RaftNode) -> None:
        """Note that a node leads: alone in its term, and with everything that was applied before it was elected."""
        seen = self._jobs[job]
        if raft.term in seen.leaders:
            if seen.leaders[raft.term] != name:
                raise BrokenRule(f"two leaders in term {raft.term}: {seen.leaders[raft.term]} and {name}")
            return
        is_newest = raft.term > max(seen.leaders, default=0)
        seen.leaders[raft.term] = name
        log, index = raft.log, seen.last_index
        if is_newest and index > log.snapshot.last_index:
            held = _plain(log.entry(index).data) if index <= log.last_index else None
            if held != seen.commands[index]:
                raise BrokenRule(
                    f"{name} leads in term {raft.term} with {held} as entry {index}, not {seen.commands[index]}"
                )

    def applied(self, name: str, job: str, index: int, command: Any) -> None:
        """Note that a node carries out a command."""
        seen = self._jobs[job]
        command = _plain(command)
        last = self._applied.get((name, job), 0)
        if index <= last:
            raise BrokenRule(f"{name} applies entry {index} after {last}")
        self._applied[name, job] = index
        if seen.commands.setdefault(index, command) != command:
            raise BrokenRule(f"entry {index} is {seen.commands[index]} for one and {command} for {name}")
        if index <= seen.last_index:
            return
        seen.last_index = index
        # It may have asked this job to let it in, and have joined another one since: there its ranks may live.
        if command[0] == "gone" and self.running.get(command[1], ("", 0))[0] == job:
            raise BrokenRule(f"{command[1]} is taken out ({command[2]}) while its ranks live")
        if command[0] == "form" and command[1] > seen.highest and self.running:
            raise BrokenRule(f"generation {command[1]} of {job} is made while ranks live: {self.running}")

    def made(self, name: str, job: str, index: int, state: str) -> None:
        """Note the snapshot that a node makes of its state."""
        states = self._jobs[job].states
        if states.setdefault(index, state) != state:
            raise BrokenRule(f"the state after entry {index} is {states[index]} for one and {state} for {name}")

    def restored(self, name: str, job: str, state: str) -> None:
        """Note the snapshot that a node takes over."""
        if state not in self._jobs[job].states.values():
            raise BrokenRule(f"{name} takes over a state that nobody had: {state}")
