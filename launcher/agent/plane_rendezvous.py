"""The rendezvous of a job on several nodes whose launchers agree by themselves (see :mod:`launcher.nodes`).

No store of torch's decides about anything here: the ranks' store lives with its generation on the first of its nodes,
and whoever loses it asks the control plane, whose calls have bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] - documented
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError, RendezvousTimeoutError

from launcher.agent.agreement import LOOK_SECONDS
from launcher.agent.reasons_to_wait import never_told_of_the_end, waiting_for_the_end, why_alone, why_waiting
from launcher.agent.store_host import StoreHost
from launcher.health.check import Unhealthy
from launcher.health.runner import HealthRunner
from launcher.nodes.membership import Phase
from launcher.nodes.plane import Plane
from launcher.nodes.session_messages import Doing, Status, View
from launcher.records.console import INFO, announce
from resilience_core.errors import ResilienceError
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.readable import wait_until_readable

__all__ = ["JobEndedError", "PlaneRendezvous", "UnhealthyNodeError"]

_LONGEST_LAST_WORD_SECONDS = 2.0
_LOOK_AT_SIGNALS_SECONDS = 0.5
_LONGEST_SILENT_WAIT_SECONDS = 15.0  # the nodes of a scheduler's job may come up one after the other


class JobEndedError(ResilienceError):
    """The job has ended while this node waited for its next generation."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(f"the job has ended: {why}")
        self.exit_code = exit_code


class UnhealthyNodeError(ResilienceError):
    """This node is not fit to take part; the others go on."""


class PlaneRendezvous(RendezvousHandler):
    """What the agent asks the control plane.

    Args:
        plane: Not started yet; started, and closed, by this.
        run_id: The job.
        endpoint: Where the job is looked for, as the user wrote it.
        port: A fixed port for every generation's store, or 0 for a free one each time.
        timeout_seconds: How long a rank waits for another in the store.
        join_seconds: How long a node waits for a generation.
        health: Checks this node before it joins, and while its ranks run.
        on_end: Called once this node knows that the job has ended.
        tend: Called now and then while this node waits for a generation.
        tells_saves: Whether it counts for others which checkpoints this node's ranks have saved.

    Raises:
        RendezvousRefusedError: The fixed port cannot be had.
    """

    has_peers = True
    look_seconds = LOOK_SECONDS

    def __init__(
        self,
        plane: Plane,
        run_id: str,
        endpoint: str,
        port: int,
        timeout_seconds: float,
        join_seconds: float,
        health: HealthRunner,
        on_end: Callable[[], object],
        *,
        tend: Callable[[], object] = lambda: None,
        tells_saves: bool = False,
    ) -> None:
        self.descriptors: tuple[int, ...] = (plane.descriptor,)
        self._plane, self.exchange, self._run_id, self._join_seconds = plane, plane, run_id, join_seconds
        self._about = (run_id, endpoint, join_seconds)
        self._store_host = StoreHost(port, timedelta(seconds=timeout_seconds))
        self._health, self._finding, self._on_end = health, "", on_end
        self._tells_saves, self._tend = tells_saves, tend
        self._is_started = self._is_cut_off = self._is_told_alone = False
        self._alone_since: float | None = None  # since when a node whose ranks have ended has had no lease
        self._last = Status(Doing.IDLE, -1)
        self.generation, self.failures = -1, 0
        self.place: tuple[int, int] | None = None

    def get_backend(self) -> str:
        """See torch."""
        return "nodes"

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in the store that a launcher hosts."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Say that this node runs no rank, and wait until it is a member of the next generation.

        Raises:
            UnhealthyNodeError: This node is unhealthy, or was excluded from the job before.
            RendezvousGracefulExitError: The job has ended well meanwhile.
            JobEndedError: It has ended otherwise.
            RendezvousTimeoutError: No generation was made in time.
        """
        self._health.stop()
        if (finding := self._health.before_joining()) is not None:
            self._finding = str(finding)
            raise UnhealthyNodeError(self._finding)
        self._say(Status(Doing.IDLE, self.generation, self._last.why, store_port=self._store_host.renew()))
        self._health.start(self._note_finding, is_waiting=True)  # a spare may wait for hours
        start = time.monotonic()
        end, is_told = start + self._join_seconds, False
        while True:
            view = self._plane.take_view()
            if view is not None and view.phase == Phase.ENDED:
                if view.exit_code == 0:
                    announce(f"the job has ended: {view.why}", level=INFO, event="ended")
                    raise RendezvousGracefulExitError(view.why)
                raise JobEndedError(view.why, view.exit_code or 1)
            refusal, is_final = self._plane.refusal
            if is_final or self._finding:
                raise UnhealthyNodeError(self._finding or refusal)
            if view is not None and self._is_next(view):
                break
            if self._plane.holds_lease:  # whoever leads says when there has been no generation for too long
                end = time.monotonic() + self._join_seconds
            elif time.monotonic() >= end:
                raise RendezvousTimeoutError(why_alone(view, refusal, *self._about))
            if not is_told and time.monotonic() - start > _LONGEST_SILENT_WAIT_SECONDS:
                is_told = True
                why_not_yet = why_waiting(view, refusal, *self._about, holds_lease=self._plane.holds_lease)
                announce(why_not_yet, event="waiting")
            self._tend()
            wait_until_readable(self._plane.descriptor, _LOOK_AT_SIGNALS_SECONDS)
        self.generation, self.failures, self._is_cut_off = view.generation, view.failures, False
        self._alone_since = None
        self.place = (view.first_rank, view.world_size)
        self._say(Status(Doing.RUNNING, self.generation))
        self._health.start(self._note_finding)
        assert view.group_rank is not None
        where = RendezvousStoreInfo(view.store_host, view.store_port)
        return RendezvousInfo(HashStore(), view.group_rank, view.group_size, where)

    def _is_next(self, view: View) -> bool:
        is_made = view.phase == Phase.RUNNING and view.generation > self.generation
        return is_made and view.group_rank is not None and self._plane.holds_lease

    def _say(self, status: Status) -> None:
        self._last = status
        if self._is_started:
            self._plane.say(status)
        else:
            self._is_started = True
            self._plane.start(status)

    # ---- while a generation runs -------------------------------------------------------------------------

    def _note_finding(self, finding: Unhealthy) -> None:
        self._finding = self._finding or str(finding)  # the first is why the node leaves
        self._plane.wake_agent()

    def unhealthy(self) -> str | None:
        """See :class:`.GenerationRendezvous`."""
        return self._finding or None

    def job_has_begun(self) -> bool:
        """See :class:`.GenerationRendezvous`."""
        view = self._plane.take_view()
        return view is not None and view.generation >= 0

    def is_cut_off(self) -> bool:
        """See :class:`.GenerationRendezvous`."""
        return not self._plane.holds_lease

    def note_saves(self, views: Callable[[], Mapping[int, CellView]]) -> None:
        """See :class:`.GenerationRendezvous`."""
        if self._tells_saves and self._last.doing == Doing.RUNNING:
            saved = min((view.saved for view in views().values()), default=-1)
            if saved != self._last.saved:
                self._say(self._last._replace(saved=saved))

    def note_cut_off(self) -> None:
        """See :class:`.GenerationRendezvous`. If the others have not missed this node yet, they learn of it so."""
        self._is_cut_off = True
        self._say(Status(Doing.FAILED, self.generation, f"node {os.uname().nodename} was cut off"))

    def num_nodes_waiting(self) -> int:
        """Return 1 where the generation that this node runs is over."""
        return int(self._is_cut_off or self._is_over(self._plane.take_view()))

    def _is_over(self, view: View | None) -> bool:
        return view is not None and (view.phase == Phase.STOPPING or view.generation > self.generation)

    def failed_elsewhere(self) -> bool:
        """See :class:`.GenerationRendezvous`; the job may have ended with that failure."""
        view = self._plane.take_view()  # once: the end of the job may follow that of a generation at any moment
        return self._is_cut_off or bool(view and not view.may_save and (view.exit_code or self._is_over(view)))

    def told_of_failure_ns(self) -> int:
        """See :class:`.GenerationRendezvous`."""
        return self._plane.changed_ns if self.failed_elsewhere() or self.ended_by_peer() is not None else 0

    def why_over(self) -> str:
        """Return why the generation that this node runs is over, as the nodes agree."""
        view = self._plane.take_view()
        if self._is_cut_off:
            return "this node was cut off from the others; it waits until it can take part again"
        return view.why if view is not None else ""

    def ended_by_peer(self) -> str | None:
        """See :class:`.GenerationRendezvous`; a job that has ended well is not ended by anybody."""
        view = self._plane.take_view()
        is_ended = view is not None and view.phase == Phase.ENDED and view.exit_code != 0
        return view.why if view is not None and is_ended and self._last.doing != Doing.ENDING else None

    def finished(self) -> bool:
        """Say that every rank of this node has ended with 0; return whether those of all nodes have.

        Raises:
            RendezvousTimeoutError: Nobody has led the job for too long: this node cannot learn how it ends.
        """
        self._say(Status(Doing.FINISHED, self.generation))
        view, now = self._plane.take_view(), time.monotonic()
        if self._plane.holds_lease or self._alone_since is None:
            self._alone_since, self._is_told_alone = now, False
        elif not self._is_told_alone and now - self._alone_since > _LONGEST_SILENT_WAIT_SECONDS:
            self._is_told_alone = True
            announce(waiting_for_the_end(self._join_seconds), event="waiting")
        elif now - self._alone_since >= self._join_seconds:
            raise RendezvousTimeoutError(never_told_of_the_end(self._join_seconds))
        return view is not None and view.phase == Phase.ENDED and view.exit_code == 0

    def note_failure(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""
        self.failures += 1
        self._say(Status(Doing.FAILED, self.generation, why))

    def end(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""
        self._say(Status(Doing.ENDING, self.generation, why, exit_code=1, may_save=self._last.doing != Doing.FAILED))

    def leaving(self, why: str) -> None:
        """Say that this node is being asked to go, before its ranks are: those of other nodes save at the same time.

        A node whose ranks have all ended with 0 says so instead, when it leaves: the others need no new generation.
        """
        if self._is_started and self._last.doing not in (Doing.ENDING, Doing.FINISHED):
            self._say(Status(Doing.LEAVING, self.generation, why))

    def leave(self, why: str, *, is_excluded: bool) -> None:
        """Leave the job, with no rank running; the others go on. An unhealthy node may come back, repaired."""
        self._health.stop()
        if self._is_started:
            known = {"has_finished": self._last.doing == Doing.FINISHED, "is_unhealthy": why == self._finding}
            self._say(Status(Doing.LEFT, self.generation, why, is_excluded and why != self._finding, **known))
            self._plane.close(_LONGEST_LAST_WORD_SECONDS)
        self._store_host.close()

    def prepare(self) -> None:
        """See :class:`.GenerationRendezvous`."""
        self._store_host.prepare()

    # ---- torch's interface --------------------------------------------------------------------------------

    def is_closed(self) -> bool:
        """See torch."""
        view = self._plane.take_view()
        return view is not None and view.phase == Phase.ENDED

    def set_closed(self) -> None:
        """See torch."""
        self.end("the rendezvous was closed")

    def get_run_id(self) -> str:
        """See torch."""
        return self._run_id

    def shutdown(self) -> bool:
        """See torch. A node that has ended the job stays until the others have heard it, within a bound."""
        self._health.stop()
        if self._is_started:
            end = time.monotonic() + _LONGEST_LAST_WORD_SECONDS
            while not self.is_closed() and time.monotonic() < end:
                wait_until_readable(self._plane.descriptor, end - time.monotonic())
            if self.is_closed():
                self._on_end()
            self._plane.close(_LONGEST_LAST_WORD_SECONDS)
        self._store_host.close()
        return True
