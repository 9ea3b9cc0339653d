"""Deliberate mistakes in how the launchers of several nodes agree, and in when they believe that they may run ranks."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_THE_NODES"]

_RAFT = "launcher/nodes/raft.py"
_ELECTION = "launcher/nodes/raft_election.py"
_STATE = "launcher/nodes/raft_state.py"
_LOG = "launcher/nodes/raft_log.py"
_COORDINATOR = "launcher/nodes/coordinator.py"
_SESSION = "launcher/nodes/session.py"
_MEMBERSHIP = "launcher/nodes/membership.py"
_POLICY = "launcher/nodes/policy.py"
_TESTS_OF_RAFT = ("tests/launcher/nodes/test_raft.py",)
_TESTS_OF_THE_LOG = ("tests/launcher/nodes/test_raft_log.py",)
_TESTS_OF_LEASES = ("tests/launcher/nodes/test_session.py",)
_TESTS_OF_THE_LEADER = ("tests/launcher/nodes/test_coordinator.py",)
_TESTS_OF_THE_POLICY = ("tests/launcher/nodes/test_policy.py",)
_TESTS_OF_WHAT_IS_AGREED = ("tests/launcher/nodes/test_membership.py",)

MUTANTS_OF_THE_NODES = (
    # ---- elections ----
    Mutant(
        "SIGTERM to a job that has not begun is success",
        "launcher/agent/plane_rendezvous.py",
        "return view is not None and view.generation >= 0",
        "return True",
        ("tests/launcher/agent/test_plane_rendezvous.py",),
    ),
    Mutant(
        "a voter votes twice in a term",
        _ELECTION,
        "request.term == self.term and self._voted_for in (None, sender)",
        "request.term == self.term",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a candidate without what is committed is elected",
        _ELECTION,
        "is_granted = (request.last_term, request.last_index) >= own",
        "is_granted = True",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "half of the votes elect",
        _ELECTION,
        "if 2 * len(self._ages.keys() & set(self.voters)) <= len(self.voters):",
        "if 2 * len(self._ages.keys() & set(self.voters)) < len(self.voters):",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a candidate that does not vote counts itself",
        _ELECTION,
        "self._ages.keys() & set(self.voters)",
        "self._ages.keys()",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "who is being removed does not stand though it alone has the newest entries",
        _STATE,
        "return self.name in self.voters or self.name in self.log.voters_at(self.commit_index)",
        "return self.name in self.voters",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a request of an older term is granted",
        _ELECTION,
        "request.term == self.term and self._voted_for",
        "self._voted_for",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a question ahead raises the term",
        _ELECTION,
        "if request.term > self.term and not request.is_ahead:",
        "if request.term > self.term:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a node that was cut off deposes the leader",
        _ELECTION,
        "if self._hears_leader(now_ns) and not request.is_asked:",
        "if False:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "all who know that the leader is dead stand at once",
        _RAFT,
        "now_ns + place * step_ns + ",
        "now_ns + ",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "who knows that the leader is dead is refused by those who do not",
        _RAFT,
        "is_asked=self._is_told_in == self.term)",
        "is_asked=False)",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a voter that was told of one death deposes every later leader",
        _STATE,
        "        if leader is not None:\n            self._is_told_in = None\n",
        "",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "two that stood at once after a death wait as for a silent leader",
        _STATE,
        "(1 if self._is_told_in is None else 4)",
        "1",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a leader without a majority goes on",
        _RAFT,
        "if now_ns - self.majority_contact_ns(now_ns) > 2 * self._timing.election_ns:",
        "if False:",
        _TESTS_OF_RAFT,
    ),
    # ---- replication ----
    Mutant(
        "an entry is committed without a majority",
        "launcher/nodes/raft_progress.py",
        "[len(values) // 2]",
        "[0]",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "an entry of an older term is committed by counting",
        _RAFT,
        "if index > self.commit_index and self.log.term_at(index) == self.term:",
        "if index > self.commit_index:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "what contradicts the leader stays in the log",
        _LOG,
        "            if held is not None and held != entry.term:\n",
        "            if False:\n",
        _TESTS_OF_THE_LOG,
    ),
    Mutant(
        "a follower commits what it does not hold for sure",
        _RAFT,
        "self._commit(min(message.commit_index, index))",
        "self._commit(min(message.commit_index, self.log.last_index))",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "entries are taken over without their predecessor",
        _RAFT,
        "held == message.previous_term",
        "held is not None",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a snapshot drops acknowledged entries",
        _RAFT,
        "if self.log.term_at(index) == message.snapshot.last_term:",
        "if False:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "an old snapshot takes back what was applied",
        _RAFT,
        "elif index > self.commit_index:",
        "else:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "two voters change at once",
        _RAFT,
        "if not self.may_change_voters or not self._is_safe_change(set(voters)):",
        "if not voters:",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "voters change before the leader's first entry is committed",
        _STATE,
        "return self.is_current and self.log.voters_index <= self.commit_index",
        "return self.is_leader and self.log.voters_index <= self.commit_index",
        _TESTS_OF_RAFT,
    ),
    # ---- leases ----
    Mutant(
        "ranks are killed when the lease is over for the leader, too",
        _SESSION,
        " - min(self._lease_ns // 5, 1_000_000_000)",
        "",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "ranks are started without a lease",
        _SESSION,
        "return self.fence_ns is not None and now_ns < self.fence_ns",
        "return True",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "a lease runs from when it is received",
        _SESSION,
        "base_ns = granted.stamp_ns - max(0, granted.quorum_age_ns)",
        "base_ns = now_ns - max(0, granted.quorum_age_ns)",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "a leader that is cut off grants full leases",
        _SESSION,
        "base_ns = granted.stamp_ns - max(0, granted.quorum_age_ns)",
        "base_ns = granted.stamp_ns",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "an older view replaces a newer one",
        _SESSION,
        "view is None or (self.view is not None and view.version <= self.view.version)",
        "view is None",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "a new leader forgets the leases of the one before",
        _COORDINATOR,
        "self._base_ns = now_ns if contact_ns is None else contact_ns",
        "self._base_ns = now_ns - policy.lease_ns",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a leader forgets what it has granted when the voters change",
        _STATE,
        "self._promised_ns = max(contact_ns, self._promised_ns)",
        "self._promised_ns = contact_ns",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a new leader removes voters that have not found it yet",
        _COORDINATOR,
        "if name == raft.name or name in self._heard or name in raft.voters",
        "if name == raft.name or name in self._heard",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a silent node is taken for gone at half of its lease",
        _COORDINATOR,
        "if self._now_ns - heard_ns >= lease_ns:",
        "if self._now_ns - heard_ns >= lease_ns // 2:",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a node that is being taken out gets a lease",
        _COORDINATOR,
        ' and ("gone", name) not in self._in_flight)',
        ")",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a leader speaks before it knows what is agreed",
        _COORDINATOR,
        "        if not self._raft.is_current or not self._membership.job:\n            return  # what is agreed",
        "        if False:\n            return  # what is agreed",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "any number of voters is added to any number",
        _RAFT,
        "(now == {self.name} and now < voters)",
        "now < voters",
        _TESTS_OF_RAFT,
    ),
    Mutant(
        "a single voter takes in one other, of which two none may be lost",
        "launcher/nodes/voters.py",
        "2 if len(voters) == 1 and wanted > 2 else 1",
        "1",
        ("tests/launcher/nodes/test_voters.py",),
    ),
    Mutant(
        "ranks run before the job outlives its first node",
        _COORDINATOR,
        "if calls or (membership.generation < 0 and not self._may_begin()):",
        "if calls:",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a spare takes a place with another number of ranks",
        _POLICY,
        "if membership.nodes[name].slots == slots), None)",
        "if True), None)",
        _TESTS_OF_THE_POLICY,
    ),
    Mutant(
        "a node that fits no place is let in",
        _COORDINATOR,
        "not why_no_part(membership, name, renew.info, self._policy):",
        "not membership.refusal(name, renew.info, self._policy.most):",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a spare that becomes unhealthy while it waits takes a place",
        "launcher/agent/plane_rendezvous.py",
        "if is_final or self._finding:",
        "if is_final:",
        ("tests/launcher/agent/test_plane_rendezvous.py",),
    ),
    Mutant(
        "an unhealthy node is refused for the rest of the job",
        "launcher/agent/plane_rendezvous.py",
        "is_excluded and why != self._finding",
        "is_excluded",
        ("tests/launcher/agent/test_plane_rendezvous.py",),
    ),
    Mutant(
        "a node that was unhealthy does not count as lost",
        _MEMBERSHIP,
        "elif not may_save or is_unhealthy:",
        "elif not may_save:",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "why a node is not let in is taken away by what all are told",
        _COORDINATOR,
        "info = self._heard[name].renew.info if name in self._heard else None",
        "info = None if renew is None else renew.info",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a job whose places nobody fits waits for ever",
        _COORDINATOR,
        "elif min(since_joined_ns",
        "elif len(self._ready) < policy.least and min(since_joined_ns",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a view of a job that a node has left is taken for one of the next",
        _SESSION,
        "if granted.stamp_ns is None or granted.stamp_ns < self._sought_ns:",
        "if granted.stamp_ns is None:",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "what is said unasked lets a node in",
        _SESSION,
        "if granted.stamp_ns is None or granted.stamp_ns < self._sought_ns:",
        "if granted.stamp_ns is not None and granted.stamp_ns < self._sought_ns:",
        _TESTS_OF_LEASES,
    ),
    Mutant(
        "a checkpoint of before a node has joined ends the generation for it",
        "launcher/nodes/newcomers.py",
        "return min(saved) > self._before[1]",
        "return min(saved) >= self._before[1]",
        ("tests/launcher/nodes/test_newcomers.py",),
    ),
    Mutant(
        "a checkpoint that one node has is taken for one of all",
        "launcher/nodes/newcomers.py",
        "return min(saved) > self._before[1]",
        "return max(saved) > self._before[1]",
        ("tests/launcher/nodes/test_newcomers.py",),
    ),
    Mutant(
        "entries of another job's log are taken into one's own",
        "launcher/nodes/protocol.py",
        'elif message.job == self.session.job != "":',
        "else:",
        ("tests/launcher/nodes/test_protocol.py",),
    ),
    Mutant(
        "a node that has joined a job that was given up stays in it",
        "launcher/nodes/protocol.py",
        "elif message.void and message.void == self.session.job:",
        "elif False:",
        ("tests/launcher/nodes/test_protocol.py",),
    ),
    Mutant(
        "a leader shows itself where a node is silent only when that has been missed",
        "launcher/nodes/protocol.py",
        "for name, node in nodes.items() if hears(name, now_ns)}",
        "for name, node in nodes.items()}",
        ("tests/launcher/nodes/test_protocol.py",),
    ),
    Mutant(
        "nodes with different leases meet",
        "launcher/agent/open_plane.py",
        "policy._replace(last_call_ns=0",
        "policy._replace(lease_ns=0, last_call_ns=0",
        ("tests/launcher/agent/test_open_plane.py",),
    ),
    Mutant(
        "many nodes that connect at once drop each other's connections",
        "launcher/nodes/pool.py",
        "MAX_STRANGERS: Final = 512",
        "MAX_STRANGERS: Final = 64",
        ("tests/launcher/nodes/test_transport.py",),
    ),
    Mutant(
        "a node that has nothing left to do ends the generation of the others when it leaves",
        "launcher/agent/plane_rendezvous.py",
        "self._last.doing not in (Doing.ENDING, Doing.FINISHED)",
        "self._last.doing != Doing.ENDING",
        ("tests/launcher/agent/test_plane_rendezvous.py",),
    ),
    Mutant(
        "the word that its ranks had ended is lost where a node leaves",
        "launcher/nodes/coordinator.py",
        "if status.has_finished:",
        "if False:",
        ("tests/launcher/nodes/test_coordinator.py",),
    ),
    Mutant(
        "a node that leaves is gone before it has handed over",
        "launcher/nodes/plane.py",
        "self._is_released = False  # until",
        "pass  # until",
        ("tests/launcher/nodes/test_plane.py",),
    ),
    # ---- generations ----
    Mutant(
        "a node that has not seen the end of a generation is ready",
        _COORDINATOR,
        "return heard.renew.seen == self._membership.version",
        "return True",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a generation does not wait for ranks that are being stopped",
        _COORDINATOR,
        "if self._awaited or membership.phase not in",
        "if membership.phase not in",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a word that was long on its way counts",
        _COORDINATOR,
        "if last is not None and last.renew.stamp_ns > renew.stamp_ns:",
        "if False:",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a generation that has stopped untold runs for ever",
        _COORDINATOR,
        "if status.doing in (Doing.FAILED, Doing.IDLE):",
        "if status.doing == Doing.FAILED:",
        _TESTS_OF_THE_LEADER,
    ),
    Mutant(
        "a generation is made with any number",
        _MEMBERSHIP,
        "is_next = generation == self.generation + 1 and self.phase in",
        "is_next = self.phase in",
        _TESTS_OF_WHAT_IS_AGREED,
    ),
    Mutant(
        "a generation is made while another runs",
        _MEMBERSHIP,
        "is_next = generation == self.generation + 1 and self.phase in (Phase.WAITING, Phase.STOPPING)",
        "is_next = generation == self.generation + 1",
        _TESTS_OF_WHAT_IS_AGREED,
    ),
    Mutant(
        "what is said of an older generation ends the present one",
        _MEMBERSHIP,
        "    def _failed(self, generation: int, name: str, why: str) -> None:\n"
        "        if self.phase == Phase.RUNNING and generation == self.generation and",
        "    def _failed(self, generation: int, name: str, why: str) -> None:\n"
        "        if self.phase == Phase.RUNNING and",
        _TESTS_OF_WHAT_IS_AGREED,
    ),
    Mutant(
        "a job that has ended goes on",
        _MEMBERSHIP,
        "        if self.phase == Phase.ENDED:\n            return\n",
        "",
        _TESTS_OF_WHAT_IS_AGREED,
    ),
)
