"""One failure of a job on several nodes: who caused it, where and why, as all nodes are told.

A folder per failure, ``job_incidents/0001``, at the node that gathered it: ``incident.json`` (format below, version 1)
and ``report.txt``, with what every node has seen. The story that all nodes are told is the same without the latter.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from launcher.incidents.attributed import LIKELY
from launcher.incidents.frames import Frame, own_frame, own_frame_in
from launcher.incidents.incident import ELSEWHERE, MOST_STACKS, Incident, one_line_each, write_files
from launcher.incidents.job_attribution import attribute_job
from launcher.incidents.node_accounts import NodeAccount
from launcher.incidents.rank_phrases import full_stack, headline, raised_place, where
from launcher.incidents.rank_report import RankReport, report_from_json, report_to_json
from launcher.processes.plain_types import check_types
from launcher.records.format_versions import check_version
from launcher.records.readable import readable
from resilience_core.system.plain_files import only_plain

__all__ = ["Culprit", "JobIncident", "decide", "own_place", "parse_story", "point_to"]

_FORMAT_VERSION = 1
_MOST_SEEN = 2


class Culprit(NamedTuple):
    """A rank that is to blame, and where it runs."""

    node: str
    rank: RankReport


class JobIncident(NamedTuple):
    """One failure of the job."""

    generation: int
    kind: str
    """``hang``, ``failure`` (a process ended or raised), ``lost`` (a node is gone, or does not answer), or ``request``
    (a rank has asked for the end of the job)."""
    why: str
    """How the culprit was told from the others."""
    culprits: tuple[Culprit, ...]
    """Empty where a node as a whole is to blame, or where it cannot be told."""
    nodes_to_blame: tuple[str, ...]
    heard: tuple[str, ...]
    """The nodes that have told what they have seen."""
    silent: tuple[str, ...]
    lost: tuple[str, ...]
    """The nodes that were no longer there."""
    seconds: float
    """From the end of the generation until all was gathered."""
    seen: tuple[Culprit, ...] = ()
    """Where nobody can be named: the first of those that have failed, perhaps for another."""
    others: int = 0
    """How many further culprits there are, in a story that leaves them out."""
    gathered_on: str = ""
    folder: str | None = None
    wall_time: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON types; a rank is as in :meth:`launcher.incidents.incident.Incident.to_json`, without defaults."""
        ranks = {
            key: [{"node": each.node, **report_to_json(each.rank, is_short=True)} for each in listed]
            for key, listed in (("culprits", self.culprits), ("seen", self.seen))
        }
        return {"version": _FORMAT_VERSION, **self._asdict(), **ranks}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> JobIncident:
        """Return the inverse of :meth:`to_json`; what each node has seen is not part of it.

        Raises:
            UnknownVersionError: The document is of another version than this release writes.
        """
        check_version("the job's incident", document.get("version"), _FORMAT_VERSION)
        facts = {key: document[key] for key in cls._fields if key in document}
        for name, listed in (("culprits", document["culprits"]), ("seen", document.get("seen", []))):
            facts[name] = tuple(
                Culprit(each["node"], report_from_json({key: value for key, value in each.items() if key != "node"}))
                for each in listed
            )
        for key in ("nodes_to_blame", "heard", "silent", "lost"):
            facts[key] = tuple(facts[key])
        incident = cls(**facts)
        for record in (incident, *incident.culprits, *incident.seen):
            check_types(record)
        return incident

    def to_text(self) -> str:
        """Return what :func:`parse_story` reads: at most some ten kilobytes, however many culprits there are."""
        kept = tuple(
            Culprit(each.node, each.rank._replace(evidence=None, children=(), stderr_tail=each.rank.stderr_tail[-5:]))
            for each in self.culprits[:MOST_STACKS]
        )
        others = self.others + len(self.culprits) - len(kept)
        return json.dumps(self._replace(culprits=kept, others=others).to_json())

    def summary(self) -> list[str]:
        """Return the lines that every node prints: who and where, why, and where there is more."""
        heard = f"{len(self.heard)} of {len(self.heard) + len(self.silent) + len(self.lost)} nodes heard"
        silent = f", not {', '.join((*self.silent, *self.lost))}" if self.silent or self.lost else ""
        seen = [f"  seen    node {each.node}: {_told(each.rank)}" for each in self.seen]
        return [*self.headlines(), *seen, f"  why     {self.why} [{heard}{silent}]", *self.where_more_is()]

    def where_more_is(self) -> list[str]:
        """Return the line that says where the report is; nothing where none was written."""
        if not self.folder:
            return []
        return [f"  report  {os.path.join(self.folder, 'report.txt')} on node {self.gathered_on}"]

    def headlines(self) -> list[str]:
        """Return one line for each culprit."""
        if self.nodes_to_blame:
            names = ", ".join(self.nodes_to_blame)
            likely = "likely " if self.why.startswith(LIKELY) else ""
            return [
                f"{likely}node{'s' if len(self.nodes_to_blame) > 1 else ''} {names}: generation {self.generation} ended"
            ]
        if not self.culprits:
            return [f"generation {self.generation} ended, and which rank is the cause cannot be told"]
        lines = [self._headline(each) for each in self.culprits[:MOST_STACKS]]
        left = len(self.culprits) + self.others - MOST_STACKS
        return [*lines, f"and {left} more"] if left > 0 else lines

    def _headline(self, culprit: Culprit) -> str:
        rank = culprit.rank
        line = headline(
            *(rank, self.kind),
            is_likely=self.why.startswith(LIKELY),
            by_heartbeats=rank.cause == "heartbeat",
            node=culprit.node,
        )
        place = own_place(rank)
        message = f": {rank.message}" if rank.message and self.kind != "request" else ""
        return f"{line}{message}{f'; at {place}' if place is not None else ''}"

    def report(self, incidents: Sequence[Incident]) -> Iterator[str]:
        """Yield the whole of it: the summary, the culprits' stacks, and what each node has seen."""
        yield f"{self.kind} in generation {self.generation} of the job, {self.wall_time}"
        yield from self.summary()
        yield f"  gathered on {self.gathered_on} within {self.seconds:.3f} s"
        for each in self.culprits:
            yield ""
            yield f"--- culprit: rank {each.rank.rank} on node {each.node}"
            yield from full_stack(each.rank.stack)
            if each.rank.error is not None and each.rank.error.traceback:
                yield from (f"  {line}" for line in each.rank.error.traceback.splitlines())
            if each.rank.stderr_tail:
                yield "  last lines of standard error"
                yield from (f"    {line}" for line in each.rank.stderr_tail)
        for incident in incidents:
            yield ""
            seen = "was told of it" if incident.kind == ELSEWHERE else f"has seen a {incident.kind}"
            folder = f": {os.path.join(incident.folder, 'report.txt')} there" if incident.folder else ""
            yield f"=== node {incident.node} {seen}{folder}"
            yield from (f"  {_told(rank)}{_standing(rank)}" for rank in incident.ranks)

    def write_into(self, folder: str, incidents: Sequence[Incident]) -> JobIncident:
        """Write the incident into a folder that is there, with what each node has seen.

        Returns:
            The incident, with its folder filled in.

        Raises:
            OSError: The folder cannot be written.
        """
        complete = self._replace(folder=folder)
        document = {**complete.to_json(), "nodes": [incident.to_json(is_short=True) for incident in incidents]}
        write_files(folder, complete.report(incidents), one_line_each(document, "nodes"))
        return complete


def decide(
    generation: int,
    accounts: Sequence[NodeAccount],
    silent: Sequence[str],
    lost: Sequence[str],
    why_over: str,
    seconds: float,
    *,
    may_blame_silent: bool = True,
) -> JobIncident:
    """Return what has happened, from what each node has seen; nothing is written.

    Args:
        generation: Of the ranks.
        accounts: What was heard.
        silent: Nodes that were not heard, though they are there.
        lost: Nodes that are no longer there.
        why_over: Why the generation is over, as the nodes have agreed.
        seconds: How long it took to gather that.
        may_blame_silent: There is no good reason for their silence.
    """
    found = attribute_job(accounts, silent, lost, why_over, may_blame_silent=may_blame_silent)
    named = set(found.ranks)
    culprits = tuple(
        Culprit(account.node, report._replace(is_culprit=True))
        for account in accounts
        for report in account.incident.ranks
        if report.rank in named
    )
    failed = [
        Culprit(account.node, _without_details(report))
        for account in accounts
        for report in account.incident.ranks
        if report.error is not None or (report.exit_code or 0) > 0
    ]
    kinds = {account.incident.kind for account in accounts}
    kind = "hang" if "hang" in kinds and not _has_failed(culprits) else "failure"
    kind = "lost" if found.nodes else "request" if "request" in kinds else kind
    return JobIncident(
        generation=generation,
        kind=kind,
        why=found.why,
        culprits=culprits,
        nodes_to_blame=found.nodes,
        heard=tuple(account.node for account in accounts),
        silent=tuple(silent),
        lost=tuple(lost),
        seconds=seconds,
        seen=() if culprits or found.nodes else tuple(failed[:_MOST_SEEN]),
        gathered_on=os.uname().nodename,
        wall_time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _without_details(rank: RankReport) -> RankReport:
    return rank._replace(evidence=None, stack=(), native=(), children=(), stderr_tail=(), stdout_tail=())


def parse_story(text: str) -> JobIncident:
    """Return what a node was told.

    Raises:
        ValueError: It is no story of this release.
    """
    try:
        return JobIncident.from_json(json.loads(text))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def point_to(story: JobIncident, folder: str) -> None:
    """Say in the folder of what one node has seen who is to blame, by all that was seen; what fails is left out."""
    with contextlib.suppress(OSError):
        path = os.path.join(folder, "report.txt")
        with open(path, "a", encoding="utf-8", errors="backslashreplace", opener=only_plain) as file:
            lines = ("", "As all nodes of the job have found:", *story.summary())
            file.write("".join(readable(line) + "\n" for line in lines))
        with open(os.path.join(folder, "job_incident.json"), "w", encoding="utf-8", opener=only_plain) as file:
            file.write(story.to_text() + "\n")


def _has_failed(culprits: Sequence[Culprit]) -> bool:
    return any(each.rank.exit_code is not None or each.rank.error is not None for each in culprits)


def own_place(rank: RankReport) -> Frame | None:
    """Return the line of the user's own code at which a rank raised, where that is why it ends, or stands."""
    if (frame := raised_place(rank) or own_frame(rank.stack)) is not None:
        return frame
    return own_frame_in(rank.error.traceback) if rank.error is not None else None


def _told(rank: RankReport) -> str:
    """Return where a rank is, or how it has ended, with its exception."""
    return f"{where(rank)}{f': {rank.message}' if rank.message else ''}"


def _standing(rank: RankReport) -> str:
    place = rank.evidence.stands_at if rank.evidence is not None else ""
    return f", at {place}" if place and not rank.waits_in else ""
