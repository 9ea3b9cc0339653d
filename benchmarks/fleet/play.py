"""Plays jobs: shows the windows of each to every rule, and has the judge count."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.jobs import Job, Spec
from benchmarks.fleet.judging import Tally, judge
from benchmarks.fleet.ours import Ours
from benchmarks.fleet.rules import RULES

__all__ = ["OURS", "STOPPING", "play"]

Mask = npt.NDArray[np.bool_]

OURS = "ours"
"""The ranks that a report calls SLOW."""
STOPPING = "ours, stop"
"""The ranks for which ``stop_if_detected`` would end the job; nearly the same."""


def play(spec: Spec, seeds: Iterable[int]) -> dict[str, Tally]:
    """Play the jobs of one scenario; return what each rule did in all of them.

    A rank of which a window is missing keeps what was last said of it, whichever rule said it.

    Args:
        spec: The scenario.
        seeds: One job each.
    """
    tallies = {name: Tally() for name in (OURS, STOPPING, *RULES)}
    for seed in seeds:
        job = Job(spec, seed)
        named: dict[str, list[Mask]] = {name: [] for name in tallies}
        stated: list[dict[int, float]] = []
        rules = {name: make() for name, make in RULES.items()}
        ours: Ours | None = None
        for window in job.windows():
            if ours is None:
                ours = Ours(spec.ranks, window.kinds)
            said = {OURS: ours.see(window), **{name: rule.see(window) for name, rule in rules.items()}}
            said[STOPPING] = ours.stopping
            stated.append(ours.confidence)
            for name, mask in said.items():
                last = named[name][-1] if named[name] else np.zeros(spec.ranks, dtype=bool)
                named[name].append(np.where(window.present, mask, last))
        for name, tally in tallies.items():
            tally.add(judge(named[name], job.fault, stated if name == OURS else ()))
    return tallies
