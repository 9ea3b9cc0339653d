"""What failures have cost, from where the time of the ranks went."""

from __future__ import annotations

import statistics

from launcher.reports.ledger import Accounts
from launcher.reports.lost_work import Kept

__all__ = ["cost_of_failure", "is_cost_about"]

_OF_A_FAILURE = ("lost_work", "detection", "stop", "rendezvous", "waiting")


def is_cost_about(accounts: Accounts, index: int, successor: int | None) -> bool:
    """Return whether a stretch that the cost of a failure is summed from is about right only.

    Args:
        accounts: Of all places.
        index: Of the generation.
        successor: Index of the next one; None where there is none.
    """
    return any(
        entry.is_about
        and (
            (entry.generation == index and entry.key in _OF_A_FAILURE)
            or (successor is not None and entry.generation == successor and entry.key == "start")
        )
        for entry in accounts.entries
    )


def cost_of_failure(accounts: Accounts, index: int, successor: int | None) -> float | None:
    """Return what the end of a generation cost each of its ranks, in seconds: until the next one took its first step.

    What the next one's ranks in other places spent before that is none of it: their nodes may have waited since long
    before the failure.

    Args:
        accounts: Of all places.
        index: Of the generation.
        successor: Index of the next one; None where there is none.

    Returns:
        None where it is not known what work was lost, or nothing of what came after it.
    """
    loss = accounts.losses[index]
    if loss.is_cut or loss.kept in (Kept.PART, Kept.UNKNOWN):
        return None
    own = accounts.by_generation.get(index, {})
    after = accounts.by_generation.get(successor, {}) if successor is not None else {}
    starts = {place: spent.get("start", 0.0) for place, spent in after.items()}
    common = [seconds for place, seconds in starts.items() if place in own]
    # Where all places are others, the one whose launcher began last has waited least.
    start = statistics.fmean(common) if common else min(starts.values(), default=0.0)
    spent = [sum(each.get(key, 0.0) for key in _OF_A_FAILURE) for each in own.values()]
    if not any(spent) and any(each.get("unknown") for each in own.values()):
        return None  # what it cost is part of the time of which nothing tells
    return (statistics.fmean(spent) if spent else 0.0) + start
