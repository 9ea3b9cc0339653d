"""Ranks that wait for one another: all but one are outside, under a learned limit, one is in a long section."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from benchmarks.simulate_monitor.ranks import LIMIT_FACTOR, Phase, Rank, between

__all__ = ["LONGEST_LEARNED_NS", "let_wait"]

LONGEST_LEARNED_NS = 8_000_000_000
"""Waits under a longer learned limit are not simulated: the work grows with their length."""
_SECTION_PER_GAP = 3


def let_wait(chance: random.Random, ranks: Sequence[Rank], hung: Rank | None, longest_gap_ns: int, now_ns: int) -> None:
    """Let all but one wait for that one, which takes longer in its section than their learned limit allows.

    Section limits are configured, and those of the time between sections learned. Where somebody hangs, it is the one
    that is waited for, or one of those that wait; then the one in the section either waits for it there for ever, or
    goes on from section to section.

    Args:
        chance: For what is drawn.
        ranks: Of the node.
        hung: The one that is to hang.
        longest_gap_ns: The longest true time between two sections, without what is waited.
        now_ns: From when on.
    """
    slow = ranks[between(chance, len(ranks))]
    gap_limit_ns = int(LIMIT_FACTOR * longest_gap_ns)
    longest_ns = _SECTION_PER_GAP * gap_limit_ns
    start_ns = now_ns - between(chance, longest_gap_ns)
    by_ns = start_ns + int(LIMIT_FACTOR * longest_ns)
    goes_on = hung is not None and hung is not slow and chance.random() < 0.5
    end_ns = slow.spans.after(start_ns, int(longest_ns * chance.uniform(0.4, 1.0)))
    if hung is not None and not goes_on:
        end_ns = sys.maxsize
    slow.phases = [Phase(start_ns, end_ns, by_ns, True)]
    for rank in ranks:
        rank.has_learned_gaps = True
        if rank is slow:
            continue
        since_ns = now_ns - between(chance, longest_gap_ns)
        left_ns = sys.maxsize if hung is not None else rank.spans.after(end_ns, between(chance, longest_gap_ns))
        rank.phases = [Phase(since_ns, left_ns, since_ns + gap_limit_ns, False)]
    if hung is not None:
        hung.found_by_ns = by_ns if not goes_on else max(end_ns, hung.phases[0].deadline_ns) + gap_limit_ns
