"""What a voter knows and how it follows: the state that elections and replication share."""

from __future__ import annotations

import random
from typing import Any, NamedTuple, Protocol

from launcher.nodes.raft_log import RaftLog, Snapshot
from launcher.nodes.raft_messages import RaftMessage
from launcher.nodes.raft_progress import Progress, reached_by_majority

__all__ = ["RaftState", "StateMachine", "Timing"]


class Timing(NamedTuple):
    """How long a voter waits, in nanoseconds.

    Args:
        heartbeat_ns: Between two messages of a leader to each voter.
        election_ns: At least this long without a leader before a voter stands; at most twice as long.
    """

    heartbeat_ns: int
    election_ns: int


class StateMachine(Protocol):
    """What committed commands change, the same on every voter."""

    def apply(self, index: int, command: Any) -> None:
        """Carry out a command."""

    def snapshot(self) -> Any:
        """Return the state, of JSON's types."""

    def restore(self, state: Any) -> None:
        """Take over what :meth:`snapshot` returned elsewhere."""


class RaftState:
    """State and clock of one voter, or of somebody who may become one; see :mod:`launcher.nodes.raft`.

    Args:
        name: Unique among all incarnations of all nodes.
        machine: What commands are applied to.
        timing: How long to wait.
        chance: Where election timeouts come from.
        now_ns: The monotonic clock.
        founds: Begin as the only voter. Others begin without any, and wait until a leader speaks to them.
    """

    def __init__(
        self, name: str, machine: StateMachine, timing: Timing, chance: random.Random, now_ns: int, *, founds: bool
    ) -> None:
        self.name = name
        self.term = 0
        self.leader: str | None = None
        self.commit_index = 0
        self.outbox: list[tuple[str, RaftMessage]] = []
        self.role = "follower"
        self.log = RaftLog(Snapshot(0, 0, (name,) if founds else (), machine.snapshot()))
        self.elected_ns: int | None = None
        """When this one became leader; None while it is not."""
        self.predecessors_contact_ns: int | None = None
        """Of a leader: no leader before it can have had a majority after this."""
        self._machine, self._timing, self._chance = machine, timing, chance
        self._voted_for: str | None = None
        self._contact_ns: int | None = None
        self._promised_ns = now_ns
        """The latest that a leader has answered with."""
        self._ages: dict[str, int | None] = {}
        self._progress: dict[str, Progress] = {}
        self._applied = 0
        self._is_unsent = False
        """A leader has entries, or a commit index, that it has not sent."""
        self._is_asked = False
        """It stands though others may hear a leader: one has asked it to, or is known to be dead."""
        self._is_told_in: int | None = None
        """The term whose leader will never speak again, as somebody knows, while no leader has spoken since."""
        self._due_ns = now_ns
        if not founds:
            self._await_leader(now_ns)

    @property
    def is_leader(self) -> bool:
        """Return whether this one leads, as far as it knows."""
        return self.role == "leader"

    @property
    def voters(self) -> tuple[str, ...]:
        """Who votes."""
        return self.log.voters

    @property
    def is_current(self) -> bool:
        """Return whether it leads and has committed an entry of its term: it knows all that was committed before."""
        return self.is_leader and self.log.term_at(self.commit_index) == self.term

    @property
    def _may_stand(self) -> bool:
        """Return whether this one votes by the voters in force, or did before a change that is not committed yet.

        A server that the newest entry removes must go on to stand, without counting itself, since nobody else may hold
        that entry (dissertation, 4.2.2).
        """
        return self.name in self.voters or self.name in self.log.voters_at(self.commit_index)

    @property
    def may_change_voters(self) -> bool:
        """Return whether the last change is committed, and an entry of this term (the correction of 2015)."""
        return self.is_current and self.log.voters_index <= self.commit_index

    @property
    def due_ns(self) -> int | None:
        """When to call :meth:`tick`; None while nothing is due."""
        return self._due_ns if self.is_leader or self._may_stand else None

    def majority_contact_ns(self, now_ns: int) -> int:
        """Return when a leader sent what a majority has answered, by its own clock."""
        assert self.elected_ns is not None
        stamps = []
        for voter in self.voters:
            stamp = now_ns if voter == self.name else self._progress[voter].acknowledged_ns
            stamps.append(self.elected_ns if stamp is None else stamp)
        contact_ns = reached_by_majority(stamps)
        # With another set of voters it may be earlier than what was answered before, and what was granted by that.
        self._promised_ns = max(contact_ns, self._promised_ns)
        return contact_ns

    # ---- following ----------------------------------------

    def _await_leader(self, now_ns: int) -> None:
        # Who knows that there is no leader has to wait only for those who stand, two of whom may have met.
        longest_ns = self._timing.election_ns // (1 if self._is_told_in is None else 4)
        self._due_ns = now_ns + longest_ns + self._chance.randrange(1 + longest_ns)

    def _follow(self, term: int, leader: str | None, now_ns: int) -> None:
        if self.is_leader:
            self.majority_contact_ns(now_ns)
            self._contact_ns = max(self._promised_ns, self._contact_ns or self._promised_ns)
        if term > self.term:
            self.term, self._voted_for = term, None
        self.role, self.leader, self.elected_ns = "follower", leader, None
        self._progress.clear()
        if leader is not None:
            self._is_told_in = None
        self._await_leader(now_ns)

    def _contact_age_ns(self, now_ns: int) -> int | None:
        return None if self._contact_ns is None else now_ns - self._contact_ns

    def _hears_leader(self, now_ns: int) -> bool:
        if self.is_leader:
            return now_ns - self.majority_contact_ns(now_ns) < self._timing.election_ns
        age_ns = self._contact_age_ns(now_ns)
        return self.leader is not None and age_ns is not None and age_ns < self._timing.election_ns
