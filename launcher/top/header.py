"""What stands above the table: the run, its nodes, its last incident, and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from launcher.incidents.incident_files import DamagedIncidentError, read_incident, read_job_incident
from launcher.live.launcher_log import LastIncident, LauncherLog
from launcher.live.live_run import NodeLook, RunLook
from launcher.live.runs import ELSEWHERE, ENDED, GOES_ON, LOST, STARTING, UNKNOWN
from launcher.processes.proc import boot_id
from launcher.records.format_versions import UnknownVersionError
from launcher.top.other_nodes import OtherNode
from launcher.top.phrases import duration, one_line
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["GONE", "Headers", "HeaderLine", "how_it_ended", "why_unknown"]

GONE = "its launcher is gone: it was killed, or it runs in another container"


class HeaderLine(NamedTuple):
    """One line above the table."""

    text: str
    is_bad: bool = False
    """Somebody should look."""


class Headers:
    """Writes the lines, and remembers what an incident said: its file is read once."""

    def __init__(self) -> None:
        self._sentences: dict[LastIncident, str] = {}
        self._boot = boot_id() or os.uname().nodename

    def lines(self, look: RunLook, others: Sequence[OtherNode] = ()) -> list[HeaderLine]:
        """Return the lines for a look at a run.

        Args:
            look: The look.
            others: What is known of other nodes.
        """
        lines = [self._run_line(look)]
        for node in look.nodes:
            lines.append(self._node_line(node, look.seen_ns))
            lines += self._troubles(node, look.seen_ns)
        incidents = [node for node in look.nodes if node.log.incident is not None]
        if incidents:
            node = max(incidents, key=lambda node: node.log.incident.t_ns if node.log.incident is not None else 0)
            lines.append(HeaderLine(self.incident_sentence(node.log, look.seen_ns)))
        elif look.nodes and all(node.log.is_whole for node in look.nodes):
            lines.append(HeaderLine("no incident so far"))
        else:
            lines.append(HeaderLine("incidents: unknown, as events of the run are not here"))
        for other in others:
            if other.problem is not None:
                lines.append(HeaderLine(f"{one_line(other.url)}: {other.problem}", is_bad=True))
        return lines

    def incident_sentence(self, log: LauncherLog, now_ns: int) -> str:
        """Return one line about the last failure of a launcher; empty without one."""
        incident = log.incident
        if incident is None:
            return ""
        if incident not in self._sentences:
            self._sentences = {incident: _read(incident)}
        when = self._ago(log, incident.t_ns, incident.time, now_ns)
        return f"last incident {when}: {self._sentences[incident]}"

    def _run_line(self, look: RunLook) -> HeaderLine:
        began = [node.log for node in look.nodes if node.log.began_ns is not None]
        line = f"run {one_line(look.name)}"
        if began:
            first = min(began, key=lambda log: log.began_ns or 0)
            line += f", began {self._ago(first, first.began_ns or 0, first.began, look.seen_ns)}"
        return HeaderLine(line)

    def _node_line(self, node: NodeLook, now_ns: int) -> HeaderLine:
        log = node.log
        parts = [f"node {one_line(log.node or 'unknown')}"]
        if log.nodes is not None and log.nodes > 1:
            parts.append(f"{log.nodes} nodes")
        if node.generation is not None:
            since = ""
            if log.generation == node.generation and log.generation_ns is not None:
                since = f" since {duration((now_ns - log.generation_ns) / NS_PER_SECOND)}"
            parts.append(f"generation {node.generation}{since}")
        elif node.state == GOES_ON:
            parts.append("no generation" if log.generation is None else f"generation {log.generation} is over")
        of = f" of {log.max_restarts}" if log.max_restarts is not None else ""
        parts.append(f"{'?' if log.restarts is None else log.restarts}{of} restarts used")
        return HeaderLine(", ".join(parts))

    def _troubles(self, node: NodeLook, now_ns: int) -> list[HeaderLine]:
        log, lines = node.log, []
        if node.state != GOES_ON:
            lines.append(HeaderLine(how_it_ended(node), is_bad=node.state in (LOST, UNKNOWN)))
        elif log.unprotected_ns is not None:
            silent = duration((now_ns - log.unprotected_ns) / NS_PER_SECOND)
            lines.append(HeaderLine(f"no monitor watches the ranks since {silent}", is_bad=True))
        elif log.monitor_replacements:
            lines.append(HeaderLine(f"the monitor was replaced {log.monitor_replacements} time(s)"))
        if node.problem is not None:
            lines.append(HeaderLine(f"the cells cannot be read: {one_line(node.problem)}", is_bad=True))
        return lines

    def _ago(self, log: LauncherLog, at_ns: int, time: str, now_ns: int) -> str:
        """Say when something was: how long ago where that is on this machine's clock, and the time of day."""
        day = one_line(time[:19].replace("T", " "))
        if log.boot not in (None, self._boot):
            return day
        ago = duration((now_ns - at_ns) / NS_PER_SECOND)
        return f"{ago} ago ({day[11:]})" if day else f"{ago} ago"


def how_it_ended(node: NodeLook) -> str:
    """Return one line: how a launcher has ended, or why that is not known."""
    ending, state = node.log.ending, node.state
    if state == ENDED and ending is not None:
        code = f", exit code {ending.exit_code}" if ending.exit_code is not None else ""
        why = f": {one_line(ending.why)}" if ending.why else ""
        when = one_line(ending.time[:19].replace("T", " "))
        return f"the run has ended{f' at {when}' if when else ''}: {one_line(ending.outcome)}{code}{why}"
    if state == ELSEWHERE:
        return f"it runs, or has run, on another machine ({one_line(node.log.node or 'unknown')}); start ft_top there"
    if state == LOST:
        return f"{GONE}, and nobody has written how it ended"
    if state in (STARTING, UNKNOWN):
        return why_unknown(node.log, state)
    return "the run goes on"


def why_unknown(log: LauncherLog, state: str) -> str:
    """Return one line: why it is not known whether a launcher goes on."""
    file = one_line(os.path.basename(log.path))
    if state == STARTING:
        return f"{file} is empty: the run is starting, or its events were removed"
    what = "the events that tell where it runs are not" if log.last_ns else "no event can be read"
    return f"{what} in {file}, so whether it goes on is not known; ft_report tells what is left of it"


def _read(incident: LastIncident) -> str:
    """Return what is told of an incident in one line; who is to blame where its file cannot be read."""
    ranks = ", ".join(map(str, incident.culprits[:8]))
    plain = f"{incident.kind.replace('_', ' ')}, " + (f"rank {ranks} to blame" if ranks else "nobody can be named")
    if incident.folder is None:
        return plain
    try:
        if incident.kind == "job_incident":
            headlines = read_job_incident(incident.folder).headlines()
        else:
            headlines = read_incident(incident.folder).headlines()
    except (
        OSError,
        DamagedIncidentError,
        UnknownVersionError,
    ):  # it is on another node, was removed, is damaged, or of another release
        return plain
    return one_line(headlines[0]) if headlines else plain
