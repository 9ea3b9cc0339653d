"""Elections: PreVote, votes, and servers that do not help to depose a leader of whom they have just heard."""

from __future__ import annotations

from launcher.nodes.raft_messages import RequestVote, Vote
from launcher.nodes.raft_state import RaftState

__all__ = ["RaftElections"]


class RaftElections(RaftState):
    """A voter that stands for election and votes; :mod:`launcher.nodes.raft` adds what a leader does."""

    def _stand(self, now_ns: int, *, is_ahead: bool, is_asked: bool = False) -> None:
        self._await_leader(now_ns)
        self.leader = None
        self._ages = {self.name: self._contact_age_ns(now_ns)}
        self._is_asked = is_asked
        if is_ahead:
            self.role, term = "asking", self.term + 1
        else:
            self.role, self.term, self._voted_for = "candidate", self.term + 1, self.name
            term = self.term
        request = RequestVote(term, self.log.last_index, self.log.last_term, is_ahead, is_asked)
        self.outbox += [(voter, request) for voter in self.voters if voter != self.name]
        self._count(now_ns)

    def _requested(self, sender: str, request: RequestVote, now_ns: int) -> None:
        if self._hears_leader(now_ns) and not request.is_asked:
            return
        if request.term > self.term and not request.is_ahead:
            self._follow(request.term, None, now_ns)
        own = (self.log.last_term, self.log.last_index)
        is_granted = (request.last_term, request.last_index) >= own
        if request.is_ahead:
            is_granted = is_granted and request.term > self.term
        else:
            is_granted = is_granted and request.term == self.term and self._voted_for in (None, sender)
            if is_granted:
                self._voted_for = sender
                self._await_leader(now_ns)
        term = request.term if is_granted else self.term
        vote = Vote(term, is_granted, request.is_ahead, self._contact_age_ns(now_ns))
        self.outbox.append((sender, vote))

    def _voted(self, sender: str, vote: Vote, now_ns: int) -> None:
        if not vote.is_granted:
            if vote.term > self.term:
                self._follow(vote.term, None, now_ns)
            return
        stands_for = ("asking", self.term + 1) if vote.is_ahead else ("candidate", self.term)
        if (self.role, vote.term) == stands_for and sender in self.voters:
            self._ages[sender] = vote.contact_age_ns
            self._count(now_ns)

    def _count(self, now_ns: int) -> None:
        if 2 * len(self._ages.keys() & set(self.voters)) <= len(self.voters):  # its own only where it votes
            return
        if self.role == "asking":
            self._stand(now_ns, is_ahead=False, is_asked=self._is_asked)
            return
        ages = [age for age in self._ages.values() if age is not None]
        self.predecessors_contact_ns = now_ns - min(ages) if ages else None
        self._lead(now_ns)

    def _lead(self, now_ns: int) -> None:
        """Begin to lead."""
        raise NotImplementedError
