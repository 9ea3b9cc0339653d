"""What is not over in a run that goes on: a failure of which it is not known yet what it has cost."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.reports.formats import rank_list
from launcher.reports.story import JobGeneration, Story

__all__ = ["goes_on", "is_cost_growing", "is_loss_open", "of_what_is_under_way"]


def is_loss_open(story: Story, generation: JobGeneration) -> bool:
    """Return whether a generation has failed in a run that goes on: what it lost is open until the next has begun."""
    return generation.has_failed and _is_running(story, generation) and not generation.is_stopped_on_purpose


def goes_on(story: Story, generation: JobGeneration) -> bool:
    """Return whether the ranks of a generation are running, as far as is known."""
    has_stopped = any(member.has_stopped for member in generation.members)
    return generation.is_last and _is_running(story, generation) and not has_stopped


def _is_running(story: Story, generation: JobGeneration) -> bool:
    return any(story.launches[member.launch].is_running for member in generation.members)


def is_cost_growing(story: Story, index: int) -> bool:
    """Return whether a failure goes on to cost: no step has begun since, and the run goes on.

    Args:
        story: What was read.
        index: Of the generation that has failed.
    """
    if not is_loss_open(story, story.generations[index]):
        return False
    later = [each for each in story.generations[index + 1 :] if each.run == story.generations[index].run]
    return not later or (len(later) == 1 and not later[0].has_failed and not _has_begun(story, later[0]))


def _has_begun(story: Story, generation: JobGeneration) -> bool:
    """Return whether ranks have begun to work: with a step, or, where none tells of steps, with their first sign."""
    if any(member.own.finished_ns is not None for member in generation.members):
        return True
    lives = [life for member in generation.members for life in member.lives.values()]
    if story.has_steps:
        return any(life.first_step_ns is not None for life in lives)
    return any(life.first_sign_ns is not None for life in lives)


def of_what_is_under_way(story: Story) -> Iterator[str]:
    """Yield what follows from that."""
    if growing := [each.number for index, each in enumerate(story.generations) if is_cost_growing(story, index)]:
        yield (
            f"generation(s) {rank_list(growing)} failed, and no step has begun since: the failure goes on to cost. "
            "Until its ranks have ended, and the next ones tell from which state they go on, what it kept, lost and "
            "did last is about right only"
        )
