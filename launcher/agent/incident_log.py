"""Tell people and the event log of incidents and near misses, each once."""

from __future__ import annotations

import time
from collections.abc import Collection

from launcher.agent import announcements, failure_incident
from launcher.agent.job_stories import JobStories
from launcher.agent.resources import AgentResources
from launcher.agent.spared_ranks import SparedRanks
from launcher.incidents.accounts import with_ends, without_spared
from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import JobIncident
from launcher.monitor.near_miss import NearMiss
from launcher.records.console import CRITICAL, ERROR, WARNING, announce
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest

__all__ = ["IncidentLog"]

_LONGEST_WAIT_FOR_A_STORY_SECONDS = 4.5
"""Longer than until it is clear that none comes (:mod:`launcher.nodes.gathering`)."""
_SAME_AGAIN = "the same error as in the generation before, at the same place: it does not look like chance"


class IncidentLog:
    """What was told of one job on this node.

    Args:
        resources: What the agent works with.
        stories: What the nodes find out together.
    """

    def __init__(self, resources: AgentResources, stories: JobStories) -> None:
        self._resources, self._stories = resources, stories
        self.last: Incident | None = None
        """The incident that was told last."""
        self._near_misses = 0
        self._spared: set[int] = set()
        """Local ranks that were spared since that incident."""
        self._unsettled = SparedRanks(self._tell_spared)
        self._has_noted_py_spy = False

    def of_generation(self, generation: int) -> Incident | None:
        """Return the last incident where it ended this generation."""
        return self.last if self.last is not None and self.last.generation == generation else None

    def culprits(self, generation: int) -> list[int]:
        """Return the ranks that are to blame for the end of a generation; empty where nobody is named."""
        incident = self.of_generation(generation)
        return [rank.rank for rank in incident.culprits] if incident is not None else []

    def for_all(self, exits: Incident, condemned: Collection[int]) -> Incident:
        """Return what the other nodes are to know of a failure here.

        Args:
            exits: What was seen of the ranks that have ended.
            condemned: Local ranks whose verdict stands: what was seen of them before their end is the incident.
        """
        if self.last is None or self.last.kind != "hang" or self.last.generation != exits.generation or not condemned:
            return exits
        return with_ends(without_spared(self.last, self._spared - set(condemned)), exits, condemned)

    def tell(self, incident: Incident, problem: str | None = None) -> None:
        """Tell an incident. People are told here, or, of a job on several nodes, what all nodes have found.

        Args:
            incident: Which.
            problem: Why it could not be written.
        """
        is_same_again = failure_incident.is_same_again(self.last, incident)
        self.last = incident
        self._spared.clear()
        lines = (*incident.summary(), *([f"  note    {problem}"] if problem else []))
        self._resources.notices.saw(incident)
        if self._stories.will_tell(incident, lines):
            if is_same_again:
                announce(_SAME_AGAIN, event="same_again", generation=incident.generation)
        else:
            again = [f"  note    {_SAME_AGAIN}"] if is_same_again else []
            announce(*lines, *again, **announcements.about(incident))
            self._resources.notices.tell_own(incident.generation)
        self._resources.events.write(
            incident.kind,
            generation=incident.generation,
            culprits=[rank.rank for rank in incident.culprits],
            condemned=[rank.rank for rank in incident.condemned],
            deadline_ns=incident.deadline_ns,
            seen_ns=incident.seen_ns,
            folder=incident.folder,
        )
        captures = self._resources.config.capture_stacks
        if not self._has_noted_py_spy and captures and failure_incident.misses_py_spy(incident):
            self._has_noted_py_spy = True
            announce(failure_incident.NO_PY_SPY, event="stacks")

    def tell_ended_elsewhere(self, generation: int, said: str) -> None:
        """Tell people that the job has ended as another node says, and how this node's last generation had failed."""
        if generation >= 0:
            self._stories.over(generation)  # it may have failed on another node after this one had begun to end it
        story = self._stories.story_of(generation, _LONGEST_WAIT_FOR_A_STORY_SECONDS)
        self._tell_end(generation, said, story or self.of_generation(generation))

    def tell_end(self, generation: int, why: str | None, allowed: int, left: int) -> None:
        """Tell people that the job has failed.

        Args:
            generation: The last one.
            why: Why it is not restarted, although restarts are left; None where none is.
            allowed: ``--max-restarts``.
            left: How many of those are left.
        """
        incident = self.of_generation(generation)
        story = self._stories.story_of(generation, _LONGEST_WAIT_FOR_A_STORY_SECONDS)
        if why is None and incident is not None:
            why = announcements.what_follows(allowed - left, allowed)
        self._tell_end(generation, announcements.failed(why), story or incident)

    @staticmethod
    def _tell_end(generation: int, said: str, told: Incident | JobIncident | None) -> None:
        about = announcements.about(told) if told is not None else None
        announce(
            *announcements.closing(said, told),
            level=CRITICAL,
            event="job_failed",
            ranks=about["ranks"] if about is not None else (),
            generation=generation,
            culprits_from=1,
            facts=about["facts"] if about is not None else None,
        )

    def tell_spared(self, generation: int, miss: NearMiss, *, has_lost_a_rank: bool) -> None:
        """Tell of a rank whose verdict was withdrawn.

        Only a rank that was overdue is a near miss, and only where no peer that it may have waited for has ended. Of
        any other no more is said than what takes back an announcement.

        Args:
            generation: Of the rank.
            miss: Which.
            has_lost_a_rank: Another local rank has ended, or is failing, by itself.
        """
        self._spared.add(miss.local_rank)
        if miss.was_late and self._stories.is_shared and not has_lost_a_rank:
            self._unsettled.hold(generation, miss)
        else:
            self._tell_spared(generation, miss, time.monotonic_ns(), not has_lost_a_rank)

    def settle(self, generation: int, *, is_over: bool = False, is_done: bool = False) -> float | None:
        """See :meth:`.SparedRanks.settle`."""
        return self._unsettled.settle(generation, is_over=is_over, is_done=is_done)

    def _tell_spared(self, generation: int, miss: NearMiss, at_ns: int, is_close: bool) -> None:
        events = self._resources.events
        if miss.was_late and is_close:
            self._near_misses += 1
            self._announce_spared(generation, miss, announcements.near_miss(miss, self._near_misses), "near_miss")
            count = self._near_misses
            events.write("near_miss", at_ns=at_ns, generation=generation, count=count, **miss._asdict())
        elif miss.was_late or miss.was_announced:
            if miss.was_announced and not self._stories.is_shared:  # else nobody has read of the verdict
                self._announce_spared(generation, miss, announcements.withdrawn(miss), "withdrawn")
            events.write("withdrawn", at_ns=at_ns, generation=generation, **miss._asdict())

    def tell_request(self, generation: int, rank: int, request: WorkloadControlRequest) -> str:
        """Tell what a rank has asked for, and return it as a line."""
        said = f"rank {rank} requests {request.action.value}: {request.description or 'no reason given'}"
        self._resources.events.write(
            "request", generation=generation, rank=rank, action=request.action.value, why=request.description
        )
        is_told_by_all = self._stories.is_shared and request.action is WorkloadAction.ShutdownWorkload
        if not is_told_by_all:
            announce(said, event="request", ranks=[rank], generation=generation)
        return said

    @staticmethod
    def _announce_spared(generation: int, miss: NearMiss, said: str, event: str) -> None:
        """Take a verdict back at the level at which it was told."""
        level = ERROR if miss.was_announced else WARNING
        announce(said, level=level, event=event, ranks=[miss.rank], generation=generation)
