"""When the ranks of a node gave their last sign of progress, and which of them had done their part by then."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.reports.node_generations import NodeGeneration
from launcher.reports.rank_lives import RankLife
from launcher.reports.samples import Wait
from resilience_core.protocol.figures import CHECKPOINTING, SETUP
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["had_ended_well", "last_sign_ns", "waits"]


def had_ended_well(rank: RankReport, seen_ns: int | None) -> bool:
    """Return whether a rank had done its part when its peers failed; it may also end with 0 since it was asked to."""
    if (known := rank.evidence) is None:  # as in incidents of earlier releases
        return rank.exit_code == 0 and not rank.is_culprit
    has_waited = rank.error is not None and rank.error.is_consequence  # it has left the loop since a peer had failed
    return known.has_left and not rank.is_culprit and not has_waited and (seen_ns is None or known.ended_ns < seen_ns)


def last_sign_ns(
    own: NodeGeneration,
    ranks: Mapping[int, RankLife],
    cut_ns: int | None,
    incident: Incident | None,
    until_ns: int,
    waited: Mapping[int, Wait],
) -> int | None:
    """Return the last sign of progress of a node's ranks: by what was seen of each rank then, or by its figures.

    Where figures are missing, ranks may have gone on after the last of them, and after their first signs of life.
    """
    own_signs = (
        waited[number].since_ns if number in waited else life.last_sign_ns(until_ns) for number, life in ranks.items()
    )
    signs = [sign for sign in own_signs if sign is not None]
    if incident is not None:
        others = [rank for rank in incident.ranks if rank.rank not in waited]
        ages = [rank.open_seconds for rank in others if rank.open_seconds is not None]
        seen = [incident.seen_ns - int(age * NS_PER_SECOND) for age in ages]
        signs += [sign for sign in seen if own.started_ns <= sign <= until_ns]
    if cut_ns is not None:
        signs = [sign for sign in signs if sign > cut_ns]
    elif not signs and ranks:
        signs = [sign for sign in own.first_sign_ns.values() if sign <= until_ns]
    return max(signs, default=None)


def waits(ranks: Mapping[int, RankLife], incident: Incident | None, until_ns: int) -> dict[int, Wait]:
    """Return in what ranks waited for a peer that had failed, where their exceptions say that they did.

    To leave a section by such an exception is no progress: the rank has waited in it. When it was opened is known where
    figures tell how long it was open, or a line of figures was written meanwhile.
    """
    found: dict[int, Wait] = {}
    for report in incident.ranks if incident is not None else ():
        life, error = ranks.get(report.rank), report.error
        # The time of the setup belongs to a row of its own, however it ends.
        if life is None or error is None or not error.is_consequence or error.section in (None, SETUP):
            continue
        # Where steps go on beside a save, others may have been closed since it was opened.
        if error.section == CHECKPOINTING and life.beside_ns:
            continue
        if (opened_ns := life.left_opened_ns(error.section, error.at_ns)) is not None:
            found[report.rank] = Wait(error.section, opened_ns, error.at_ns)
            continue
        sign_ns = life.last_sign_ns(until_ns)
        opened_ns = life.last_opened_ns(error.section, sign_ns) if sign_ns is not None else None
        if sign_ns is not None and opened_ns is not None and opened_ns <= error.at_ns <= sign_ns:
            found[report.rank] = Wait(error.section, opened_ns, sign_ns)
    return found
