"""One story per failure of a job on several nodes: each node tells what it has seen, one decides, all say the same.

Every node takes evidence of its own ranks, as on a single node. Whoever leads the rendezvous gathers these accounts,
decides who is to blame (:mod:`launcher.incidents.job_attribution`), writes the job's incident, and tells the others.
What waits for that does so within bounds: the signal to a hung rank within ``--ft-stack-capture-timeout``, a restart
for looks and verdicts that are under way (:meth:`JobStories.look`), and the last words of a job that has failed. What a
node has seen itself is told where no story comes in time.

The agent's thread calls everything here but :meth:`JobStories.heard` and :meth:`JobStories.gathered`. What these hear
for the monitor is left to the agent's thread, since an order to a monitor that is being replaced may have to wait.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection

from torch.distributed.elastic.agent.server.api import WorkerGroup

from launcher.agent import announcements, failure_incident
from launcher.agent.agreement import FailureExchange
from launcher.agent.generation import Generation
from launcher.agent.py_spy import find_py_spy
from launcher.agent.resources import AgentResources
from launcher.agent.story_teller import StoryTeller
from launcher.incidents.accounts import account_text, has_failed_before, with_ends
from launcher.incidents.incident import ELSEWHERE, Incident
from launcher.incidents.job_incident import JobIncident
from launcher.incidents.rank_report import RankReport
from launcher.monitor.messages import Look, Proceed
from launcher.nodes.gathering import Gathered, Heard, Word

__all__ = ["JobStories"]

_ANSWER_SECONDS = 0.1
"""How long the monitor may take to report beyond the time that it has for stacks."""
_VERDICT_SECONDS = 0.3
"""What a verdict may take beside stacks: a process that is stuck uses up the time for them, and more is read then."""
_LOOK_COUNTS_SECONDS = 5.0
"""For how long what was seen of our ranks may belong to a failure."""


class JobStories:
    """The failures of one job; on one node there is nothing to tell.

    Args:
        resources: What the agent works with.
        exchange: Between the nodes; None on one node.
    """

    def __init__(self, resources: AgentResources, exchange: FailureExchange | None) -> None:
        self._resources, self._exchange = resources, exchange
        self._teller = StoryTeller(resources, self._decided)
        self._orders: collections.deque[Heard] = collections.deque()  # what the agent's thread has to pass on
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when there is something to pass on
        self._current: Generation | None = None
        self._given = -1  # the newest generation that the other nodes were given our account of
        self._group: WorkerGroup | None = None
        self._unanswered = 0  # how many looks at the ranks the monitor was asked for and has not answered
        self._asked_at = 0.0  # when it was asked last
        self._verdict_by = 0.0  # until when a verdict of its own may come, which it has announced
        self._only_waits = False  # its last verdict was on ranks that wait for others
        self._looked: tuple[float, Incident] | None = None  # what it has answered last, and when
        self._descriptor_lock = threading.Lock()
        if exchange is not None:
            self._teller.start()
            exchange.listen(self)

    @property
    def is_shared(self) -> bool:
        """Return whether failures are told by all nodes together."""
        return self._exchange is not None

    def close(self) -> None:
        """Tell what has not been told yet, and let go of the descriptor."""
        self._teller.tell_all()
        with self._descriptor_lock:
            os.close(self.descriptor)
            self.descriptor = -1

    # ---- while a generation runs ------------------------------------------------------------------------

    def began(self, current: Generation, group: WorkerGroup) -> None:
        """Note the generation whose ranks run now."""
        self._current, self._group, self._unanswered, self._only_waits = current, group, 0, False
        self._looked, self._verdict_by = None, 0.0
        self._teller.began(current.number, group.group_world_size or 1)

    def suspected(self, generation: int) -> None:
        """Have the other nodes look at their ranks, since one of ours is late."""
        if self._exchange is not None:
            self._verdict_by = time.monotonic() + self._resources.config.stack_capture_timeout + _VERDICT_SECONDS
            self._exchange.suspect(generation)

    def has_verdict(self, generation: int, came_back: tuple[int, ...] = (), *, only_waits: bool = False) -> None:
        """Note that the monitor has looked at our ranks for a verdict of its own, and who came back."""
        if self._exchange is not None:
            self._unanswered, self._verdict_by = 0, 0.0  # it answers no look at ranks that it has condemned
            self._only_waits = only_waits
            self._exchange.looked(generation, came_back, only_waits=only_waits)

    def looked(
        self, incident: Incident | None, generation: int, came_back: tuple[int, ...] = (), *, is_brief: bool = False
    ) -> None:
        """Note what the monitor has seen of our ranks, as another node has asked; None where it watches none."""
        if self._exchange is not None and self._current is not None and generation == self._current.number:
            self._unanswered = max(0, self._unanswered - (not is_brief))
            self._looked = self._looked if incident is None else (time.monotonic(), incident)
            # A look that is answered in the course of a verdict does not change what that is on.
            self._exchange.looked(generation, came_back, only_waits=self._only_waits, is_brief=is_brief)

    def tell_overdue(self) -> float | None:
        """See :meth:`.StoryTeller.tell_overdue`."""
        return self._teller.tell_overdue() if self._exchange is not None else None

    def pass_on(self) -> None:
        """Tell the monitor what the other nodes want of it."""
        if self._exchange is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        while self._orders:
            heard = self._orders.popleft()
            if self._current is None or heard.generation != self._current.number:
                continue
            if heard.word == Word.PROCEED:
                self._resources.monitor.pass_on(Proceed(heard.generation, heard.came_back))
            elif heard.word == Word.CONFIRM:
                known = heard.came_back
                self._resources.monitor.pass_on(Look(heard.generation, False, is_brief=True, came_back=known))
            elif not self._unanswered or time.monotonic() - self._asked_at > _LOOK_COUNTS_SECONDS:
                self._unanswered = 0  # a monitor that was replaced meanwhile never answers
                self._ask(Look(heard.generation, may_signal=False))

    # ---- once it has failed -----------------------------------------------------------------------------

    def failed(self, incident: Incident, *, told_ns: int = 0) -> None:
        """Tell the other nodes of a failure here.

        Args:
            incident: Which.
            told_ns: When another node had told of a failure (``CLOCK_MONOTONIC``); 0 where none had.
        """
        if self._exchange is None:
            return
        if incident.kind == "failure" and (not incident.culprits or incident.why.startswith("likely: ")):
            self._exchange.suspect(incident.generation)  # who is to blame may be on another node, and hang there
        looked = self._looked_lately()
        if looked is not None and incident.kind == "failure":
            incident = incident._replace(ranks=with_ends(looked, incident).ranks)
        self._give(incident, told_ns)

    def will_tell(self, incident: Incident, lines: Collection[str]) -> bool:
        """Return whether the story of a generation will be told, or these lines where none comes.

        Args:
            incident: What this node has seen, with its folder.
            lines: For people.
        """
        if self._exchange is None:
            return False
        self._teller.failed(incident.generation, tuple(lines), incident.folder, announcements.about(incident))
        return True

    def over(self, generation: int) -> None:
        """Note that a generation has failed here: its story is told when it comes."""
        if self._exchange is not None:
            self._teller.failed(generation)

    def look(
        self,
        wait: Callable[[Collection[int], float], set[int]],
        for_all: Callable[[Incident, Collection[int]], Incident],
        told_ns: int,
    ) -> None:
        """Tell what can be seen of our ranks before they are asked to end: a rank has failed on another node.

        Args:
            wait: How to wait for reports of the monitor.
            for_all: :meth:`.IncidentLog.for_all`, since our own monitor may have had a verdict, too.
            told_ns: When we were told of that (``CLOCK_MONOTONIC``); 0 where that is not known.
        """
        current = self._current
        if self._exchange is None or current is None or current.is_fenced or self._given == current.number:
            return
        self._await_look(wait)
        current.processes.collect_exits()
        now = for_all(self._now(current), current.condemned)
        looked = self._looked_lately()
        if looked is not None and now.kind == ELSEWHERE:
            now = now._replace(ranks=with_ends(looked, now).ranks, machine=looked.machine)
            self._resources.disk.submit(lambda: _write_elsewhere(now, self._resources.log_folder))
        self._give(now, told_ns)
        self.over(current.number)

    def story_of(self, generation: int, seconds: float) -> JobIncident | None:
        """Return the story of a generation that has failed, once it was told; None where none comes in time.

        Args:
            generation: Which.
            seconds: How long to wait for it.
        """
        return self._teller.await_story(generation, seconds) if self._exchange is not None else None

    def withdrawn(self, generation: int) -> None:
        """Note that a verdict was withdrawn, and nothing has happened."""
        self._teller.withdrawn(generation)

    def requested(self, generation: int, rank: int, why: str) -> None:
        """Tell all nodes that a rank of ours has asked for the end of the job.

        Args:
            generation: Of the rank.
            rank: Which.
            why: What it has said.
        """
        if self._exchange is not None and self._current is not None:
            pids = self._current.processes.pids()
            local_ranks = [w.local_rank for w in (self._group.workers if self._group else ()) if w.global_rank == rank]
            local_rank = local_ranks[0] if local_ranks else 0
            asking = RankReport(rank, local_rank, pids.get(local_rank, 0), is_culprit=True, message=why)
            self._give(Incident("request", generation, why, "the job ends", (asking,)), 0)
            self.over(generation)

    def _await_look(self, wait: Callable[[Collection[int], float], set[int]]) -> None:
        """Wait until the monitor has looked, where it was asked to, or has come to a verdict of its own.

        Ranks that will be ended in a moment may be asked for their stacks by a signal, where py-spy is missing.
        """
        self.pass_on()
        config = self._resources.config
        if (self._unanswered or self._looked is not None) and config.capture_stacks and find_py_spy() is None:
            assert self._current is not None
            self._ask(Look(self._current.number, may_signal=True))
        end = self._asked_at + config.stack_capture_timeout + _ANSWER_SECONDS
        while self._unanswered and (left := end - time.monotonic()) > 0:
            wait([], left)
        while (left := self._verdict_by - time.monotonic()) > 0:
            wait([], left)

    def _ask(self, order: Look) -> None:
        self._unanswered, self._asked_at = self._unanswered + 1, time.monotonic()
        self._resources.monitor.pass_on(order)

    def _looked_lately(self) -> Incident | None:
        looked = self._looked
        return looked[1] if looked is not None and time.monotonic() - looked[0] < _LOOK_COUNTS_SECONDS else None

    def _now(self, current: Generation) -> Incident:
        assert self._group is not None
        views, processes, gpus = current.views(), current.processes, self._resources.machine.gpu_users
        known = failure_incident.look(self._group, processes, views, current.errors(), current.asked_ns(), gpus)
        incident = failure_incident.failure_incident(
            *(self._group, processes.pids(), known, views, {}, {}, current.number),
            *(time.monotonic_ns(), current.overstayed),
        )
        return incident._replace(kind=ELSEWHERE)

    def _give(self, incident: Incident, told_ns: int) -> None:
        assert self._exchange is not None
        self._given = incident.generation
        incident = incident._replace(node=os.uname().nodename)
        was_told = told_ns != 0 and not has_failed_before(incident, told_ns)
        self._exchange.give_account(incident.generation, account_text(incident, was_told=was_told))

    # ---- in the thread of the exchange ------------------------------------------------------------------

    def heard(self, heard: Heard) -> None:
        """See :class:`launcher.nodes.plane.FailureListener`."""
        if heard.word == Word.SILENCE:
            self._teller.take_silence(heard.generation)
        elif heard.word == Word.STORY:
            self._teller.take_story(heard.generation, heard.text)
        else:
            self._orders.append(heard)
            with self._descriptor_lock:
                if self.descriptor >= 0:
                    os.eventfd_write(self.descriptor, 1)

    def gathered(self, gathered: Gathered) -> None:
        """See :class:`launcher.nodes.plane.FailureListener`."""
        self._teller.decide(gathered)

    def _decided(self, generation: int, text: str) -> None:
        assert self._exchange is not None
        self._exchange.decided(generation, text)


def _write_elsewhere(incident: Incident, log_folder: str) -> None:
    """Write what was seen here of a failure on another node; what fails is left out.

    In a folder that many nodes share they write at the same time, so each has a name of its own.
    """
    name = f"{incident.generation:04d}-{os.uname().nodename}-{os.getpid()}"
    with contextlib.suppress(OSError):
        incident.write_into(os.path.join(log_folder, "elsewhere", name))
