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
    """Let all but one wait for that one, which takes longer in its sections than their learned limit allows.

    Section limits are configured, and those of the time between sections learned. The one that is waited for is in one
    long section, or goes through many short ones. Where somebody hangs, it is that one, or one of those that wait; then
    that one waits for it in the end, inside a section or between two, for ever.

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
    limits_ns = {True: int(LIMIT_FACTOR * longest_ns), False: gap_limit_ns}
    goes_on = hung is not slow and chance.random() < 0.5
    start_ns = now_ns - between(chance, longest_gap_ns)
    slow.phases = []
    if goes_on:
        slow.phases = _sections(chance, slow, start_ns, longest_ns, longest_gap_ns, limits_ns)
        start_ns = slow.phases[-1].end_ns
    left_ns = start_ns
    is_section = not goes_on or chance.random() < 0.5
    by_ns = start_ns + limits_ns[is_section]
    end_ns = slow.spans.after(start_ns, int((longest_ns if is_section else longest_gap_ns) * chance.uniform(0.4, 1.0)))
    slow.phases.append(Phase(start_ns, end_ns if hung is None else sys.maxsize, by_ns, is_section))
    for rank in ranks:
        rank.has_learned_gaps = True
        if rank is slow:
            continue
        since_ns = now_ns - between(chance, longest_gap_ns)
        goes_ns = sys.maxsize if hung is not None else rank.spans.after(end_ns, between(chance, longest_gap_ns))
        rank.phases = [Phase(since_ns, goes_ns, since_ns + gap_limit_ns, False)]
    if hung is not None:
        hung.found_by_ns = by_ns if not goes_on else max(by_ns, hung.phases[0].deadline_ns, left_ns + gap_limit_ns)


def _sections(
    chance: random.Random,
    rank: Rank,
    start_ns: int,
    longest_ns: int,
    longest_gap_ns: int,
    limits_ns: dict[bool, int],
) -> list[Phase]:
    """Sections and the time between them, for longer than two learned limits; a section comes last."""
    phases: list[Phase] = []
    by_ns = start_ns + int(limits_ns[False] * chance.uniform(2.2, 5.0))
    share = 10 ** chance.uniform(-1.5, 0.0)
    is_section = True
    while start_ns < by_ns or is_section:
        work_ns = int((longest_ns if is_section else longest_gap_ns) * share * chance.uniform(0.4, 1.0))
        end_ns = rank.spans.after(start_ns, work_ns)
        phases.append(Phase(start_ns, end_ns, start_ns + limits_ns[is_section], is_section))
        start_ns, is_section = end_ns, not is_section
    return phases
