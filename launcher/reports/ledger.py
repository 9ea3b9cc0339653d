"""Where the time went: the wall time of each rank's device, cut into the categories of a ledger.

A launch is cut at instants of its own clock: when its process was started, when each generation was started, took its
first step, gave its last sign of progress, was seen to have failed and had stopped, and when the launch ended. What
lies between two of these belongs to one category, so all together are the wall time, however little is known.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.reports.doubts import is_doubtful
from launcher.reports.lost_work import Kept, Loss, are_counts_about, kept_steps, lost_from_ns, total_repeated
from launcher.reports.model import CATEGORIES, Ledger, LedgerEntry, RankLedger
from launcher.reports.places import Entry, Place, absent, between_launches, unaccounted, without_ranks
from launcher.reports.rank_lives import RankLife
from launcher.reports.story import JobGeneration, Member, Story, end_ns
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Accounts", "account", "last_sign_ns", "ledger"]


class Accounts(NamedTuple):
    """All stretches of all places."""

    entries: tuple[Entry, ...]
    losses: tuple[Loss, ...]

    by_generation: Mapping[int, Mapping[Place, Mapping[str, float]]]
    """Seconds by category that are due to a generation, for each place in which it had a rank."""


def account(story: Story, found: Sequence[Loss]) -> Accounts:
    """Cut the time of every place into stretches."""
    entries: list[Entry] = []
    tells = _Tells(story.has_steps, story.has_signs)
    for number in range(len(story.launches)):
        own = list(_of_launch(story, number, found, tells))
        entries += own
        entries += without_ranks(story, number, own)
    entries += between_launches(story)
    entries += absent(story)
    entries += unaccounted(story, entries)
    return Accounts(tuple(entries), tuple(found), _by_generation(entries))


def _by_generation(entries: Sequence[Entry]) -> dict[int, dict[Place, dict[str, float]]]:
    spent: dict[int, dict[Place, dict[str, float]]] = collections.defaultdict(dict)
    for entry in entries:
        if entry.generation is not None:
            own = spent[entry.generation].setdefault(entry.place, collections.defaultdict(float))
            own[entry.key] += entry.ns / NS_PER_SECOND
    return spent


class _Tells(NamedTuple):
    """What ranks of a story have told of."""

    steps: bool
    anything: bool


def _of_launch(story: Story, number: int, found: Sequence[Loss], tells: _Tells) -> Iterator[Entry]:
    launch = story.launches[number]
    parts = [
        (index, generation, member)
        for index, generation in enumerate(story.generations)
        for member in generation.members
        if member.launch == number
    ]
    parts.sort(key=lambda part: part[2].own.started_ns)
    if not parts:
        return
    last_ns = max(end_ns(launch), parts[-1][2].stopped_ns)
    node, missing = story.node_of[number], story.missing
    before: tuple[int, Member] | None = None
    for index, generation, member in parts:
        is_last = index == parts[-1][0]
        by_local = {life.local_rank: life for life in member.lives.values() if life.local_rank is not None}
        for local_rank in member.own.local_ranks:
            place, life = (node, local_rank), by_local.get(local_rank)
            rank = life.rank if life is not None else _only_rank(generation, local_rank)
            is_known = (generation.run, generation.number - 1) not in missing
            cuts = list(_before(launch.began_ns, before, index, member, is_known=is_known))
            if place in story.places_aside and not (life is not None and life.was_in_setup_alone):
                cuts += _aside(member, life, local_rank)
            else:
                cuts += _during(member, life, found[index], local_rank, tells)
            until_ns, is_last_known = last_ns if is_last else None, not launch.lacks_last
            cuts += _after(member, life, until_ns, is_running=launch.is_running, is_last_known=is_last_known)
            for due_to, key, ns, is_about in cuts:
                # Where lines or the incident are missing or to come, what is nothing here may be something.
                is_unsure = member.is_open_ended or member.lacks_incident or found[index].is_about
                # When the state was reached that was kept is interpolated: maybe before the last sign after all.
                is_unsure |= key == "lost_work" and found[index].kept is Kept.ITERATION
                if ns > 0 or (is_about and is_unsure):
                    yield Entry(place, rank, index if due_to is None else due_to, key, ns, is_about)
        before = index, member


def _only_rank(generation: JobGeneration, local_rank: int) -> int | None:
    """Return the rank of a local one where nothing was written down of that; known on a single node alone."""
    return local_rank if len(generation.members) == 1 else None


Cut = tuple[int | None, str, int, bool]
"""The generation that is the reason, if it is another one; category, nanoseconds, whether it is interpolated."""


def _before(
    began_ns: int, before: tuple[int, Member] | None, index: int, member: Member, *, is_known: bool
) -> Iterator[Cut]:
    """Cut the time before a generation; ``is_known`` unless nothing is left of the one before it."""
    started_ns = member.own.started_ns
    if before is None:
        is_start = is_known and (member.own.is_start_known or bool(member.lives))
        yield index, "start" if is_start else "unknown", started_ns - began_ns, False
        return
    former, other = before
    waited_ns = 0
    if (pause := other.own.backed_off_ns) is not None:
        waited_ns = max(0, min(pause[1], started_ns) - max(pause[0], other.stopped_ns))
    yield former, "waiting", waited_ns, False
    key = "rendezvous" if is_known and member.own.is_start_known else "unknown"
    yield former, key, started_ns - other.stopped_ns - waited_ns, False


def _during(member: Member, life: RankLife | None, loss: Loss, local_rank: int, tells: _Tells) -> Iterator[Cut]:
    """Cut the time from the start of the processes to the last sign of progress."""
    started_ns, sign_ns = member.own.started_ns, _own_last_ns(member, life)
    first_ns = _first_ns(member, life, local_rank, steps=tells.steps)
    if first_ns is None and (not tells.anything or (life is not None and life.iteration is not None)):
        # Nothing tells when it began to work; or it has begun a step, and the line that says when is missing.
        yield None, "unknown", sign_ns - started_ns, False
        yield from _untold(member)
        return
    # Of what came after the last figures it is known only that there was something.
    told_ns = sign_ns if member.cut_ns is None else min(max(member.cut_ns, started_ns), sign_ns)
    first_ns = told_ns if first_ns is None else min(max(first_ns, started_ns), told_ns)
    is_first_about = member.is_open_ended and (life is None or life.first_step_ns is None)
    yield None, "start", first_ns - started_ns, is_first_about or not member.own.is_start_known
    if life is None or loss.kept is Kept.PART:
        yield None, "unknown", sign_ns - first_ns, False
        yield from _untold(member)
        return
    lost_ns, is_about = lost_from_ns(loss, member, life)
    # Before the last line that is left, too, ranks may have stood still: the line after it would tell of that.
    is_about |= loss.is_about or loss.kept is Kept.UNKNOWN or member.is_open_ended or member.lacks_incident
    is_about |= member.is_ending
    lost_ns = told_ns if lost_ns is None else min(max(lost_ns, first_ns), told_ns)
    before_ns, _ = life.checkpointing_ns(first_ns)  # its first lines may be missing
    least_ns, most_ns = life.checkpointing_ns(lost_ns, member.waited.get(life.rank))
    saving_ns = max(0, min((least_ns + most_ns) // 2 - before_ns, lost_ns - first_ns))
    is_split_about = is_about or most_ns > least_ns or life.is_saving_unknown
    yield None, "checkpointing", saving_ns, is_split_about
    yield None, "productive", lost_ns - first_ns - saving_ns, is_split_about
    yield None, "lost_work", told_ns - lost_ns, is_about or loss.kept is Kept.ITERATION
    yield None, "unknown", sign_ns - told_ns, False


def _aside(member: Member, life: RankLife | None, local_rank: int) -> Iterator[Cut]:
    """Cut the same time of a rank that takes no training steps, where others do: what it does is not known."""
    started_ns, sign_ns = member.own.started_ns, _own_last_ns(member, life)
    first_ns = _first_ns(member, life, local_rank, steps=False)
    if first_ns is not None:
        first_ns = min(max(first_ns, started_ns), sign_ns)
        yield None, "start", first_ns - started_ns, member.is_open_ended or not member.own.is_start_known
    yield None, "unknown", sign_ns - (started_ns if first_ns is None else first_ns), False
    yield from _untold(member)


def _own_last_ns(member: Member, life: RankLife | None) -> int:
    """Return the last sign of progress of the ranks of a node, or that of one which had ended well before."""
    sign_ns = last_sign_ns(member)
    left_ns = _left_ns(member, life)
    return sign_ns if left_ns is None else min(max(left_ns, member.own.started_ns), sign_ns)


def _untold(member: Member) -> Iterator[Cut]:
    """Mark what the unknown time of a rank may have been: lines that would tell are missing."""
    for key in ("checkpointing", "productive", "lost_work") if member.is_open_ended else ():
        yield None, key, 0, True


def last_sign_ns(member: Member) -> int:
    """Return until when a generation's ranks have worked on one node, as far as that is known."""
    end = member.seen_ns if member.seen_ns is not None else member.stopped_ns
    if member.last_sign_ns is None:
        return end
    return min(max(member.last_sign_ns, member.own.started_ns), end)


def _first_ns(member: Member, life: RankLife | None, local_rank: int, *, steps: bool) -> int | None:
    """Return when a rank began to work; None where it never did."""
    if life is not None and life.first_step_ns is not None:
        return life.first_step_ns
    if life is not None and (steps or life.was_in_setup_alone):  # the others take steps, or it came to nothing else
        return None
    sign = life.first_sign_ns if life is not None else None
    return sign if sign is not None else member.own.first_sign_ns.get(local_rank)


def _left_ns(member: Member, life: RankLife | None) -> int | None:
    """Return when a rank had ended well whose peers went on until they failed; None for any other."""
    if life is None or life.rank not in member.left or member.seen_ns is None:
        return None
    return life.last_sign_ns(member.seen_ns)


def _may_have_left(member: Member, life: RankLife | None) -> bool:
    """Return whether a rank may have ended well while its peers went on: the incident, which would tell, is missing.

    A rank that was named had not, nor had one that was in a step.
    """
    if life is None or not member.lacks_incident or life.rank in member.own.culprits:
        return False
    return life.done is None or life.iteration == life.done


def _after(
    member: Member, life: RankLife | None, last_ns: int | None, *, is_running: bool, is_last_known: bool
) -> Iterator[Cut]:
    """Cut the time from the last sign of progress to the end of the ranks, or of the launch after its last ones."""
    sign_ns, is_about = last_sign_ns(member), member.is_open_ended or member.is_ending
    goes_on = is_running and last_ns is not None and member.own.finished_ns is None
    if _left_ns(member, life) is not None:
        yield None, "idle", member.stopped_ns - _own_last_ns(member, life), is_about
    elif member.seen_ns is not None:
        is_sign_about = is_about or member.is_seen_about or member.lacks_incident
        yield None, "detection", member.seen_ns - sign_ns, is_sign_about
        key = "unknown" if member.is_end_missing else "stop"
        may_have_left = _may_have_left(member, life)
        # Where the line of a hang is missing, the next one tells only when a rank of it had been ended.
        is_seen_about = member.is_seen_about or (member.lacks_incident and not member.own.incident_folder)
        yield None, key, member.stopped_ns - member.seen_ns, is_seen_about or may_have_left or member.is_ending
        yield None, "idle", 0, may_have_left
    elif member.is_end_missing:
        finished_ns = min(max(member.own.finished_ns or sign_ns, sign_ns), member.stopped_ns)
        yield None, "idle", finished_ns - sign_ns, is_about
        yield None, "unknown", member.stopped_ns - finished_ns, False
    else:
        key = "stop" if last_ns is None and member.own.finished_ns is None else "unknown" if goes_on else "idle"
        yield None, key, member.stopped_ns - sign_ns, is_about
        yield None, "detection", 0, is_about and member.own.finished_ns is None  # it may have waited for another
    if last_ns is not None:
        yield None, "idle" if is_last_known else "unknown", last_ns - member.stopped_ns, False


# ---- sums -----------------------------------------------------------------------------------------------


def ledger(story: Story, accounts: Accounts) -> Ledger:
    """Add up."""
    by_place: dict[Place, dict[str, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
    ranks: dict[Place, int] = {}
    about = {category.key for category in CATEGORIES} if is_doubtful(story) else set()
    for entry in accounts.entries:
        by_place[entry.place][entry.key] += entry.ns
        if entry.rank is not None:
            ranks[entry.place] = entry.rank
        if entry.is_about:
            about.add(entry.key)
    places = sorted(by_place, key=lambda place: (ranks.get(place, 1 << 40), place))
    total_ns = sum(sum(seconds.values()) for seconds in by_place.values())
    entries = []
    for category in CATEGORIES:
        of_all_ns = sum(by_place[place][category.key] for place in places)
        if of_all_ns:
            seconds = of_all_ns / NS_PER_SECOND
            share = of_all_ns / total_ns
            entries.append(LedgerEntry(category, seconds / len(places), share, seconds, category.key in about))
    steps = kept_steps(story, accounts.losses)
    return Ledger(
        wall_seconds=total_ns / NS_PER_SECOND / max(len(places), 1),
        rank_seconds=total_ns / NS_PER_SECOND,
        entries=tuple(entries),
        by_rank=tuple(_row(place, ranks[place], by_place[place]) for place in places if place in ranks),
        repeated=total_repeated(story, accounts.losses),
        steps=steps,
        is_count_about=are_counts_about(story, accounts.losses),
        step_seconds=None
        if any(not launch.is_begun_known for launch in story.launches)  # the time of the first steps is not here
        else _step_seconds(by_place.values(), steps),
    )


def _row(place: Place, rank: int, spent_ns: Mapping[str, int]) -> RankLedger:
    seconds = tuple(spent_ns.get(category.key, 0) / NS_PER_SECOND for category in CATEGORIES)
    return RankLedger(place[0], place[1], rank, sum(spent_ns.values()) / NS_PER_SECOND, seconds)


def _step_seconds(places: Iterable[Mapping[str, int]], steps: int | None) -> float | None:
    """Return how long a step has taken, by the ranks that were there all the time; None where none was."""
    productive_ns = [spent_ns.get("productive", 0) for spent_ns in places if not spent_ns.get("absent")]
    if not steps or not any(productive_ns):
        return None
    return statistics.median(productive_ns) / NS_PER_SECOND / steps
