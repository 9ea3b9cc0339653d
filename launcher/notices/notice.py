"""The document that a command or a URL gets for each event, and what each kind of event says in it. Pure.

Every key is always there, so that a consumer needs no list of who has which; what an event does not have is null or
empty. Texts are cut by the bytes that they take in JSON, so that a document always fits into one message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import Culprit, JobIncident, own_place
from launcher.incidents.rank_phrases import blamed_section

__all__ = ["EVENTS", "VERSION", "BlamedRank", "Notice", "encoded", "of_incident", "of_story"]

VERSION = 1
"""To be raised when a key is removed or changes its meaning; a new key does not count."""
EVENTS = (
    *("incident", "restarted", "near_miss", "protection_lost", "protection_back"),
    *("finished", "given_up", "stopped", "node_left"),
)
"""The values of ``event``."""
_MOST_CULPRITS = 16
# Bytes of JSON in UTF-8; all of them together take less than a message holds.
_LONGEST_TEXT = 12_000
_LONGEST_WHY = 6000
_LONGEST_OF_CULPRIT = 1000
_LONGEST_NAME = 4200
"""Of a run, a node, or a path: longer than the system allows one to be, unless its characters are escaped."""


class BlamedRank(NamedTuple):
    """A rank that is to blame."""

    rank: int
    node: str
    section: str | None
    iteration: int | None
    line: str | None
    """The innermost line of the user's own code, ``function (file:line)``."""
    message: str | None
    """Its exception, or how it has ended, in one line."""
    exit_code: int | None


class Notice(NamedTuple):
    """One event."""

    event: str
    text: str
    """For people, in a few lines."""
    generation: int
    kind: str | None = None
    """Of an incident: ``hang``, ``failure``, ``lost`` (a node) or ``request``."""
    why: str | None = None
    culprits: tuple[BlamedRank, ...] = ()
    more_culprits: int = 0
    """How many are left out."""
    nodes: tuple[str, ...] = ()
    """Nodes that are to blame as a whole."""
    report: str | None = None
    report_node: str | None = None
    """On which node the report lies."""
    seconds: float | None = None
    """Of a restart: from when this node saw its cause until its ranks were started."""
    restarts_left: int | None = None
    exit_code: int | None = None
    iteration: int | None = None
    """At the end: the highest that a rank has reported."""
    saved: int | None = None
    """At the end: the iteration of the newest checkpoint that was reported."""

    def to_json(self, *, run: str, node: str, time: str, number: int) -> dict[str, Any]:
        """Return the document, in JSON types.

        Args:
            run: Name of the run's log folder.
            node: Of the launcher that tells it.
            time: When, as ISO 8601.
            number: How many events this launcher has told before, plus 1.
        """
        document = {
            "version": VERSION,
            "event": self.event,
            "run": _cut(run, _LONGEST_NAME),
            "node": _cut(node, _LONGEST_OF_CULPRIT),
            "time": time,
            "number": number,
            **self._asdict(),
        }
        document["text"] = _cut(self.text, _LONGEST_TEXT)
        document["why"] = _cut_or_none(self.why, _LONGEST_WHY)
        document["culprits"] = [_shortened(each) for each in self.culprits[:_MOST_CULPRITS]]
        document["more_culprits"] = self.more_culprits + max(0, len(self.culprits) - _MOST_CULPRITS)
        document["nodes"] = [_cut(name, _LONGEST_OF_CULPRIT) for name in self.nodes[:_MOST_CULPRITS]]
        document["report"] = _cut_or_none(self.report, _LONGEST_NAME)
        document["report_node"] = _cut_or_none(self.report_node, _LONGEST_OF_CULPRIT)
        return document


def encoded(value: object) -> bytes:
    """Return JSON in UTF-8; what is no text of Unicode, as half of a pair of surrogates, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", errors="replace")


def of_incident(incident: Incident, restarts_left: int | None) -> Notice:
    """Return what to tell of a failure that one node has seen; of a job on one node, that is all of it."""
    node = incident.node or os.uname().nodename
    return Notice(
        event="incident",
        text="\n".join([*incident.headlines(), f"why     {incident.why}"]),
        generation=incident.generation,
        kind=incident.kind,
        why=incident.why,
        culprits=_blamed([Culprit(node, rank) for rank in incident.culprits]),
        report=_report(incident.folder),
        report_node=node if incident.folder else None,
        restarts_left=restarts_left,
    )


def of_story(story: JobIncident, restarts_left: int | None) -> Notice:
    """Return what to tell of a failure as all nodes have seen it."""
    return Notice(
        event="incident",
        text="\n".join([*story.headlines(), f"why     {story.why}"]),
        generation=story.generation,
        kind=story.kind,
        why=story.why,
        culprits=_blamed(story.culprits),
        more_culprits=story.others,
        nodes=story.nodes_to_blame,
        report=_report(story.folder),
        report_node=story.gathered_on if story.folder else None,
        restarts_left=restarts_left,
    )


def _blamed(culprits: Sequence[Culprit]) -> tuple[BlamedRank, ...]:
    return tuple(
        BlamedRank(
            rank=each.rank.rank,
            node=each.node,
            section=blamed_section(each.rank),
            iteration=each.rank.iteration,
            line=str(place) if (place := own_place(each.rank)) is not None else None,
            message=each.rank.message,
            exit_code=each.rank.exit_code,
        )
        for each in culprits
    )


def _shortened(blamed: BlamedRank) -> dict[str, Any]:
    facts = blamed._asdict()
    return {key: _cut(value, _LONGEST_OF_CULPRIT) if isinstance(value, str) else value for key, value in facts.items()}


def _cut(text: str, longest: int) -> str:
    """Return the beginning of a text that takes so many bytes of JSON at most."""
    candidate = text[:longest]
    if len(encoded(candidate)) <= longest:
        return candidate
    fitting, too_long = 0, len(candidate)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if len(encoded(candidate[:middle])) <= longest:
            fitting = middle
        else:
            too_long = middle
    return candidate[:fitting]


def _cut_or_none(text: str | None, longest: int) -> str | None:
    return None if text is None else _cut(text, longest)


def _report(folder: str | None) -> str | None:
    return os.path.join(folder, "report.txt") if folder is not None else None
