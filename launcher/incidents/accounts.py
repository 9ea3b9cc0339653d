"""What a node tells the others of a failure: an incident, cut down to what people and rules need of it, as text."""

from __future__ import annotations

import json
import math
from collections.abc import Collection

from launcher.incidents.attributed import NOTICED_LATE_NS
from launcher.incidents.frames import own_frame_in
from launcher.incidents.incident import ELSEWHERE, MOST_STACKS, Incident
from launcher.incidents.node_accounts import NodeAccount
from launcher.incidents.rank_report import RankReport

__all__ = ["account_text", "has_failed_before", "parse_account", "with_ends", "without_spared"]

_VERSION = 1
_LONGEST_TRACEBACK = 4000
_MOST_TAIL_LINES = 20


def account_text(incident: Incident, *, was_told: bool) -> str:
    """Return an account as text: a few hundred bytes for each rank, some kilobytes for each that may be the culprit.

    Args:
        incident: What this node has seen; with the node's name.
        was_told: See :class:`NodeAccount`.
    """
    speakers = incident.speakers
    if incident.kind == ELSEWHERE and not incident.culprits:  # who does not wait may be whom all others wait for
        speakers = tuple(rank for rank in incident.ranks if rank.evidence is None or not rank.evidence.waits)
    told = {rank.rank for rank in speakers[:MOST_STACKS]}
    ranks = tuple(_shortened(rank, is_whole=rank.rank in told) for rank in incident.ranks)
    document = incident._replace(ranks=ranks).to_json(is_short=True)
    return json.dumps({"version": _VERSION, "was_told": was_told, "incident": document})


def parse_account(text: str) -> NodeAccount:
    """Return what :func:`account_text` has made a text of.

    Raises:
        ValueError: It is no account of this release.
    """
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise ValueError(f"it is of version {document['version']!r}, not {_VERSION}")
        return NodeAccount(Incident.from_json(document["incident"]), bool(document["was_told"]))
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def has_failed_before(incident: Incident, told_ns: int) -> bool:
    """Return whether a rank has failed by itself, or may have, before its node was told of another failure.

    Nothing orders these two: that the other node was the first to tell of its failure may be due to a process which
    takes long to end once it has raised.

    Args:
        incident: What this node has seen.
        told_ns: When it was told, on the same clock.
    """
    return any(_failed_ns(rank) < told_ns for rank in incident.ranks if rank.evidence is not None)


def with_ends(seen: Incident, now: Incident, ended_by_us: Collection[int] = ()) -> Incident:
    """Return what was seen of ranks, stacks included, with the exceptions and exits that have come since.

    A rank that loses its peer right after its stack was taken, or while it was, stands nowhere in particular.

    Args:
        seen: Before.
        now: Of the same ranks, without stacks.
        ended_by_us: Local ranks whose end tells nothing, since we have ended them.
    """
    ends = {
        rank.rank: rank
        for rank in now.ranks
        if (rank.exit_code is not None or rank.error is not None) and rank.local_rank not in ended_by_us
    }
    return seen._replace(ranks=tuple(ends.get(rank.rank, rank) for rank in seen.ranks))


def without_spared(incident: Incident, spared: Collection[int]) -> Incident:
    """Return an incident with no verdict on the local ranks that were spared."""
    return incident._replace(
        ranks=tuple(
            rank._replace(
                is_condemned=False,
                is_culprit=False,
                evidence=rank.evidence._replace(is_condemned=False) if rank.evidence is not None else None,
            )
            if rank.local_rank in spared
            else rank
            for rank in incident.ranks
        )
    )


def _failed_ns(rank: RankReport) -> float:
    """Return the earliest time at which a rank may have failed by itself; never, where it has not."""
    e = rank.evidence
    if e is None or e.is_victim or (rank.error is None and e.exit_code in (None, 0)):
        return math.inf
    if rank.error is not None and rank.error.at_ns != e.ended_ns:
        return math.inf if e.has_lost_a_thread else rank.error.at_ns
    return e.ended_ns - NOTICED_LATE_NS  # that of torch's error files is only known by the end, too


def _shortened(rank: RankReport, *, is_whole: bool) -> RankReport:
    evidence = rank.evidence
    if evidence is not None and evidence.is_victim and not evidence.waits_at and rank.error is not None:
        place = str(own_frame_in(rank.error.traceback) or "")  # there it has waited for the peer that it lost
        evidence = evidence._replace(waits_at=place, stands_at=place)
    error = rank.error
    if error is not None:
        error = error._replace(traceback=error.traceback[-_LONGEST_TRACEBACK:] if is_whole else "")
        evidence = evidence._replace(error=error) if evidence is not None else None
    rank = rank._replace(native=())  # the report of its own node has them
    if is_whole:
        return rank._replace(
            error=error, evidence=evidence, stderr_tail=rank.stderr_tail[-_MOST_TAIL_LINES:], stdout_tail=()
        )
    return rank._replace(error=error, evidence=evidence, stdout_tail=(), stderr_tail=(), stack=(), children=())
