"""Ranks whose verdict was withdrawn: whether that was close is known only once nobody was ended in its stead.

A rank that waits for a peer is let go when the peer is killed, on whatever node, and closes its section, or leaves it
by an exception, right after. That tells nothing about its limit. No clock of another machine tells which came first,
but a generation in which anybody was killed is over a moment later on every node: one that goes on shows that nobody
was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from launcher.monitor.near_miss import NearMiss
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["SparedRanks"]

SETTLED_NS = 10 * NS_PER_SECOND
"""How long after a verdict was withdrawn its generation has to go on. The end of a rank on another node is known here
long before."""


class _Held(NamedTuple):
    generation: int
    miss: NearMiss
    at_ns: int


class SparedRanks:
    """Those of which it is not known yet whether they are near misses.

    Args:
        tell: Tells of one that is, or that is not: the generation, the rank, when it was spared, and which of the two.
    """

    def __init__(self, tell: Callable[[int, NearMiss, int, bool], None]) -> None:
        self._tell = tell
        self._held: list[_Held] = []

    def hold(self, generation: int, miss: NearMiss) -> None:
        """Wait with what is told of a rank until more is known."""
        self._held.append(_Held(generation, miss, time.monotonic_ns()))

    def settle(self, generation: int, *, is_over: bool = False, is_done: bool = False) -> float | None:
        """Tell of those of which it is known by now.

        Args:
            generation: The current one. An earlier one has failed.
            is_over: It is over: no more will be known.
            is_done: It is over since all of its ranks have ended with 0.

        Returns:
            In how many seconds more will be known; None where nothing is left.
        """
        now_ns, held, self._held = time.monotonic_ns(), self._held, []
        for each in held:
            is_current, is_old = each.generation == generation, now_ns >= each.at_ns + SETTLED_NS
            if is_current and not is_over and not is_old:
                self._held.append(each)
            else:
                self._tell(each.generation, each.miss, each.at_ns, is_current and (is_old or is_done))
        left = [each.at_ns + SETTLED_NS - now_ns for each in self._held]
        return min(left) / NS_PER_SECOND if left else None
