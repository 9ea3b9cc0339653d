"""Tell the story of each failure once, or what this node has seen itself where none comes; and decide, where asked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.agent import announcements
from launcher.agent.resources import AgentResources
from launcher.incidents.accounts import parse_account
from launcher.incidents.incident import Incident, new_folder
from launcher.incidents.job_incident import JobIncident, decide, parse_story, point_to
from launcher.incidents.node_accounts import NodeAccount
from launcher.nodes.gathering import Gathered, host_in
from launcher.processes.background import Background
from launcher.records.console import announce

__all__ = ["StoryTeller"]

logger = logging.getLogger(__name__)

_MOST_WAITING = 8
_LONGEST_SECONDS = 5.0
"""After which a failure is told by what this node has seen, whatever keeps the story."""
_LONGEST_OF_A_NODE_SECONDS = 0.01
"""More than that for each node of the job, whose account has to travel and to be read."""
_MOST_WRITTEN_BEFORE = 64
"""What more nodes have seen takes a while to be written, and is written after the story was told."""
_GENERATIONS_KEPT = 2
"""The story of a generation may be on its way when the next one fails."""


class _Failure(NamedTuple):
    """A generation that is over, as this node tells it where no story comes."""

    lines: tuple[str, ...] = ()
    folder: str | None = None
    due_at: float = 0.0
    """When, on ``time.monotonic()``, it is told whether or not a story may still come."""
    about: announcements.About | None = None


class StoryTeller:
    """Any thread may call it.

    Args:
        resources: What the agent works with.
        on_decided: Called, in a thread of its own, with a generation and its story as text.
    """

    def __init__(self, resources: AgentResources, on_decided: Callable[[int, str], None]) -> None:
        self._resources, self._on_decided = resources, on_decided
        self._changed = threading.Condition()
        self._failures: dict[int, _Failure] = {}
        self._stories: dict[int, JobIncident] = {}
        self._silent: set[int] = set()
        self._told: set[int] = set()
        """Generations whose story was told."""
        self._told_alone: set[int] = set()
        """Those of which was told what this node has seen."""
        self._decider = Background("ft_stories", _MOST_WAITING)
        self._extra_seconds = 0.0

    def start(self) -> None:
        """Start the thread that decides."""
        self._decider.start()

    def began(self, generation: int, nodes: int = 1) -> None:
        """Forget what no story can come for any more, once it was told.

        Args:
            generation: The one that begins.
            nodes: How many nodes it has.
        """
        self._extra_seconds = nodes * _LONGEST_OF_A_NODE_SECONDS
        oldest = generation - _GENERATIONS_KEPT + 1
        for number in [number for number in self._failures if number < oldest]:
            self.take_silence(number)
        with self._changed:
            self._failures = {number: each for number, each in self._failures.items() if number >= oldest}
            self._stories = {number: each for number, each in self._stories.items() if number >= oldest}
            self._silent = {number for number in self._silent if number >= oldest}
            self._told = {number for number in self._told if number >= oldest}
            self._told_alone = {number for number in self._told_alone if number >= oldest}

    def failed(
        self,
        generation: int,
        lines: tuple[str, ...] = (),
        folder: str | None = None,
        about: announcements.About | None = None,
    ) -> None:
        """Note that a generation has failed, and what to say where no story comes; its story is told when it comes."""
        with self._changed:
            if lines or generation not in self._failures:
                due_at = time.monotonic() + _LONGEST_SECONDS + self._extra_seconds
                self._failures[generation] = _Failure(lines, folder, due_at, about)
        self._tell(generation)

    def tell_overdue(self) -> float | None:
        """Tell what this node has seen of failures whose story has not come in time.

        A rank that cannot be killed, say, keeps its generation from being over.

        Returns:
            In how many seconds to come back; None where nothing is due.
        """
        now, due = time.monotonic(), []
        with self._changed:
            for generation, own in self._failures.items():
                if generation not in self._told and generation not in self._told_alone and own.lines:
                    due.append((own.due_at - now, generation))
        for left, generation in due:
            if left <= 0:
                self.take_silence(generation)
        return min((left for left, _ in due if left > 0), default=None)

    def tell_all(self) -> None:
        """Tell what has not been told: nobody will come back to it."""
        for generation in list(self._failures):
            self.take_silence(generation)

    def withdrawn(self, generation: int) -> None:
        """Note that it has not, after all."""
        with self._changed:
            self._failures.pop(generation, None)

    def take_story(self, generation: int, text: str) -> None:
        """Take the story that all nodes are told."""
        try:
            story = parse_story(text)
        except ValueError as error:
            logger.warning("the story of generation %s cannot be read: %s", generation, error)
            return
        with self._changed:
            self._stories.setdefault(generation, story)
        self._tell(generation)

    def take_silence(self, generation: int) -> None:
        """Note that no story comes."""
        with self._changed:
            self._silent.add(generation)
        self._tell(generation)

    def await_story(self, generation: int, seconds: float) -> JobIncident | None:
        """Return the story of a generation that has failed, once it was told; None where none comes in time.

        Args:
            generation: Which.
            seconds: How long to wait for it, on a few nodes.
        """
        with self._changed:
            if generation not in self._failures:
                return None
            seconds += self._extra_seconds
            self._changed.wait_for(lambda: generation in self._told or generation in self._told_alone, seconds)
            return self._stories.get(generation)

    def _tell(self, generation: int) -> None:
        with self._changed:
            story, own = self._stories.get(generation), self._failures.get(generation)
            if own is None or generation in self._told:
                return
            if story is not None:
                self._told.add(generation)
                announce(*story.summary(), **announcements.about(story))
            elif generation in self._silent and generation not in self._told_alone:
                self._told_alone.add(generation)
                if own.lines and own.about is not None:
                    alone = "  note    the other nodes have not told what they have seen"
                    announce(*own.lines, alone, **own.about)
                    self._resources.notices.tell_own(generation)
            self._changed.notify_all()
        if story is None:
            return
        self._resources.events.write(
            "job_incident",
            generation=generation,
            kind=story.kind,
            culprits=[each.rank.rank for each in story.culprits],
            nodes=[each.node for each in story.culprits] or list(story.nodes_to_blame),
            heard=len(story.heard),
            folder=story.folder,
            gathered_on=story.gathered_on,
        )
        if (folder := own.folder) is not None:
            self._resources.disk.submit(lambda: point_to(story, folder))

    # ---- deciding ---------------------------------------------------------------------------------------

    def decide(self, gathered: Gathered) -> None:
        """Decide who is to blame, in a thread of its own; where the system has refused that, nobody decides."""
        if self._decider.is_started:
            self._decider.submit(lambda: self._decide(gathered))

    def _decide(self, gathered: Gathered) -> None:
        accounts: list[NodeAccount] = []
        silent = list(gathered.silent)
        for name, text in gathered.accounts.items():
            try:
                accounts.append(parse_account(text))
            except ValueError as error:
                logger.warning("the account of node %s cannot be read: %s", name, error)
                silent.append(host_in(name))
        story = decide(
            gathered.generation,
            accounts,
            silent,
            gathered.lost,
            gathered.why,
            gathered.seconds,
            may_blame_silent=gathered.may_blame_silent,
        )
        parent = f"{self._resources.log_folder}/job_incidents"
        incidents = [account.incident for account in accounts]
        is_long = len(incidents) > _MOST_WRITTEN_BEFORE
        make = new_folder if is_long else lambda parent: _written(story, new_folder(parent), incidents)
        folder = self._resources.on_disk("the job's incident", lambda: make(parent), None)
        told = story._replace(folder=folder)
        self._resources.notices.tell_story(told)
        self._on_decided(gathered.generation, told.to_text())
        if folder is not None and is_long:
            self._resources.disk.submit(lambda: _written(told, folder, incidents))


def _written(story: JobIncident, folder: str, incidents: Sequence[Incident]) -> str | None:
    """Write a story into a folder that is there; None where that cannot be done, which is said."""
    try:
        return story.write_into(folder, incidents).folder
    except OSError as error:
        announce(f"the job's incident cannot be written into {folder}: {error.strerror}", event="log_folder")
        return None
