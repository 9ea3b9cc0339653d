"""Everything that one node does, without sockets, threads or a clock: what arrives, what is due, what is to be sent.

``NodeProtocol`` joins the parts: the voter (Raft), what is agreed (membership), the leader's work (coordinator), and
the node's own lease (session). The simulation of the tests runs exactly this; :mod:`launcher.nodes.plane` gives it
sockets and a thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, get_args

from launcher.nodes.coordinator import Coordinator
from launcher.nodes.failure_messages import Account, LookDone, LookRequest, OfFailure, Proceed, Story, Suspicion
from launcher.nodes.gathering import Gathered, Gatherer, NodeAccounts
from launcher.nodes.membership import Membership, NodeInfo, Phase
from launcher.nodes.policy import Policy
from launcher.nodes.raft import RaftNode, Timing
from launcher.nodes.raft_messages import Append, Appended, Install, RequestVote, TimeoutNow, Vote
from launcher.nodes.session import Address, Session
from launcher.nodes.session_messages import Doing, Elsewhere, Granted, Renew, Status, View
from launcher.processes.message_format import MessageFormat

__all__ = ["FORMAT", "Farewell", "Message", "NodeProtocol"]

_HEARTBEATS_IN_LEASE = 20
_ELECTIONS_IN_LEASE = 5


class Farewell(NamedTuple):
    """The word of a node's monitor: the launcher is dead, and none of its ranks lives.

    Args:
        node: The name of the incarnation that is gone.
        why: For people.
    """

    node: str
    why: str


_Agreeing = RequestVote | Vote | Append | Install | Appended | TimeoutNow | Renew | Granted | Elsewhere | Farewell
Message = _Agreeing | OfFailure

FORMAT: MessageFormat[Message] = MessageFormat(5, get_args(Message))


class NodeProtocol:
    """One node.

    Args:
        name: Of this incarnation of the launcher; unique for all time.
        info: How it introduces itself.
        contacts: Where to find the job.
        policy: The user's.
        chance: Where election timeouts come from.
        now_ns: The monotonic clock.
        founds: Begin the job; all others join it.
    """

    def __init__(
        self,
        name: str,
        info: NodeInfo,
        contacts: Sequence[Address],
        policy: Policy,
        chance: random.Random,
        now_ns: int,
        *,
        founds: bool,
    ) -> None:
        self.name = name
        self.outbox: list[tuple[str | None, Address | None, Message]] = []
        """To whom by name, or where by address, and what."""
        self.membership = Membership()
        self._policy = policy
        self._chance, self._contacts = chance, tuple(contacts)
        self._make_raft(now_ns, founds=founds)
        self.session = Session(info, contacts, policy.lease_ns, now_ns, name if founds else "")
        self.accounts = NodeAccounts()
        self._void: set[str] = set()
        """Jobs that this node was the one voter of, and has given up."""
        self._show_ns = now_ns
        self._farewells: dict[str, str] = {}
        """Incarnations that are dead for certain, and why: for this node while, or should it, lead."""
        self._term = -1

    @property
    def view(self) -> View | None:
        """What this node knows of the job."""
        return self.session.view

    @property
    def due_ns(self) -> int:
        """When to call :meth:`tick`."""
        due = [self.session.due_ns]
        if self.raft.due_ns is not None:
            due.append(self.raft.due_ns)
        if self._coordinator is not None:
            due.append(self._coordinator.due_ns)
        due += [each for each in (self.accounts.due_ns, self._gatherer.due_ns) if each is not None]
        return min(due)

    @property
    def is_released(self) -> bool:
        """Return whether the others can do without this node now: it may go.

        Where the job has ended, its leader stays until everybody knows; where it goes on, a voter stays until another
        votes in its place.
        """
        if self.view is not None and self.view.phase == Phase.ENDED:
            is_told = self.membership.exit_code == 0 or self._gatherer.has_told(self.membership.generation)
            return self._coordinator is None or (self._coordinator.has_told_all and is_told)
        if self.session.status.doing != Doing.LEFT:
            return True
        others = [name for name in self.membership.nodes if name != self.name]
        return self.name not in self.raft.voters or (self._coordinator is not None and not others)

    def say(self, status: Status, now_ns: int) -> None:
        """Take this node's new status."""
        self.session.say(status, now_ns)

    def receive(self, sender: str, message: Message, now_ns: int) -> None:
        """Handle a message from a node that has proved its name; :meth:`flush` follows when there is no more."""
        self._lead(now_ns)
        self._handle(sender, message, now_ns)

    def flush(self, now_ns: int) -> None:
        """Do what is due and what follows from all that was heard; what is to be sent is in ``outbox`` then."""
        has_part = self.name in self.raft.voters or self.raft.log.last_index > 0
        if self.session.is_forsaken(now_ns) and not has_part:
            # Nothing that this node has acknowledged can be counted on by anybody.
            self._start_over(now_ns, now_ns + self._policy.lease_ns * 5 // 4)
        self.session.tick(now_ns)
        self.accounts.tick(now_ns)
        self.raft.tick(now_ns)
        self._lead(now_ns)
        self._show_leader(now_ns)
        while True:
            if self._coordinator is not None:
                self._coordinator.flush(now_ns)
                for name, why in self._farewells.items():
                    self._coordinator.farewell(name, why)
                self._gatherer.flush(now_ns)
            self.raft.flush(now_ns)
            if not self._collect(now_ns):
                return
            self._lead(now_ns)

    def _handle(self, sender: str, message: Message, now_ns: int) -> None:
        if isinstance(message, Granted):
            self.session.granted(sender, message, now_ns)
        elif isinstance(message, Elsewhere):
            if message.leader == sender and self._gives_way_to(message):
                self._void.add(self.session.job)
                self._start_over(now_ns)
            elif message.void and message.void == self.session.job:
                self._start_over(now_ns)
            self.session.elsewhere(sender, message, now_ns)
        elif isinstance(message, Renew):
            if message.job in self._void:
                self.outbox.append((sender, None, self._hint()._replace(void=message.job)))
            elif self._coordinator is not None:
                self._coordinator.renewed(sender, message, now_ns)
            else:
                self.outbox.append((sender, None, self._hint()))
        elif isinstance(message, Farewell):
            self._farewells[message.node] = message.why
            self.raft.leader_is_dead(message.node, now_ns)
        elif message.job == self.session.job != "":
            if isinstance(message, (LookRequest, Proceed, Story)):
                self.accounts.receive(message)
            elif not isinstance(message, (Suspicion, LookDone, Account)):
                self.raft.receive(sender, message, now_ns)
            elif self._coordinator is not None:
                self._gatherer.receive(sender, message, now_ns)

    def _start_over(self, now_ns: int, silent_until_ns: int | None = None) -> None:
        self._make_raft(now_ns, founds=False)
        self.session.start_over(now_ns, silent_until_ns)

    def _make_raft(self, now_ns: int, *, founds: bool) -> None:
        self.membership.restore(Membership().snapshot())
        timing = Timing(self._policy.lease_ns // _HEARTBEATS_IN_LEASE, self._policy.lease_ns // _ELECTIONS_IN_LEASE)
        self.raft = RaftNode(self.name, self.membership, timing, self._chance, now_ns, founds=founds)
        self._coordinator: Coordinator | None = None
        self._gatherer = Gatherer(self.membership)

    @property
    def _has_founded_in_vain(self) -> bool:
        """Return whether this node began a job that has come to nothing yet: one that lives elsewhere goes before it.

        A launcher that is started again where the job was begun, after the job has gone on without it, begins another
        one. The leader of the first shows itself there every second.
        """
        is_alone = self.raft.voters == (self.name,) and self.raft.is_leader
        return is_alone and self.membership.phase == Phase.WAITING

    def _gives_way_to(self, other: Elsewhere) -> bool:
        """Return whether this node's job is given up for another one; of two that wait, the one of the greater name."""
        return self._has_founded_in_vain and (not other.is_waiting or "" < other.job < self.session.job)

    def _show_leader(self, now_ns: int) -> None:
        """Tell the addresses where newcomers ask who leads, except where a node of the job is heard.

        Where one has fallen silent, its launcher may have been started again, and begin another job within the lease.
        """
        if self._coordinator is None or now_ns < self._show_ns:
            return
        self._show_ns = now_ns + self._policy.lease_ns // _ELECTIONS_IN_LEASE
        info = self.session.info
        nodes, hears = self.membership.nodes, self._coordinator.hears
        taken = {(node.address, node.port) for name, node in nodes.items() if hears(name, now_ns)}
        for contact in self._contacts:
            if contact not in taken and contact != (info.address, info.port):
                self.outbox.append((None, contact, self._hint()))

    def _hint(self) -> Elsewhere:
        """Name the leader where it is known, else a voter, who may know."""
        if self._coordinator is not None:
            info, is_waiting = self.session.info, self._has_founded_in_vain
            return Elsewhere(self.name, info.address, info.port, job=self.membership.job, is_waiting=is_waiting)
        others = [name for name in self.raft.voters if name != self.name]
        for name in [self.raft.leader, *others, self.session.leader]:
            address = None if name is None or name == self.name else self._address(name)
            if address is not None:
                return Elsewhere(name, *address)
        return Elsewhere(None, "", 0)

    def _lead(self, now_ns: int) -> None:
        """Have a coordinator exactly while, and for the term in which, this node leads."""
        if not self.raft.is_leader:
            if self._coordinator is not None:
                self._coordinator, self._gatherer = None, Gatherer(self.membership)
        elif self._coordinator is None or self._term != self.raft.term:
            self._term = self.raft.term
            self._coordinator = Coordinator(self.raft, self.membership, self._policy, now_ns)
            self._gatherer = Gatherer(self.membership, self.accounts.story)

    def _collect(self, now_ns: int) -> bool:
        """Move what the parts have to say to the outbox; what a node says to itself is heard at once.

        Returns:
            Whether there was any of the latter.
        """
        sent: list[tuple[str | None, Address | None, Message]] = [
            (name, self._address(name), message._replace(job=self.session.job)) for name, message in self.raft.outbox
        ]
        self.raft.outbox.clear()
        if self._coordinator is not None:
            sent += [(name, self._address(name), message) for name, message in self._coordinator.outbox]
            self._coordinator.outbox.clear()
        sent += self.session.outbox
        self.session.outbox.clear()
        sent += self._of_failures()
        own = [message for name, address, message in sent if self._is_own(name, address)]
        self.outbox += [each for each in sent if not self._is_own(each[0], each[1])]
        for message in own:
            self._handle(self.name, message, now_ns)
        return bool(own)

    def _of_failures(self) -> list[tuple[str | None, Address | None, Message]]:
        job, leader = self.session.job, self.session.leader
        sent: list[tuple[str | None, Address | None, Message]] = [
            (name, self._address(name), message._replace(job=job)) for name, message in self._gatherer.outbox
        ]
        if leader is not None:
            sent += [(leader, self._address(leader), each._replace(job=job)) for each in self.accounts.outbox]
        self._gatherer.outbox.clear()
        self.accounts.outbox.clear()  # an account is repeated
        return sent

    def take_gathered(self) -> list[Gathered]:
        """Return the accounts of failures that are complete, each once; who has decided calls :meth:`decided`."""
        gathered, self._gatherer.gathered = self._gatherer.gathered, []
        return gathered

    def decided(self, generation: int, text: str) -> None:
        """Tell the members what has happened, where this node still leads."""
        self._gatherer.decided(generation, text)

    def _is_own(self, name: str | None, address: Address | None) -> bool:
        return name == self.name or (name is None and address == (self.session.info.address, self.session.info.port))

    def _address(self, name: str) -> Address | None:
        info = self.membership.nodes.get(name)
        return (info.address, info.port) if info is not None else self.session.voters.get(name)
