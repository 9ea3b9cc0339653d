"""One node's side of its lease: it repeats its status to the leader, and knows until when it may run ranks.

The lease runs from when the node *sent* what was granted, less the time for which the leader was not sure to lead; the
leader counts it from when it *received* that, which is later. So a node that is cut off has stopped its ranks before
anybody else takes it for lost (C. Gray and D. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for Distributed
File Cache Consistency", 1989, with a bound on the difference of clock *rates* alone).
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.nodes.membership import NodeInfo, Phase
from launcher.nodes.session_messages import Doing, Elsewhere, Granted, Renew, Status, View

__all__ = ["Address", "Session"]

Address = tuple[str, int]

_RENEWALS_IN_LEASE = 10
_PATIENCE_IN_RENEWALS = 1
_PATIENCE_IN_LEASES = 3
"""After which a node that waits for the first generation of a job takes it for gone."""


class Session:
    """The node as it speaks to the leader.

    Args:
        info: The node.
        contacts: Where to find the job at first.
        lease_ns: As all nodes have it.
        now_ns: The monotonic clock.
        job: The job that this node begins, empty where it is to join one.
    """

    def __init__(self, info: NodeInfo, contacts: Sequence[Address], lease_ns: int, now_ns: int, job: str = "") -> None:
        self.outbox: list[tuple[str | None, Address | None, Renew]] = []
        self.status = Status(Doing.IDLE, -1)
        self.view: View | None = None
        self.job = job
        """The job that this node has begun, or that has let it in."""
        self.refusal, self.is_excluded = "", False
        """Why whoever leads does not let this node in, and whether it never will."""
        self.leader: str | None = None
        self.voters: dict[str, Address] = {}
        self.info, self._contacts, self._lease_ns = info, tuple(contacts), lease_ns
        self._voters_index = -1
        self._lease_base_ns: int | None = None
        self._renew_ns = now_ns
        self._renewed_ns = now_ns
        self._last_stamp_ns = 0
        self._answered_ns = now_ns
        self._silent_until_ns = now_ns
        self._ended_ns: int | None = None
        """When this node has learned that the job has ended."""
        self._sought_ns = now_ns
        """Since when this node has been looking for a job: what was granted to it before is another one's."""
        self._attempt = 0

    @property
    def due_ns(self) -> int:
        """When to call :meth:`tick`."""
        return self._renew_ns

    @property
    def fence_ns(self) -> int | None:
        """When this node's ranks are to be killed; None before the first lease.

        A fifth of the lease, a second at most, is left for the kill and for clocks that run at different rates.
        """
        if self._lease_base_ns is None:
            return None
        return self._lease_base_ns + self._lease_ns - min(self._lease_ns // 5, 1_000_000_000)

    def deadline_ns(self, last_stop_ns: int) -> int | None:
        """Return when this node's ranks are to be killed if they still run then; None before the first lease.

        That is when its lease has run out, as long as another generation may follow. Once the nodes have agreed that
        the job has ended none can: ranks may save although the other launchers have ended, and leases with them.

        Args:
            last_stop_ns: How long the ranks of a job that has ended may take, from when this node has learned of it.
        """
        if self.fence_ns is None or self._ended_ns is None:
            return self.fence_ns
        return max(self.fence_ns, self._ended_ns + last_stop_ns)

    def holds_lease(self, now_ns: int) -> bool:
        """Return whether ranks may be started: a view that arrives late must not start what others have replaced."""
        return self.fence_ns is not None and now_ns < self.fence_ns

    def start_over(self, now_ns: int, silent_until_ns: int | None = None) -> None:
        """Forget a job that came to nothing, and look for another one.

        Args:
            now_ns: The monotonic clock.
            silent_until_ns: Say nothing before. Whoever might still count on this node has missed it by then.
        """
        self._lease_base_ns = self._ended_ns = self.leader = self.view = None
        self.voters, self._voters_index, self.job = {}, -1, ""
        self._sought_ns = now_ns + 1  # stamps of before are smaller
        self._last_stamp_ns = max(self._last_stamp_ns, now_ns)
        if silent_until_ns is not None:
            self._silent_until_ns = self._renew_ns = self._answered_ns = silent_until_ns

    def is_forsaken(self, now_ns: int) -> bool:
        """Return whether the job that let this node in has never run it, and has not answered for several leases."""
        has_run = self.view is not None and self.view.generation >= 0
        return bool(self.job) and not has_run and now_ns - self._answered_ns > _PATIENCE_IN_LEASES * self._lease_ns

    def say(self, status: Status, now_ns: int) -> None:
        """Take a new status and tell it at once."""
        if status != self.status:
            self.status = status
            self._renew(now_ns)

    def tick(self, now_ns: int) -> None:
        """Renew when it is time."""
        if now_ns >= self._renew_ns:
            self._renew(now_ns)

    def granted(self, sender: str, granted: Granted, now_ns: int) -> bool:
        """Take the leader's word.

        Returns:
            Whether the view has changed.
        """
        if self.job and granted.job != self.job:
            return False  # somebody has begun another job where this one was begun: nothing of it counts here
        if now_ns < self._silent_until_ns:
            return False
        view = granted.view
        self.refusal, self.is_excluded = granted.refusal, granted.is_excluded
        self.leader = sender
        self._answered_ns = now_ns
        if not self.job:
            if granted.stamp_ns is None or granted.stamp_ns < self._sought_ns:
                # It answers nothing that this node has said, and may be the late word of a job that it has left.
                self.voters.update(granted.voters or {})
                if view is not None:
                    self._renew(now_ns)  # if it is not late, this node has just been let in
                return False
            self.job = granted.job
        if granted.stamp_ns is not None:
            base_ns = granted.stamp_ns - max(0, granted.quorum_age_ns)
            self._lease_base_ns = max(base_ns, self._lease_base_ns or base_ns)
        if granted.voters is not None and granted.voters_index >= self._voters_index:
            self.voters, self._voters_index = granted.voters, granted.voters_index
        if view is None or (self.view is not None and view.version <= self.view.version):
            return False
        self.view = view
        if view.phase == Phase.ENDED:
            self._ended_ns = now_ns
        if self.status.doing == Doing.IDLE or view.phase == Phase.ENDED:
            self._renew(now_ns)  # what it says counts only from who has seen the view
        return True

    def elsewhere(self, sender: str, answer: Elsewhere, now_ns: int) -> None:
        """Follow a hint to the leader."""
        if sender == self.leader and answer.leader != sender:
            self.leader = None
        if answer.leader is not None and answer.leader != self.leader and answer.address:
            self.leader = answer.leader
            self.voters[answer.leader] = (answer.address, answer.port)
            # Not at once: two that take each other for the leader would answer each other without end.
            soon_ns = self._renewed_ns + self._lease_ns // _RENEWALS_IN_LEASE // 4
            self._renew_ns = min(self._renew_ns, max(now_ns, soon_ns))

    def _renew(self, now_ns: int) -> None:
        if now_ns < self._silent_until_ns:
            self._renew_ns = self._silent_until_ns
            return
        interval_ns = self._lease_ns // _RENEWALS_IN_LEASE
        self._renew_ns, self._renewed_ns = now_ns + interval_ns, now_ns
        self._last_stamp_ns = stamp_ns = max(now_ns, self._last_stamp_ns + 1)
        seen = -1 if self.view is None else self.view.version
        renew = Renew(self.info, self.status, stamp_ns, seen, self._voters_index, self.job)
        if self.leader is not None and now_ns - self._answered_ns > (1 + _PATIENCE_IN_RENEWALS) * interval_ns:
            self.leader = None
        if self.leader is not None:
            self.outbox.append((self.leader, self.voters.get(self.leader), renew))
            return
        # Nobody answers: ask everybody who may know, in turn, two at a time.
        known: list[tuple[str | None, Address | None]] = [(name, address) for name, address in self.voters.items()]
        known += [(None, address) for address in self._contacts]
        for _ in range(min(2, len(known))):
            name, address = known[self._attempt % len(known)]
            self.outbox.append((name, address, renew))
            self._attempt += 1
