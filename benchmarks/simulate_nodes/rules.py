"""What must hold in every schedule, checked as it happens, by a witness who sees the whole world and its real time."""

from __future__ import annotations

import json
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


class Witness:
    """Sees every start and end of ranks, every election and every command that is applied."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        """Incarnations of nodes whose ranks live, and of which generation."""
        self.highest = -1
        self._formed: dict[int, _Formed] = {}
        self._places: dict[tuple[int, int], str] = {}
        self._leaders: dict[int, str] = {}
        self._commands: dict[int, Any] = {}
        self._last_index = 0
        self._applied: dict[str, int] = {}
        self._states: dict[int, Any] = {}

    def started(self, name: str, generation: int, first_rank: int, formed: tuple[int, int, tuple[str, int]]) -> None:
        """Note that a node's ranks start."""
        if self._formed.setdefault(generation, _Formed(*formed)) != _Formed(*formed):
            raise BrokenRule(f"two generations with number {generation}: {self._formed[generation]} and {formed}")
        if self._places.setdefault((generation, first_rank), name) != name:
            raise BrokenRule(
                f"rank {first_rank} of generation {generation} on {self._places[generation, first_rank]} and on {name}"
            )
        if name in self.running:
            raise BrokenRule(f"{name} starts generation {generation} while its ranks of {self.running[name]} live")
        if generation < self.highest:
            raise BrokenRule(f"{name} starts generation {generation} after generation {self.highest} was started")
        others = {each: other for each, other in self.running.items() if other != generation}
        if others:
            raise BrokenRule(f"{name} starts generation {generation} while ranks of others live: {others}")
        self.highest = generation
        self.running[name] = generation

    def stopped(self, name: str) -> None:
        """Note that no rank of a node lives any more."""
        self.running.pop(name, None)

    def elected(self, name: str, raft: RaftNode) -> None:
        """Note that a node leads: alone in its term, and with everything that was applied before it was elected."""
        if raft.term in self._leaders:
            if self._leaders[raft.term] != name:
                raise BrokenRule(f"two leaders in term {raft.term}: {self._leaders[raft.term]} and {name}")
            return
        is_newest = raft.term > max(self._leaders, default=0)
        self._leaders[raft.term] = name
        log, index = raft.log, self._last_index
        if is_newest and index > log.snapshot.last_index:
            held = _plain(log.entry(index).data) if index <= log.last_index else None
            if held != self._commands[index]:
                raise BrokenRule(
                    f"{name} leads in term {raft.term} with {held} as entry {index}, not {self._commands[index]}"
                )

    def applied(self, name: str, index: int, command: Any) -> None:
        """Note that a node carries out a command."""
        command = _plain(command)
        last = self._applied.get(name, 0)
        if index <= last:
            raise BrokenRule(f"{name} applies entry {index} after {last}")
        self._applied[name] = index
        if self._commands.setdefault(index, command) != command:
            raise BrokenRule(f"entry {index} is {self._commands[index]} for one and {command} for {name}")
        if index <= self._last_index:
            return
        self._last_index = index
        if command[0] == "gone" and command[1] in self.running:
            raise BrokenRule(f"{command[1]} is taken out ({command[2]}) while its ranks live")
        if command[0] == "form" and command[1] > self.highest and self.running:
            raise BrokenRule(f"generation {command[1]} is made while ranks live: {self.running}")

    def made(self, name: str, index: int, state: str) -> None:
        """Note the snapshot that a node makes of its state."""
        if self._states.setdefault(index, state) != state:
            raise BrokenRule(f"the state after entry {index} is {self._states[index]} for one and {state} for {name}")

    def restored(self, name: str, state: str) -> None:
        """Note the snapshot that a node takes over."""
        if state not in self._states.values():
            raise BrokenRule(f"{name} takes over a state that nobody had: {state}")
