"""Runs of a training that are missing from its story: nothing of them can be read, or their folders were not named.

A run goes on from what one before it has done. Where it begins beyond all that is known to have been done, or from a
state that none has noted as a save, there was another one in between.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.incidents.incident import Incident
from launcher.records.event_files import EVENTS, event_files
from launcher.records.figures_log import FIGURES
from launcher.reports.completeness import runs_of_unknown_ranks
from launcher.reports.found_generations import epoch_of
from launcher.reports.story import JobGeneration, Story
from launcher.reports.strides import counts_in_strides
from launcher.reports.unread import Unread
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["MissingRun", "chain_of", "doubts", "unread_nodes", "with_times_of_incidents", "with_unread_nodes"]

_NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.ASCII | re.DOTALL)
_MOST_BESIDE = 5
_SAME_SECONDS = 0.5
"""By so much the wall clock may have been set while two lines of one launcher were written."""


class MissingRun(NamedTuple):
    """A run of which nothing is in the report."""

    before: int
    """The index of the first known run that began after it; their number where none is known to have."""
    folder: str | None
    """Its log folder, where that was named."""
    why: str
    """Whence it is known, as a sentence."""
    after: int
    """The index of the first known run before which it may have been; ``before`` where nothing is left open."""

    @property
    def may_be_before(self) -> range:
        """The indices of the known runs before each of which it may have been; their number stands for the end."""
        return range(self.after, self.before + 1)


def unread_nodes(story: Story, unread: Sequence[Unread]) -> list[str]:
    """Return what is to be said of the nodes of known runs of which nothing can be read."""
    return [
        f"{each.folder}: nothing of one of the nodes can be read ({each.why})"
        for each in unread
        if _is_of_a_known_run(story, each)
    ]


def chain_of(story: Story, unread: Sequence[Unread], folders: Sequence[str]) -> tuple[MissingRun, ...]:
    """Return the runs that are missing from a story, in the order of time as far as that is known.

    Args:
        story: What was read.
        unread: The launchers of which nothing could be read.
        folders: All log folders that were named.
    """
    missing = [_missing(story, each) for each in unread if not _is_of_a_known_run(story, each)]
    told = {run for each in missing for run in each.may_be_before}
    missing += [gap for gap in _gaps(story, folders) if gap.before not in told]
    return tuple(sorted(missing, key=lambda each: each.before))


def _is_of_a_known_run(story: Story, unread: Unread) -> bool:
    """Return whether a launcher is one of the nodes of a known run, by the name of the run.

    Log folders of one name are those of one run on several nodes. In the folder of a run that is known, it is one of
    the nodes that the run is known to lack; or of another run of that name.
    """
    name = os.path.basename(unread.folder)
    if any(launch.folder == unread.folder for launch in story.launches):
        return any(
            generation.is_partial and os.path.basename(story.launches[member.launch].folder) == name
            for generation, member in story.members
        )
    return bool(_runs_named(story, name))


def _runs_named(story: Story, name: str) -> frozenset[int]:
    return frozenset(
        story.run_of[n] for n, launch in enumerate(story.launches) if os.path.basename(launch.folder) == name
    )


def with_unread_nodes(story: Story, unread: Sequence[Unread]) -> Story:
    """Return a story that knows in which runs more may have been, since nothing of one of their nodes can be read."""
    names = (os.path.basename(each.folder) for each in unread if _is_of_a_known_run(story, each))
    return story._replace(runs_about=story.runs_about.union(*(_runs_named(story, name) for name in names)))


def with_times_of_incidents(unread: Sequence[Unread], incidents: Mapping[str, Mapping[str, Incident]]) -> list[Unread]:
    """Return launchers of which nothing can be read with a time at which they ran, where an incident tells one.

    Args:
        unread: The launchers.
        incidents: What is left of those of their log folders, by the folder.
    """
    timed = []
    for each in unread:
        own = incidents.get(each.folder, {}).values() if each.is_alone else ()
        told = [epoch for incident in own if (epoch := epoch_of(incident.wall_time))]
        told += [each.told_epoch] if each.told_epoch is not None else []
        timed.append(each._replace(told_epoch=min(told, default=None)))
    return timed


def _missing(story: Story, unread: Unread) -> MissingRun:
    runs = range(len(story.runs))
    # What nothing tells of may have been the last run.
    before = next((run for run in runs if _is_before(story, unread, run)), len(runs))
    after = max((run + 1 for run in runs[:before] if _is_before(story, unread, run) is False), default=0)
    end = "" if before < len(runs) else ", nor how the training ended"
    end += ": nothing tells whether it was the last run" if end and after < before else ""
    what = "the run" if unread.is_alone else "one of the launchers"
    why = f"{unread.folder}: nothing of {what} in it can be read ({unread.why}), so it is not known what it did{end}"
    return MissingRun(before, unread.folder, why, after)


def _is_before(story: Story, unread: Unread, run: int) -> bool | None:
    """Return whether a launcher ran before a run: by the numbers in their names, or by times in what is left of it.

    None where nothing tells.
    """
    first = story.launches[story.runs[run][0]]
    own, other = _numbered(unread.folder), _numbered(first.folder)
    if own is not None and other is not None and own[0] == other[0] and own != other:
        return own[1] < other[1]
    if unread.began_before is not None and unread.began_before <= first.at(first.began_ns) + _SAME_SECONDS:
        return True
    return None if unread.told_epoch is None else unread.told_epoch < first.at(first.began_ns)


def _numbered(folder: str) -> tuple[str, int] | None:
    """Return the name of a folder in two parts, of which the second is a number."""
    match = _NUMBERED.fullmatch(os.path.basename(folder))
    return (match[1], int(match[2])) if match is not None else None


# ---- runs that were not named ----------------------------------------------------------------------------


def _gaps(story: Story, folders: Sequence[str]) -> Iterator[MissingRun]:
    for run in range(1, len(story.runs)):
        beside = _beside(story, run, folders)
        why = _why_one_is_missing(story, run)
        which = f" (beside them, and not named: {beside})" if beside else ""
        if why is not None:
            yield MissingRun(
                run, None, f"{why}: a run between them is missing; name its log folder, too{which}", after=run
            )
        elif beside:
            one, other = _name(story, run - 1), _name(story, run)
            why = f"between {one} and {other} there are runs that were not named, and may be of this training: {beside}"
            yield MissingRun(run, None, why, after=run)


def _why_one_is_missing(story: Story, run: int) -> str | None:
    """Return what tells that there was another run before one; None where nothing does."""
    earlier = [each for each in story.generations if each.run < run]
    if _is_vague(earlier) or _unknown(story, run):  # whoever has lost lines may have come to any iteration
        return None
    may_have_saved = any(each.is_silent for each in earlier)
    return _lacking(story, run, max(map(_reached, earlier), default=0), is_any_save_told=may_have_saved)


def doubts(story: Story, missing: Sequence[MissingRun]) -> Iterator[str]:
    """Yield what is to be said of runs that began beyond what is known to have been done, though none need be missing.

    One before them may have gone further than its lines tell, as its launcher was killed or its last lines were lost.

    Args:
        story: What was read.
        missing: The runs that are known to be missing.
    """
    told = {run for each in missing for run in each.may_be_before}
    for run in range(1, len(story.runs)):
        earlier = [each for each in story.generations if each.run < run]
        open_ones = [each for each in earlier if each.is_silent or _is_vague([each])]
        open_runs = [each.run for each in open_ones] + _unknown(story, run)
        if run in told or not open_runs:
            continue
        why = _lacking(story, run, max(map(_known, earlier), default=0), is_any_save_told=False)
        if why is not None:
            which = _name(story, max(open_runs))
            yield (
                f"{why}; {which} may have gone further than its lines tell: what lies between was done there, or in a "
                "run that is missing; if there was one, name its log folder, too"
            )


def _lacking(story: Story, run: int, reached: int, *, is_any_save_told: bool) -> str | None:
    """Return from what a run went on that none before it has done; None where nothing is lacking.

    Args:
        story: What was read.
        run: Its index.
        reached: To which iteration those before it have come.
        is_any_save_told: Whether they may have noted any save.
    """
    earlier = [each for each in story.generations if each.run < run]
    begun = (each for each in story.generations if each.run == run)
    first = next((each for each in begun if each.first_iteration is not None or each.resumed_from is not None), None)
    # Whoever counts anew may have come to any iteration.
    if first is None or not earlier or any(launch.went_back for launch in story.launches):
        return None
    name, resumed = _name(story, run), first.resumed_from
    begin = first.first_iteration if first.first_iteration is not None else resumed
    if begin is not None and begin > reached + 1 and not counts_in_strides(story):
        return f"{name} began with iteration {begin}, and those before it are known to have come to {reached}"
    saves = {save for each in earlier for save in _saves(each)}
    is_told = is_any_save_told or resumed is None or any(resumed + shift in saves for shift in (-1, 0, 1))
    if saves and not is_told:
        return f"{name} went on from the state of iteration {resumed}, which none before it has noted as a save"
    return None


def _unknown(story: Story, run: int) -> list[int]:
    """Return the runs before one of which it is not known whether ranks were started."""
    return [each for each in runs_of_unknown_ranks(story) if each < run]


def _is_vague(generations: Iterable[JobGeneration]) -> bool:
    """Return whether generations may have done more than is known of them."""
    return any(
        each.is_cut or each.is_partial or not all(member.lives for member in each.members) for each in generations
    )


def _saves(generation: JobGeneration) -> Iterator[int]:
    return (save for member in generation.members for life in member.lives.values() for save in life.saves)


def _reached(generation: JobGeneration) -> int:
    """Return to which iteration a generation may have come; after its last line, too, where its launcher was killed."""
    lives = [life for member in generation.members if member.is_silent for life in member.lives.values()]
    unseen = 0.0
    for life in lives:
        if life.first_step_ns is not None and life.first_iteration is not None and life.iteration is not None:
            age_ns = max(life.last_ns - life.first_step_ns, 1)
            # A line is due each second, or in a thousandth of the age of a run.
            late_ns = max(3 * NS_PER_SECOND, 3 * age_ns // 1000)
            unseen = max(unseen, (life.iteration - life.first_iteration + 1) * late_ns / age_ns)
    return _known(generation) + math.ceil(unseen)


def _known(generation: JobGeneration) -> int:
    """Return to which iteration a generation is known to have come."""
    return max([generation.iteration or 0, generation.done or 0, *_saves(generation)])


def _name(story: Story, run: int) -> str:
    return os.path.basename(story.launches[story.runs[run][0]].folder)


def _beside(story: Story, run: int, folders: Sequence[str]) -> str:
    """Return the names of log folders between those of a run and the one before, by number, that are not named."""
    one, other = (story.launches[story.runs[each][0]].folder for each in (run - 1, run))
    first, last = _numbered(one), _numbered(other)
    if first is None or last is None or first[0] != last[0] or os.path.dirname(one) != os.path.dirname(other):
        return ""
    parent, found = os.path.dirname(one), list[tuple[int, str]]()
    try:
        names = os.listdir(parent)
    except OSError:
        return ""
    for name in names:
        own, path = _numbered(name), os.path.join(parent, name)
        if own is None or own[0] != first[0] or not first[1] < own[1] < last[1] or path in folders:
            continue
        if _is_run(path):
            found.append((own[1], name))
    shown = [name for _, name in sorted(found)]
    return ", ".join(shown[:_MOST_BESIDE]) + (f" and {left} more" if (left := len(shown) - _MOST_BESIDE) > 0 else "")


def _is_run(path: str) -> bool:
    try:
        return not os.path.islink(path) and any(event_files(path, stem) for stem in (EVENTS, FIGURES))
    except OSError:
        return False
