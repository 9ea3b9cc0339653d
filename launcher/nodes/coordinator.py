"""What the leader does beyond replication: leases, and the commands that follow from what nodes say.

All that it holds is volatile. A new leader begins with what is agreed, gives every node the rest of a lease that a
leader before it may have granted, and hears from all of them within a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from launcher.nodes.membership import Membership, Phase
from launcher.nodes.newcomers import Newcomers
from launcher.nodes.policy import Policy, choose_members, why_no_part, why_too_few
from launcher.nodes.raft import RaftNode
from launcher.nodes.session_messages import Doing, Granted, Renew
from launcher.nodes.views import Views
from launcher.nodes.voters import next_voters

__all__ = ["Coordinator"]

_NS_PER_SECOND = 1_000_000_000
_LOOK_NS = 100_000_000


class _Heard(NamedTuple):
    """What a node said last, and when the leader heard it."""

    renew: Renew
    at_ns: int


class Coordinator:
    """Volatile; made when a node becomes leader, dropped when it is no more.

    Args:
        raft: What proposes; it leads.
        membership: What is agreed.
        policy: The user's.
        now_ns: The monotonic clock.
    """

    def __init__(self, raft: RaftNode, membership: Membership, policy: Policy, now_ns: int) -> None:
        self.outbox: list[tuple[str, Granted]] = []
        self._raft, self._membership, self._policy = raft, membership, policy
        contact_ns = raft.predecessors_contact_ns
        self._base_ns = now_ns if contact_ns is None else contact_ns
        """A leader before this one can have granted nothing after it."""
        self.due_ns = now_ns
        """When to look at all nodes again."""
        self._now_ns = now_ns
        self._in_flight: set[tuple[Any, ...]] = set()
        self._ready: set[str] = set()
        """Nodes that run no rank and know how the last generation has ended."""
        self._awaited: set[str] = set()
        """Members of the last generation that are still there and not ready."""
        self._dead: set[str] = set()
        self._heard: dict[str, _Heard] = {}
        self._views = Views(membership)
        self._told = (membership.version, raft.log.voters_index)
        self._changed_ns = now_ns
        self._joined_ns = now_ns
        self._roster = self._nodes = -1
        self._votes_for = (-1, -1)
        """For which nodes and which agreement the voters were looked at."""
        self._called_ns: int | None = None
        """When all that the first generation needs was there, except for further voters."""
        self._lacks_voters = True
        self._newcomers = Newcomers(membership, policy)

    # ---- what nodes say ---------------------------------------------------------------------------------

    def renewed(self, name: str, renew: Renew, now_ns: int) -> None:
        """Note what a node says, answer it, and do what follows."""
        self._now_ns = now_ns
        if not self._raft.is_current or not self._membership.job:
            return  # what is agreed is not known yet; the node says it again
        last = self._heard.get(name)
        if name in self._dead:
            return  # it was on its way for longer than its sender lived
        if last is not None and last.renew.stamp_ns > renew.stamp_ns:
            return  # it was on its way for longer
        self._heard[name] = _Heard(renew, now_ns)
        if self._is_ready(name):
            self._awaited.discard(name)
            self._ready.add(name)
        else:
            self._ready.discard(name)
        self._heed(name, renew)
        self.outbox.append((name, self._word(name, renew, now_ns)))

    @property
    def has_told_all(self) -> bool:
        """Return whether every other node has said that it knows the present state."""
        version = self._membership.version
        heard = [self._heard.get(name) for name in self._membership.nodes if name != self._raft.name]
        return all(each is not None and each.renew.seen == version for each in heard)

    def hears(self, name: str, now_ns: int) -> bool:
        """Return whether a node has spoken lately."""
        heard = self._heard.get(name)
        return heard is not None and now_ns - heard.at_ns < self._policy.lease_ns // 4

    def farewell(self, name: str, why: str) -> None:
        """Note the word of a node's monitor: its launcher is dead, and none of its ranks lives."""
        self._dead.add(name)
        self._heard.pop(name, None)
        if name in self._membership.nodes and self._raft.is_current:
            self._propose("gone", name, why, False, False)

    def flush(self, now_ns: int) -> None:
        """Do what follows from all that was heard and agreed, and what is due."""
        if now_ns - self._now_ns > self._policy.lease_ns // 2:
            self._base_ns = now_ns  # this launcher was stopped: nobody could be heard meanwhile
        self._now_ns = now_ns
        is_due = now_ns >= self.due_ns
        if is_due:
            self.due_ns = now_ns + _LOOK_NS
        if not self._raft.is_current:
            return
        if not self._membership.job:
            self._propose("begin", self._raft.name)
            return
        self._note_changes()
        if is_due:
            self._look()
            self._note_changes()
            self._let_newcomers_take_part()
            self._note_changes()  # so that the ranks of the generation that is over now are waited for
        if self._is_settled:
            self._in_flight.clear()
            self._make_generation()
            if is_due or self._votes_for != (self._roster, self._raft.commit_index):
                self._votes_for = self._roster, self._raft.commit_index
                self._change_voters()
            self._note_changes()

    @property
    def _is_settled(self) -> bool:
        """Return whether everything that was proposed is decided."""
        return self._raft.is_leader and self._raft.log.last_index == self._raft.commit_index

    def _propose(self, *command: Any) -> None:
        """Propose a command, unless one that does the same is under way."""
        key = command[:3] if command[0] == "finished" else command[:2]
        if key not in self._in_flight:
            self._in_flight.add(key)
            self._raft.propose(command, self._now_ns)

    # ---- what follows -----------------------------------------------------------------------------------

    def _heed(self, name: str, renew: Renew) -> None:
        membership, status = self._membership, renew.status
        if membership.phase == Phase.ENDED:
            return
        if name not in membership.nodes:
            is_of_another_job = renew.job not in ("", membership.job)
            goes = status.doing in (Doing.LEAVING, Doing.LEFT, Doing.ENDING)
            if not goes and not is_of_another_job and not why_no_part(membership, name, renew.info, self._policy):
                self._propose("join", name, tuple(renew.info))
        elif status.doing == Doing.LEFT:
            if status.has_finished:
                self._propose("finished", status.generation, name)
            self._propose("gone", name, status.why, True, status.is_excluded, status.is_unhealthy)
        elif status.doing == Doing.ENDING:
            self._propose("end", status.why, status.exit_code, status.may_save)
        elif status.generation == membership.generation and membership.phase == Phase.RUNNING:
            # A node that has stopped the ranks of a running generation has had a failure, told or not.
            if status.doing in (Doing.FAILED, Doing.IDLE):
                self._propose("failed", status.generation, name, status.why)
            elif status.doing == Doing.LEAVING:
                self._propose("restart", status.generation, name, status.why)
            elif status.doing == Doing.FINISHED and name not in membership.finished:
                self._propose("finished", status.generation, name)

    def _look(self) -> None:
        """Heed again what could not be proposed, and miss who is silent. Who is not in must speak again to join."""
        membership, lease_ns = self._membership, self._policy.lease_ns
        for name, heard in list(self._heard.items()):
            if name in membership.nodes:
                self._heed(name, heard.renew)
            elif self._now_ns - heard.at_ns >= 2 * lease_ns:
                del self._heard[name]
        for name, info in list(membership.nodes.items()):
            heard_ns = self._base_ns if name not in self._heard else max(self._base_ns, self._heard[name].at_ns)
            if self._now_ns - heard_ns >= lease_ns:
                seconds = (self._now_ns - heard_ns) / _NS_PER_SECOND
                self._propose("gone", name, f"node {info.host} was silent for {seconds:.1f} s", False, False)

    def _make_generation(self) -> None:
        membership, policy, now_ns = self._membership, self._policy, self._now_ns
        if self._awaited or membership.phase not in (Phase.WAITING, Phase.STOPPING):
            return
        if membership.failures > policy.max_restarts:
            self._propose("end", f"{membership.why}; no restart is left of {policy.max_restarts}", 1)
            return
        since_joined_ns = now_ns - self._joined_ns
        # Before its first generation a job may be one that is begun again while another one lives: wait until that has
        # shown itself, or its ranks have no lease any more, unless all nodes are here.
        last_call_ns = policy.lease_ns if policy.is_fixed else max(policy.last_call_ns, policy.lease_ns)
        calls = membership.generation < 0 and len(self._ready) < policy.most and since_joined_ns < last_call_ns
        members = choose_members(membership, self._ready, policy)
        if len(members) >= policy.least:
            if calls or (membership.generation < 0 and not self._may_begin()):
                return
            first = membership.nodes[members[0]]
            port = self._heard[members[0]].renew.status.store_port
            self._propose("form", membership.generation + 1, tuple(members), first.address, port)
        elif min(since_joined_ns, now_ns - self._changed_ns) >= policy.join_ns:
            self._propose("end", why_too_few(len(self._ready), len(members), policy), 1)

    def _let_newcomers_take_part(self) -> None:
        membership = self._membership
        if not self._policy.joins_at_checkpoint:
            return
        statuses = {name: heard.renew.status for name, heard in self._heard.items()}
        if self._newcomers.may_take_part(self._ready, statuses):
            why = "all ranks have saved a checkpoint, and a node that has joined takes part from here on"
            self._propose("restart", membership.generation, membership.members[0], why)

    def _may_begin(self) -> bool:
        """Return whether the job outlives any node by now, or this has been waited for long enough."""
        if self._called_ns is None:
            self._called_ns = self._now_ns
            self._change_voters()
        return not self._lacks_voters or self._now_ns - self._called_ns >= self._policy.lease_ns

    def _is_ready(self, name: str) -> bool:
        heard = self._heard.get(name)
        if heard is None or heard.renew.status.doing != Doing.IDLE or name not in self._membership.nodes:
            return False
        return heard.renew.seen == self._membership.version

    def _change_voters(self) -> None:
        raft, own = self._raft, self._heard.get(self._raft.name)
        leaves = own is not None and own.renew.status.doing == Doing.LEFT
        is_waiting = self._membership.generation < 0 and self._called_ns is None
        if is_waiting and raft.voters == (raft.name,) and not leaves:
            return  # so that a job which has come to nothing can be given up by the one node that began it
        alive = [
            name for name in self._membership.nodes if name == raft.name or name in self._heard or name in raft.voters
        ]
        if raft.name not in alive and not leaves:
            return  # it has not joined yet, and must not take itself for one that leaves
        learners, voters = next_voters(raft.voters, alive, raft.name)
        self._lacks_voters = bool(learners)
        raft.learn(learners, self._now_ns)
        if learners and all(raft.has_caught_up(name, self._now_ns) for name in learners):
            voters = (*raft.voters, *learners)
        if voters != raft.voters:
            raft.change_voters(voters, self._now_ns)

    # ---- what nodes are told ----------------------------------------------------------------------------

    def _note_changes(self) -> None:
        """Tell every node once what has changed."""
        membership, now_ns = self._membership, self._now_ns
        if membership.roster != self._roster:
            if len(membership.nodes) > self._nodes:
                self._joined_ns = now_ns
            self._roster, self._nodes = membership.roster, len(membership.nodes)
            self._expect()
        now = (membership.version, self._raft.log.voters_index)
        if now == self._told or not self._raft.is_leader:
            return
        if membership.version != self._told[0]:
            self._changed_ns = now_ns
            self._expect()
        self._told = now
        self.outbox += [(name, self._word(name, None, now_ns)) for name in {**membership.nodes, **self._heard}]

    def _expect(self) -> None:
        """Compute anew who is ready, and which members are not."""
        membership = self._membership
        self._ready = {name for name in membership.nodes if self._is_ready(name)}
        self._awaited = {name for name in membership.members if name in membership.nodes} - self._ready

    def _word(self, name: str, renew: Renew | None, now_ns: int) -> Granted:
        raft, membership = self._raft, self._membership
        knows_view = renew is not None and renew.seen == membership.version
        knows_voters = renew is not None and renew.seen_voters == raft.log.voters_index
        is_in = (name in membership.nodes and ("gone", name) not in self._in_flight) or membership.phase == Phase.ENDED
        info = self._heard[name].renew.info if name in self._heard else None
        return Granted(
            stamp_ns=renew.stamp_ns if renew is not None and is_in else None,
            quorum_age_ns=now_ns - raft.majority_contact_ns(now_ns),
            view=None if knows_view or not is_in else self._views.of(name),
            voters_index=raft.log.voters_index,
            voters=None if knows_voters else self._addresses(raft.voters),
            job=membership.job,
            refusal="" if info is None else why_no_part(membership, name, info, self._policy),
            is_excluded=info is not None and info.host in membership.excluded and name not in membership.nodes,
        )

    def _addresses(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        nodes = self._membership.nodes
        return {name: (nodes[name].address, nodes[name].port) for name in names if name in nodes}
