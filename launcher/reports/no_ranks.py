"""What is said of a launcher of whose ranks nothing is left: that it has started none, or that this is not known."""

from __future__ import annotations

from launcher.reports.completeness import are_ranks_unknown
from launcher.reports.formats import duration
from launcher.reports.story import Story, end_ns
from launcher.reports.unread import why_without_figures
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["of_no_rank"]


def of_no_rank(story: Story, number: int) -> str:
    """Return what is known of the ranks of a launch without generations, to be said after its name."""
    launch = story.launches[number]
    took = duration((end_ns(launch) - launch.began_ns) / NS_PER_SECOND)
    takes_part = story.takes_part(number)
    if not are_ranks_unknown(story, number):
        nor = "" if takes_part else ", nor of how long the run took"
        return f"has started no rank: its {took} are no part of the ledger{nor}"
    return (
        "is not known to have started a rank, and may have: nothing is known of its ranks, since lines that would tell "
        f"of them may be missing ({why_without_figures(launch.file)}). Its {took} until its last line are in no row of "
        f"the ledger but 'unknown'{'' if takes_part else ', and no part of how long the run took'}"
    )
