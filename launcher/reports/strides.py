"""Iterations that count on by more than one for each step, as where samples are counted: they are no steps.

Ranks that call ``note_step_done()`` count their steps, so that evaluation steps and saves within steps cannot hide the
strides. In figures of earlier releases, how often sections ``step`` were closed tells how many steps there were at
most; with heartbeats nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.reports.rank_lives import RankLife
from launcher.reports.story import Story
from resilience_core.protocol.figures import STEP
from resilience_core.protocol.figures_read import count_on_in_strides

__all__ = ["counts_in_strides", "of_strides", "steps_beyond"]


def counts_in_strides(story: Story) -> bool:
    """Return whether iterations go on clearly further than steps were done."""
    iterations, steps, lag = _counted(story)
    return iterations > steps + lag and count_on_in_strides(iterations, steps)


def of_strides(story: Story) -> Iterator[str]:
    """Yield what follows from that."""
    if counts_in_strides(story):
        iterations, steps, _ = _counted(story)
        yield (
            f"iterations count on by more than one for each step ({iterations:,} of them in {steps:,} steps of all "
            "ranks), as where samples are counted or most batches are skipped: how many steps were kept and done again "
            "is not known, nor how long one took; number the steps one by one, and note those as done that are "
            "skipped, to have them counted"
        )

    if (beyond := steps_beyond(story)) is not None:
        yield (
            f"rank {beyond.rank} has ended {beyond.passed:,} steps in {_iterations_of(beyond):,} iterations: where "
            "several steps belong to one, as with accumulated gradients, iterations are what is counted as steps here; "
            "where each has its own, note_iteration() was called after note_step_done(), and the counts are one too "
            "low: note the iteration when a step begins"
        )


def steps_beyond(story: Story) -> RankLife | None:
    """Return a rank that has ended more steps than it has noted iterations, though these count on; None if none has."""
    lives = (
        life
        for _, member in story.members
        if not story.launches[member.launch].went_back
        for life in member.lives.values()
    )
    return next((life for life in lives if life.passed is not None and life.passed > _iterations_of(life) > 0), None)


def _iterations_of(life: RankLife) -> int:
    return 0 if life.first_iteration is None or life.done is None else life.done - life.first_iteration + 1


def _counted(story: Story) -> tuple[int, int, int]:
    """Return the iterations from the first to the last that is done, the steps, and by how much these may lag behind.

    The first two are sums over all ranks. Of an earlier release, the last step may have been closed and not be done
    yet, and the first few steps of a generation are no sections (``num_warmup_iterations``).
    """
    iterations = steps = lag = 0
    for _, member in story.members:
        for life in member.lives.values():
            if life.first_iteration is None or life.done is None:
                continue
            if life.passed is not None:
                steps += life.passed
            elif closed := life.times(STEP):
                steps += closed + max(story.launches[member.launch].warmup_steps, 0)
                lag = 1
            else:
                continue
            iterations += life.done - life.first_iteration + 1
    return iterations, steps, lag
