"""Which events of a job people are told of, and which node tells them, where ``--ft-on-event`` is used.

It listens to the event log for most of it; of failures it is told by :mod:`launcher.agent.incident_log` and
:mod:`launcher.agent.story_teller`, which know more than the log has. Of a job on several nodes each event is told once:

* A failure by the node that has gathered its story. Where none comes, each node that has seen a failure tells it.
* A restart by the node with the lowest rank in it.
* The end of a job that has failed by whoever has told the last failure, since that node is still there; the end of one
  that has finished by the node with the lowest rank.
* What concerns one node alone, by that node.

Nothing here waits: a document is handed over to another process (:mod:`launcher.notices.caller`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from launcher.agent import announcements
from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import JobIncident
from launcher.monitor.near_miss import NearMiss
from launcher.notices.handle import CallerHandle
from launcher.notices.notice import Notice, of_incident, of_story
from resilience_core.config.schema import FaultToleranceConfig

__all__ = ["Notices"]

_ENDS = {"succeeded": "finished", "failed": "given_up", "broken off": "given_up"}
"""What the ends of a launcher are called; those by a signal are ``stopped``."""


class Notices:
    """What people are told of one job on this node. Any thread may call it.

    Args:
        run: Name of the run's log folder.
        is_alone: The job has one node, which tells everything.
    """

    def __init__(self, run: str = "", *, is_alone: bool = True) -> None:
        self._run, self._is_alone = run, is_alone
        self._handle: CallerHandle | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._generation = -1
        self._restarts_left: int | None = None
        self._is_first_node: bool | None = None
        """Whether this node has the lowest rank in the generation; None before the first one."""
        self._nodes = 1
        self._seen: Incident | None = None
        """The failure that this node has seen last."""
        self._told = -1
        """The generation whose failure this node has told last."""
        self._told_elsewhere = -1
        """The same of another node."""

    @property
    def pids(self) -> set[int]:
        """The process that tells events, where there is one, and those before it that are not gone."""
        return set() if self._handle is None else self._handle.pids

    def start(self, config: FaultToleranceConfig, on_problem: Callable[[str], None]) -> None:
        """Start the process that tells events, where there is somebody to tell.

        Args:
            config: Whom.
            on_problem: Called, in a thread of its own, with what went wrong, for people.
        """
        if config.on_event is None:
            return
        try:
            self._handle = CallerHandle(config.on_event, config.on_event_timeout, on_problem)
        except (OSError, RuntimeError) as error:  # no process, or no thread
            on_problem(f"--ft-on-event: no process can be started that tells events ({error}); none is told")

    def due_seconds(self) -> float | None:
        """See :meth:`.CallerHandle.due_seconds`."""
        return None if self._handle is None else self._handle.due_seconds()

    def tend(self) -> None:
        """See :meth:`.CallerHandle.tend`."""
        if self._handle is not None:
            self._handle.tend()

    def close(self) -> None:
        """Wait a moment for what is still to be told."""
        if self._handle is not None:
            self._handle.close()

    # ---- failures ---------------------------------------------------------------------------------------

    def saw(self, incident: Incident) -> None:
        """Note a failure that this node has seen."""
        self._seen = incident

    def tell_own(self, generation: int) -> None:
        """Tell what this node has seen of a failure: there are no other nodes, or they have not answered."""
        if (incident := self._seen) is not None and incident.generation == generation:
            self._told = generation
            self._tell(of_incident(incident, self._restarts_left))

    def tell_story(self, story: JobIncident) -> None:
        """Tell a failure as this node has gathered it from all."""
        self._told = story.generation
        self._tell(of_story(story, self._restarts_left))

    # ---- everything else --------------------------------------------------------------------------------

    def heard(self, event: str, facts: Mapping[str, Any]) -> None:
        """Tell an event of the log, if it is one for people, and if it is this node that tells it."""
        if self._handle is None:
            return
        if event == "started":
            self._generation, self._restarts_left = facts["generation"], facts["restarts_left"]
            self._nodes, self._is_first_node = facts["nodes"], facts["node_rank"] == 0
        elif event == "job_incident":
            if self._told != facts["generation"]:
                self._told_elsewhere = facts["generation"]
        elif event == "restarted" and self._is_first_node:
            self._tell_restart(facts)
        elif event == "near_miss":
            count = facts["count"]
            miss = NearMiss(**{name: facts[name] for name in NearMiss._fields})
            self._tell(Notice("near_miss", announcements.near_miss(miss, count), facts["generation"]))
        elif event in ("monitor_lost", "monitor_back"):
            name = "protection_lost" if event == "monitor_lost" else "protection_back"
            text = announcements.monitor_changed(event, facts["reason"])
            self._tell(Notice(name, text, self._generation, why=facts["reason"]))
        elif event == "ended":
            self._tell_end(facts)

    def _tell_restart(self, facts: Mapping[str, Any]) -> None:
        seconds = facts["seconds"]
        after = f", {seconds:.2f} s after {facts['cause']} was seen" if seconds is not None else ""
        text = f"generation {facts['generation']} has started on {self._nodes} node(s){after}"
        left = self._restarts_left
        self._tell(Notice("restarted", text, facts["generation"], seconds=seconds, restarts_left=left))

    def _tell_end(self, facts: Mapping[str, Any]) -> None:
        generation, code, why = facts["generation"], facts["exit_code"], facts["why"]
        event = "node_left" if facts["has_left"] else _ENDS.get(facts["outcome"], "stopped")
        if event == "node_left":
            text = f"node {os.uname().nodename} has left the job"
        elif not self._tells_the_end(generation, event):
            return
        elif event == "given_up":
            text = "the job has failed"
            why = why or ("no restart is left" if self._restarts_left == 0 else None)
        else:
            text = "the job has finished" if event == "finished" else f"the launcher was {facts['outcome']}"
        known = {name: facts[name] for name in ("exit_code", "iteration", "saved")}
        text += f"{f': {why}' if why else ''}; exit code {code}"
        self._tell(Notice(event, text, generation, why=why, restarts_left=self._restarts_left, **known))

    def _tells_the_end(self, generation: int, event: str) -> bool:
        if self._is_alone:
            return True
        if event == "given_up" and generation in (self._told, self._told_elsewhere):
            return self._told == generation
        return bool(self._is_first_node)

    def _tell(self, notice: Notice) -> None:
        if self._handle is None:
            return
        with self._lock:  # one after the other, in the order of their numbers
            self._number += 1
            time = datetime.now().astimezone().isoformat(timespec="milliseconds")
            self._handle.tell(notice.to_json(run=self._run, node=os.uname().nodename, time=time, number=self._number))
