"""When the ranks of a node gave their last sign of progress, and which of them had done their part by then."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.reports.node_generations import NodeGeneration
from launcher.reports.rank_lives import RankLife
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["had_ended_well", "last_sign_ns"]


def had_ended_well(rank: RankReport, seen_ns: int | None) -> bool:
    """Return whether a rank had done its part when its peers failed; it may also end with 0 since it was asked to."""
    if (known := rank.evidence) is None:  # as in incidents of earlier releases
        return rank.exit_code == 0 and not rank.is_culprit
    return known.has_left and not rank.is_culprit and (seen_ns is None or known.ended_ns < seen_ns)


def last_sign_ns(
    own: NodeGeneration, ranks: Mapping[int, RankLife], cut_ns: int | None, incident: Incident | None, until_ns: int
) -> int | None:
    """Return the last sign of progress of a node's ranks: by what was seen of each rank then, or by its figures.

    Where figures are missing, ranks may have gone on after the last of them, and after their first signs of life.
    """
    signs: list[int] = [sign for life in ranks.values() if (sign := life.last_sign_ns(until_ns)) is not None]
    if incident is not None:
        ages = [rank.open_seconds for rank in incident.ranks if rank.open_seconds is not None]
        seen = [incident.seen_ns - int(age * NS_PER_SECOND) for age in ages]
        signs += [sign for sign in seen if own.started_ns <= sign <= until_ns]
    if cut_ns is not None:
        signs = [sign for sign in signs if sign > cut_ns]
    elif not signs and ranks:
        signs = [sign for sign in own.first_sign_ns.values() if sign <= until_ns]
    return max(signs, default=None)
