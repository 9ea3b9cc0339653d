"""Plays jobs: shows the windows of each to every rule, and has the judge count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from benchmarks.fleet.jobs import Job, Spec
from benchmarks.fleet.judging import Tally, judge
from benchmarks.fleet.ours import Ours
from benchmarks.fleet.rules import FACTORS, RULES

__all__ = ["OURS", "STOPPING", "Played", "play", "to_hold"]

Mask = npt.NDArray[np.bool_]

OURS = "ours"
"""The ranks that a report calls SLOW."""
STOPPING = "ours, stop"
"""The ranks for which ``stop_if_detected`` would end the job; nearly the same."""


@attrs.frozen
class Played:
    """What was counted in the jobs of one scenario.

    Args:
        tallies: What each rule did, ours first.
        held: The same with each other rule made stricter, for each setting that was asked for.
        named: With which of the factors each other rule named somebody at some time, shape ``(factors,)``.
    """

    tallies: dict[str, Tally]
    held: tuple[dict[str, Tally], ...]
    named: dict[str, Mask]


def play(spec: Spec, seeds: Iterable[int], settings: Sequence[Mapping[str, int]] = ()) -> Played:
    """Play the jobs of one scenario; return what each rule did in all of them.

    A rank of which a window is missing keeps what was last said of it, whichever rule said it.

    Args:
        spec: The scenario.
        seeds: One job each.
        settings: How strict each other rule is in what is returned as held, as places in ``FACTORS``.
    """
    wanted = {name: {0, *(places[name] for places in settings)} for name in RULES}
    played = Played(
        {name: Tally() for name in (OURS, STOPPING, *RULES)},
        tuple({name: Tally() for name in (OURS, *RULES)} for _ in settings),
        {name: np.zeros(len(FACTORS), dtype=bool) for name in RULES},
    )
    for seed in seeds:
        job = Job(spec, seed)
        named: dict[tuple[str, int], list[Mask]] = {}
        stated: list[dict[int, float]] = []
        rules = {name: make() for name, make in RULES.items()}
        ours: Ours | None = None
        for window in job.windows():
            if ours is None:
                ours = Ours(spec.ranks, window.kinds)
            said = {(OURS, 0): ours.see(window), (STOPPING, 0): ours.stopping}
            stated.append(ours.confidence)
            for name, rule in rules.items():
                masks = rule.see(window)
                played.named[name][:] |= (masks & window.present).any(axis=1)
                said |= {(name, place): masks[place] for place in wanted[name]}
            for key, mask in said.items():
                listed = named.setdefault(key, [])
                listed.append(np.where(window.present, mask, listed[-1]) if listed else mask & window.present)
        for name, tally in played.tallies.items():
            tally.add(judge(named[name, 0], job.fault, stated if name == OURS else ()))
        for places, held in zip(settings, played.held, strict=True):
            for name, tally in held.items():
                tally.add(judge(named[name, places.get(name, 0)], job.fault))
    return played


def to_hold(healthy: Iterable[Played]) -> dict[str, int]:
    """Return how strict each other rule must be to name nobody in healthy jobs, as a place in ``FACTORS``.

    Args:
        healthy: What was played of them.

    Returns:
        By rule; the last place, infinity, where nothing less will do.
    """
    places = dict.fromkeys(RULES, 0)
    for played in healthy:
        for name, mask in played.named.items():
            places[name] = max([places[name], *(np.flatnonzero(mask) + 1).tolist()])
    return places
