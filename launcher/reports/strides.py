"""Iterations that count on by more than one for each step, as where samples are counted: they are no steps.

Where steps are sections, how often these were closed tells how many steps there were. With heartbeats nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.reports.story import Story
from resilience_core.protocol.figures import STEP

__all__ = ["counts_in_strides", "of_strides"]

_CLEARLY = 1.25
"""So many times the steps that were closed are more iterations than lines that lag behind each other explain."""


def counts_in_strides(story: Story) -> bool:
    """Return whether iterations go on clearly further than steps were done."""
    iterations, steps = _counted(story)
    return steps > 0 and iterations > max(_CLEARLY * steps, steps + 1)


def of_strides(story: Story) -> Iterator[str]:
    """Yield what follows from that."""
    if counts_in_strides(story):
        iterations, steps = _counted(story)
        yield (
            f"iterations count on by more than one for each step ({iterations:,} of them in {steps:,} steps of all "
            "ranks), as where samples are counted: how many steps were kept and done again is not known, nor how long "
            "one took; number the steps one by one to have them counted"
        )


def _counted(story: Story) -> tuple[int, int]:
    """Return the iterations from the first to the last that is done, and the steps, summed over all ranks.

    The first few steps of a generation are no sections (``num_warmup_iterations``).
    """
    iterations = steps = 0
    for _, member in story.members:
        for life in member.lives.values():
            closed = life.times(STEP)
            if closed and life.first_iteration is not None and life.done is not None:
                iterations += life.done - life.first_iteration + 1
                steps += closed + max(story.launches[member.launch].warmup_steps, 0)
    return iterations, steps
