"""Tell people and the event log of incidents and near misses, each once."""

from __future__ import annotations

from launcher.agent import announcements, failure_incident
from launcher.agent.resources import AgentResources
from launcher.incidents.incident import Incident
from launcher.monitor.near_miss import NearMiss
from launcher.records.console import announce
from resilience_core.protocol.control import WorkloadControlRequest

__all__ = ["IncidentLog"]


class IncidentLog:
    """What was told of one job on this node.

    Args:
        resources: What the agent works with.
    """

    def __init__(self, resources: AgentResources) -> None:
        self._resources = resources
        self.last: Incident | None = None
        """The incident that was told last."""
        self._near_misses = 0
        self._has_noted_py_spy = False

    def of_generation(self, generation: int) -> Incident | None:
        """Return the last incident where it ended this generation."""
        return self.last if self.last is not None and self.last.generation == generation else None

    def tell(self, incident: Incident, problem: str | None = None) -> None:
        """Tell an incident.

        Args:
            incident: Which.
            problem: Why it could not be written.
        """
        is_same_again = failure_incident.is_same_again(self.last, incident)
        self.last = incident
        announce(*incident.summary(), *([f"  note    {problem}"] if problem else []))
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
            announce(failure_incident.NO_PY_SPY)
        if is_same_again:
            announce(
                "  note    the same error as in the generation before, at the same place: it does not look like chance"
            )

    def tell_spared(self, generation: int, miss: NearMiss) -> None:
        """Tell of a rank whose verdict was withdrawn.

        Only a rank that was overdue is a near miss. Of one that was to end with it, no more is said than what takes
        back an announcement.
        """
        if miss.was_late:
            self._near_misses += 1
            announce(announcements.near_miss(miss, self._near_misses))
            self._resources.events.write("near_miss", generation=generation, count=self._near_misses, **miss._asdict())
        elif miss.was_announced:
            announce(announcements.withdrawn(miss))
            self._resources.events.write("withdrawn", generation=generation, **miss._asdict())

    def tell_request(self, generation: int, rank: int, request: WorkloadControlRequest) -> str:
        """Tell what a rank has asked for, and return it as a line."""
        said = f"rank {rank} requests {request.action.value}: {request.description or 'no reason given'}"
        self._resources.events.write(
            "request", generation=generation, rank=rank, action=request.action.value, why=request.description
        )
        announce(said)
        return said
