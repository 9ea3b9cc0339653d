"""Whether anything of a story is missing, so that nothing that is shown of it is exact."""

from __future__ import annotations

from launcher.reports.story import Story

__all__ = ["is_doubtful"]


def is_doubtful(story: Story) -> bool:
    """Return whether lines of a story are missing, or its last ones may be on no disk.

    Which rows such a gap has changed cannot be told for sure: what is left may be taken for something else than it was.
    """
    launches = [launch for number, launch in enumerate(story.launches) if story.takes_part(number)]
    return (
        bool(story.runs_about or story.lacks or story.missing)
        or any(not launch.is_whole or launch.lacks_figures for launch in launches)
        or any(launch.ended_ns is None and not launch.is_running for launch in launches)
        or any(each.is_partial or each.is_silent or each.is_open_ended for each in story.generations)
    )
