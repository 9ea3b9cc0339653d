"""Checkpoints that are numbered by something else than the steps that are done, as by epochs or samples.

How many steps a failed run has kept is told by the number of its last save, and how often it saves by those of all, so
such numbers would be taken for steps. The ranks have also written down where they were when they saved, which tells
the two apart: of a save that the steps have waited for, the step before it; of others, what lines of figures tell. A
save in another thread is noted some steps after its state, and lines of figures are a second or more apart, so numbers
have to be far off then. What a restart has gone on from is known by the iteration with which it has begun.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from launcher.reports.launches import Launch
from launcher.reports.rank_lives import RankLife
from resilience_core.protocol.figures_read import count_on_in_strides

__all__ = ["with_other_numbers"]


def with_other_numbers(
    launches: Sequence[Launch], lives: Mapping[tuple[int, int], Mapping[int, RankLife]]
) -> list[Launch]:
    """Return launches that know whether their ranks' checkpoints are numbered in another way.

    Where a rank that saves is far behind the others, it may be by its own numbers alone.
    """
    others = set[int]()
    for (number, _), ranks in lives.items():
        telling = [life for life in ranks.values() if life.saves or life.resumed_from is not None]
        if telling and all(map(_has_other_numbers, telling)):
            others.add(number)
    return [
        launch._replace(has_other_numbers=True) if number in others else launch
        for number, launch in enumerate(launches)
    ]


def _has_other_numbers(life: RankLife) -> bool:
    """Return whether a rank's checkpoints are certainly not numbered by its steps.

    That is so if it has gone on more than a step beyond the checkpoint that it has loaded, has saved one with a number
    below the step that it began with, or another one than that of the last step in it or the next, or if its numbers
    have grown by less than half of what its iterations have, or by more than twice that.
    """
    first, resumed = life.first_iteration, life.resumed_from
    if first is None:
        return False
    if resumed is not None and first > resumed + 1:
        return True
    saves = sorted(life.saves.values(), key=lambda save: save.t_ns)
    if any(save.iteration + 1 < first for save in saves):
        return True
    are_strides = count_on_in_strides((life.done or 0) - first + 1, life.passed)
    known = [(save.iteration, save.done) for save in saves if save.done is not None]
    if any(number < done or (number > done + 1 and not are_strides) for number, done in known):
        return True
    where = [(save.iteration, *_between(life, save.t_ns)) for save in saves]
    if not where:
        return False
    (number, least, most), (before, least_before, most_before) = where[-1], where[0]
    grown, gone, gone_at_most = number - before, least - most_before, most - least_before
    return (
        _is_far_below(number, least)
        or _is_far_below(most, number)
        or (grown > 0 and (_is_far_below(grown, gone) or _is_far_below(gone_at_most, grown)))
    )


def _is_far_below(one: int, other: int) -> bool:
    return other > 2 * one + 2


def _between(life: RankLife, t_ns: int) -> tuple[int, int]:
    """Return the lowest and the highest iteration at which a rank may have been at a time."""
    place = bisect.bisect_left(life.samples, t_ns, key=lambda sample: sample.t_ns)
    before = [sample.iteration for sample in life.samples[:place] if sample.iteration is not None]
    after = [sample.iteration for sample in life.samples[place:] if sample.iteration is not None]
    least = before[-1] if before else life.first_iteration
    most = after[0] if after else life.iteration
    return least or 0, most if most is not None else least or 0
