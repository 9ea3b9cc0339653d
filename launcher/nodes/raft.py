"""Agreement among the voters: Raft, as published, without sockets, threads or a clock of its own.

Sources: D. Ongaro and J. Ousterhout, "In Search of an Understandable Consensus Algorithm (Extended Version)", 2014;
D. Ongaro, "Consensus: Bridging Theory and Practice", 2014: membership changes of one server at a time (4.1 to 4.4,
with the correction of 2015 that a leader first commits an entry of its own term), leadership transfer (3.10),
PreVote (9.6), a leader that steps down when it hears from no majority (6.2), and servers that do not help to depose a
leader of whom they have just heard (4.2.3).

Nothing is kept on disk. A voter is one incarnation of a launcher; who starts again comes as somebody new, and the one
before it has failed for good, as the paper's servers do when they lose their disks. A vote can so never be forgotten
and given twice. The price: when a majority of the voters is lost at once, nobody can decide any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.nodes.raft_election import RaftElections
from launcher.nodes.raft_log import Entry, RaftLog
from launcher.nodes.raft_messages import Append, Appended, Install, RaftMessage, RequestVote, TimeoutNow, Vote
from launcher.nodes.raft_progress import Progress, reached_by_majority
from launcher.nodes.raft_state import StateMachine, Timing

__all__ = ["RaftNode", "StateMachine", "Timing"]

_ENTRIES_AT_ONCE = 256
_ENTRIES_KEPT = 1024
_ANSWERS_WITHIN_HEARTBEATS = 3


class RaftNode(RaftElections):
    """One voter, or somebody who may become one; see :class:`launcher.nodes.raft_state.RaftState` for the arguments."""

    # ---- what the owner calls ------------------------------------------------------------

    def propose(self, command: Any, now_ns: int) -> bool:
        """Append a command to a leader's log; :meth:`flush` sends it, and it is applied if it is committed."""
        return self._propose(Entry(self.term, "command", command), now_ns)

    def learn(self, names: Sequence[str], now_ns: int) -> None:
        """Replicate to these, too, so that they can become voters."""
        for name in names:
            if self.is_leader and name not in self._progress and name != self.name:
                self._progress[name] = Progress(self.log.last_index + 1)
                self._send_entries(name, now_ns)
        for name in [each for each in self._progress if each not in self.voters and each not in names]:
            del self._progress[name]

    def has_caught_up(self, name: str, now_ns: int) -> bool:
        """Return whether a learner holds everything that is committed, and has answered lately."""
        since_ns = now_ns - self._timing.election_ns
        return self._answered_since(name, since_ns) and self._progress[name].match_index >= self.commit_index

    def change_voters(self, voters: Sequence[str], now_ns: int) -> bool:
        """Add or remove one voter, or add any number to a single one; False where that is not possible now.

        A change of several voters needs joint consensus in general, since a majority of those before and a majority of
        those after could decide apart. Of a single voter the only majority is this leader, which goes by the new voters
        from this entry on. So nobody is left who could decide by the old ones, and all that was decided by them stands
        before this entry in the log of whoever holds it.
        """
        if not self.may_change_voters or not self._is_safe_change(set(voters)):
            return False
        # A change that its own majority cannot commit would stand in the way of those who could decide without it.
        latest_ns = now_ns - _ANSWERS_WITHIN_HEARTBEATS * self._timing.heartbeat_ns
        there = [name for name in voters if name == self.name or self._answered_since(name, latest_ns)]
        if 2 * len(there) <= len(voters):
            return False
        for name in set(self.voters) - set(voters):
            # It must not hold the entry that removes it: it would refuse its vote to those who do not.
            self._progress.pop(name, None)
        return self._propose(Entry(self.term, "voters", tuple(voters)), now_ns)

    def _is_safe_change(self, voters: set[str]) -> bool:
        now = set(self.voters)
        return bool(voters) and (len(voters ^ now) == 1 or (now == {self.name} and now < voters))

    def _answered_since(self, name: str, when_ns: int) -> bool:
        progress = self._progress.get(name)
        return progress is not None and (progress.acknowledged_ns or 0) >= when_ns

    def leader_is_dead(self, name: str, now_ns: int) -> None:
        """Take the word of somebody who knows that the leader will never speak again: stand soon.

        The first voter stands first, lest two meet. The others may hear it later than this voter's request, so that
        the request says what it goes by.
        """
        if self.leader == name and not self.is_leader:
            self.leader, self._is_told_in = None, self.term
            step_ns = self._timing.election_ns // 8
            place = sum(voter < self.name for voter in self.voters if voter != name)
            self._due_ns = min(self._due_ns, now_ns + place * step_ns + self._chance.randrange(1 + step_ns // 2))

    def hand_over(self) -> None:
        """Ask the voter that has most of the log to stand at once."""
        ready = [name for name in self.voters if name != self.name and name in self._progress]
        if self.is_leader and ready:
            best = max(ready, key=lambda name: self._progress[name].match_index)
            self.outbox.append((best, TimeoutNow(self.term)))

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        if now_ns < self._due_ns:
            return
        if self.is_leader:
            if now_ns - self.majority_contact_ns(now_ns) > 2 * self._timing.election_ns:
                self._follow(self.term, None, now_ns)
            else:
                self._send_all(now_ns)
        elif self._may_stand:
            self._stand(now_ns, is_ahead=True, is_asked=self._is_told_in == self.term)

    def flush(self, now_ns: int) -> None:
        """Send what was proposed or committed since the last call: one message to each, however much it was."""
        if self._is_unsent and self.is_leader:
            self._send_all(now_ns)
        self._is_unsent = False

    def receive(self, sender: str, message: RaftMessage, now_ns: int) -> None:
        """Handle a message."""
        if isinstance(message, RequestVote):
            self._requested(sender, message, now_ns)
        elif isinstance(message, Vote):
            self._voted(sender, message, now_ns)
        elif isinstance(message, (Append, Install)):
            self._replicated(sender, message, now_ns)
        elif isinstance(message, Appended):
            self._answered(sender, message, now_ns)
        elif message.term == self.term and self._may_stand and not self.is_leader:
            self._stand(now_ns, is_ahead=False, is_asked=True)

    # ---- replication ------------------------------------------------------------------------------------

    def _lead(self, now_ns: int) -> None:
        self.role, self.leader, self.elected_ns = "leader", self.name, now_ns
        self._promised_ns, self._is_told_in = now_ns, None
        self._progress = {voter: Progress(self.log.last_index + 1) for voter in self.voters if voter != self.name}
        self._propose(Entry(self.term, "noop", None), now_ns)

    def _propose(self, entry: Entry, now_ns: int) -> bool:
        if not self.is_leader:
            return False
        self.log.append(entry)
        for voter in self.voters:
            if voter != self.name and voter not in self._progress:
                self._progress[voter] = Progress(self.log.last_index)
        self._is_unsent = True
        self._advance(now_ns)
        return True

    def _send_all(self, now_ns: int) -> None:
        self._is_unsent = False
        self._due_ns = now_ns + self._timing.heartbeat_ns
        for name in self._progress:
            self._send_entries(name, now_ns)

    def _send_entries(self, name: str, now_ns: int) -> None:
        progress = self._progress[name]
        previous_term = self.log.term_at(progress.next_index - 1)
        if previous_term is None:
            waits = progress.installing_ns is not None and now_ns - progress.installing_ns < self._timing.election_ns
            if not waits:
                progress.installing_ns = now_ns
                self.outbox.append((name, Install(self.term, self.log.snapshot, now_ns)))
            return
        entries = tuple(self.log.after(progress.next_index - 1, _ENTRIES_AT_ONCE))
        self.outbox.append(
            (name, Append(self.term, progress.next_index - 1, previous_term, entries, self.commit_index, now_ns))
        )
        progress.next_index += len(entries)  # in the hope that it arrives; an answer corrects it

    def _replicated(self, sender: str, message: Append | Install, now_ns: int) -> None:
        if message.term < self.term:
            self.outbox.append((sender, Appended(self.term, False, 0, message.stamp_ns)))
            return
        self._follow(message.term, sender, now_ns)
        self._contact_ns = now_ns
        if isinstance(message, Install):
            index, is_match = message.snapshot.last_index, True
            if self.log.term_at(index) == message.snapshot.last_term:
                self._commit(index)  # what follows it here may have been counted: keep it (figure 13, rule 6)
            elif index > self.commit_index:
                self.log = RaftLog(message.snapshot)
                self.commit_index = self._applied = index
                self._machine.restore(message.snapshot.state)
        else:
            held = self.log.term_at(message.previous_index)
            # What lies below the snapshot is committed, and agrees.
            is_match = message.previous_index < self.log.snapshot.last_index or held == message.previous_term
            index = min(message.previous_index - 1, self.log.last_index)
            if is_match:
                self.log.merge(message.previous_index, message.entries)
                index = message.previous_index + len(message.entries)
                self._commit(min(message.commit_index, index))
        self.outbox.append((sender, Appended(self.term, is_match, index, message.stamp_ns)))

    def _answered(self, sender: str, answer: Appended, now_ns: int) -> None:
        if answer.term > self.term:
            self._follow(answer.term, None, now_ns)
            return
        progress = self._progress.get(sender)
        if not self.is_leader or answer.term != self.term or progress is None:
            return
        progress.answered(answer.stamp_ns)
        if answer.is_match:
            progress.installing_ns = None
            progress.match_index = max(progress.match_index, answer.last_index)
            progress.next_index = max(progress.next_index, progress.match_index + 1)
            self._advance(now_ns)
        elif answer.last_index < progress.next_index - 1:
            progress.next_index = max(progress.match_index, answer.last_index) + 1
            self._send_entries(sender, now_ns)

    def _advance(self, now_ns: int) -> None:
        matches = [
            self.log.last_index if voter == self.name else self._progress[voter].match_index for voter in self.voters
        ]
        index = reached_by_majority(matches)
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self._commit(index)
            self._is_unsent = True  # who has replicated it may apply it now
            if self.name not in self.voters and self.log.voters_index <= self.commit_index:
                self._send_all(now_ns)
                self.hand_over()
                self._follow(self.term, None, now_ns)

    def _commit(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)
        while self._applied < self.commit_index:
            self._applied += 1
            entry = self.log.entry(self._applied)
            if entry.kind == "command":
                self._machine.apply(self._applied, entry.data)
        if len(self.log) > 2 * _ENTRIES_KEPT and self._applied == self.commit_index:
            self.log.compact(self._applied, self._machine.snapshot())
