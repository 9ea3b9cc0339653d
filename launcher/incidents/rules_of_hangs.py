"""Rules of attribution that go by where ranks stand: their processes, stacks, sections and iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from launcher.incidents.attributed import (
    THE_STORE,
    Attribution,
    Group,
    gets_on,
    has_subgroups,
    hedged,
    ranks_of,
    times_phrase,
)
from launcher.incidents.rules_of_collectives import has_arrived
from launcher.processes.evidence import Evidence
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "cannot_run",
    "hangs_in_kernel",
    "has_died",
    "is_ahead",
    "is_behind",
    "is_busy_alone",
    "is_overdue_alone",
    "is_stopped",
    "not_begun",
    "outside_collectives",
    "stands_apart",
    "stopped_or",
    "waits_elsewhere",
]

_LEAST_LEAD_NS = NS_PER_SECOND
"""By how much ranks may be apart without one of them being held up."""


def cannot_run(group: Group) -> Attribution | None:
    """Attribute a hang to processes that are stopped."""
    stopped = [e for e in group if e.state in ("T", "t") and e.exit_code is None]
    if not stopped:
        return None
    stuck = [e for e in group if e.is_condemned and e.waits is False and e not in stopped]
    if stuck and not any(e.is_condemned for e in stopped):
        return Attribution(
            (), "one rank is stopped, another is stuck outside any collective: it cannot be told which came first"
        )
    by = "stopped by a tracer (a debugger)" if all(e.state == "t" for e in stopped) else "stopped (SIGSTOP)"
    doubt = "another rank is stuck outside any collective" if stuck else _who_has_left(group, stopped)
    if doubt:
        return Attribution(ranks_of(stopped), f"likely: the process is {by}; not certain, since {doubt}")
    return Attribution(ranks_of(stopped), f"the process is {by}")


def is_stopped(e: Evidence) -> bool:
    """Return whether a rank lives and is stopped by a signal, for longer than any tracer that takes its stack."""
    return e.state == "T" and e.exit_code is None


def has_died(e: Evidence) -> bool:
    """Return whether a rank was ended by a signal, which no exception causes; its own watchdog may send one."""
    return e.fatal_signal is not None or e.asking_signal is not None


def stopped_or(why: str) -> str:
    """Return why ranks that are stopped are named beside one that died of a signal."""
    return (
        f"likely: one rank is stopped (SIGSTOP), another: {why}; not certain, since it cannot be told which was first"
    )


def hangs_in_kernel(group: Group) -> Attribution | None:
    """Attribute a hang to ranks in uninterruptible sleep, where a stack tells nothing and no other rank is stuck.

    No wait for another rank looks like that, but all of them may wait for the same file system.
    """
    hanging = [e for e in group if e.hangs_in_kernel and e.exit_code is None and not e.waits and not e.is_victim]
    hanging = [e for e in hanging if not gets_on(e, group) and (e.waits is None or _who_has_left(group, [e]))]
    others = [e for e in group if e not in hanging]
    if not hanging or not others:
        return None
    if not all(e.waits or e.is_victim or e.has_left or gets_on(e, group) for e in others):
        return None
    doubt = _who_has_left(group, hanging) or "whatever it needs may be held up for others, too"
    return Attribution(
        ranks_of(hanging),
        "likely: it is in uninterruptible sleep (state D), as in a driver or a file system that does not answer; not "
        f"certain, since {doubt}",
    )


def _who_has_left(group: Group, suspects: Group) -> str:
    """Return that another rank is gone, which others may wait for; nothing where none is."""
    left = [e for e in group if e.has_left and not e.is_victim and not e.is_condemned and e not in suspects]
    if not left:
        return ""
    return f"{'another rank has' if len(left) == 1 else 'other ranks have'} ended or shut monitoring down"


def not_begun(group: Group) -> Attribution | None:
    """Attribute a hang to ranks that have not initialised monitoring, when others have."""
    late = [e for e in group if e.is_condemned and not e.has_begun]
    if not late or not any(e.has_begun for e in group):
        return None
    return Attribution(ranks_of(late), "has not come as far as init_workload_monitoring(), others have")


def outside_collectives(group: Group, ended: Collection[int] = ()) -> Attribution | None:
    """Attribute a hang to ranks that stand outside any collective.

    Args:
        group: Of the evidence.
        ended: Ranks that count as waiting, since they had to end for want of another.
    """
    everywhere = [e for e in group if e.waits is False]
    outside = [e for e in everywhere if not gets_on(e, group) or _may_be_missed(group, everywhere)]
    outside = [e for e in outside if not has_arrived(e, group)]
    if not outside:
        return None
    if any(e.is_condemned and e.waits is None for e in group) and not any(e.is_condemned for e in outside):
        return None  # one that has passed its limit, and may stand anywhere, is no less suspect
    if waiting := [e for e in group if e.waits]:
        named = [e for e in outside if e.is_condemned] or outside
        surest = [e for e in named if not e.may_wait] or named
        why = "its stack stands outside any collective, the others "
        living = [e for e in waiting if e.local_rank not in ended]
        if len(living) < len(waiting):
            return hedged(surest, f"{why}{'wait or ' if living else ''}have failed or ended")
        why += "wait"
        if not any(e.waits_for_store for e in waiting):
            return hedged(surest, f"{why} in one")
        where = "for" if all(e.waits_for_store for e in waiting) else "in one or for"
        return Attribution(
            ranks_of(surest), f"likely: {why} {where} {THE_STORE}; not certain, since that may be unreachable"
        )
    condemned = [e for e in group if e.is_condemned]
    if outside == condemned and len(condemned) == 1 and len(group) > 1:
        return hedged(outside, "the only rank that is overdue, and its stack stands outside any collective")
    stuck = [e for e in outside if e.is_condemned and not e.may_wait]
    if len(stuck) == 1 and len(group) > 1:
        return Attribution(ranks_of(stuck), "its stack stands outside any collective, where it waits for nobody")
    return None


def _may_be_missed(group: Group, outside: Group) -> bool:
    """Return whether all others wait where everybody has to come, so that a rank that gets on may not have come."""
    waiting = [e for e in group if e not in outside]
    return all(e.waits and e.waits_for_all for e in waiting) and not has_subgroups(group)


def waits_elsewhere(group: Group) -> Attribution | None:
    """Attribute a hang to the few that wait elsewhere than most, when all wait.

    A wait whose place is not known, since its stack was not read as far as that, is neither of those.
    """
    if len(group) < 3 or not all(e.waits and not e.waits_for_store for e in group):
        return None
    if not (places := Counter(e.waits_at for e in group if e.waits_at)):
        return None
    place, count = places.most_common(1)[0]
    elsewhere = [e for e in group if e.waits_at not in ("", place)]
    if not elsewhere or 2 * count <= len(group):
        return None
    return Attribution(
        ranks_of(elsewhere),
        f"likely: waits elsewhere than the others, who wait at {place}; not certain, since they may have skipped what "
        "it waits for",
    )


def is_behind(group: Group) -> Attribution | None:
    """Attribute a hang to the ranks of the lowest iteration."""
    known = [e for e in group if e.iteration >= 0]
    iterations = {e.iteration for e in known}
    if len(iterations) < 2:
        return None
    behind = [e for e in known if e.iteration == min(iterations)]
    # A rank that is ahead may have skipped what they wait for. Where a stack is known and leaves open whether its rank
    # waits, that is possible, too.
    if any(e.waits or (e.waits is None and e.stands_at) for e in behind):
        return None
    return hedged(behind, f"behind the others, at iteration {min(iterations)} of {max(iterations)}")


def stands_apart(group: Group) -> Attribution | None:
    """Name the one rank whose stack differs when all others are at the same line but not visibly waiting.

    The others may wait in a way that no stack shows (a loop until a file exists, a thread). They may also be stuck by
    themselves, all in the same call, while the one rank waits for them in such a way.
    """
    places = Counter(e.stands_at for e in group)
    (place, count), *_ = places.most_common(1)
    if len(group) < 3 or "" in places or count != len(group) - 1:
        return None
    (apart,) = (e for e in group if e.stands_at != place)
    # One that runs, or hangs in the kernel, is not held up by another rank.
    if apart.waits is not False or any(e.state != "S" for e in group if e is not apart):
        return None
    return Attribution(
        (apart.local_rank,),
        f"likely: it stands elsewhere than the others, who all stand at {place}; not certain, since they may be stuck "
        "there by themselves",
    )


def is_ahead(group: Group) -> Attribution | None:
    """Attribute a hang to a rank that has left a section in which the others wait.

    Surer than counts of iterations: a rank that was given one batch more stands in a section that nobody has left.
    """
    if any(not e.waits or e.has_gpu for e in group):
        return None
    for section in sorted({name for e in group for name in e.open_sections}):
        counts = [dict(e.closed).get(section, -1) for e in group]
        fewest = min(counts)
        ahead = [e for e, count in zip(group, counts, strict=True) if count == fewest + 1]
        behind = [e for e, count in zip(group, counts, strict=True) if count == fewest]
        if len(ahead) != 1 or fewest < 0 or len(behind) != len(group) - 1:
            continue
        # One that does not sleep, but runs or hangs in the kernel, may have been let go long ago.
        if all(e.waits_for_all and e.state == "S" and section in e.open_sections for e in behind):
            others, waits = ("the other", "waits") if len(behind) == 1 else ("the others", "wait")
            return Attribution(
                ranks_of(ahead),
                f"likely: it has closed section '{section}' {times_phrase(fewest + 1)}, "
                f"{others} {times_phrase(fewest)} and still {waits} in a collective inside it, which this rank seems "
                f"to have skipped; not certain, since {others} may have called one too many, or a connection failed",
            )
    return None


def is_overdue_alone(group: Group) -> Attribution | None:
    """Name the few ranks that went silent long before the majority; a rank blocked by another stops shortly after it.

    A single rank that went on for longer than the rest may itself be the culprit, late for what the others wait in. The
    same holds for one of several that are a little late, since limits are far longer than the usual duration.
    """
    condemned = [e for e in group if e.is_condemned]
    others = [e for e in group if not e.is_condemned]
    if len(others) <= len(condemned) or any(e.waits or not e.last_sign_ns for e in condemned):
        return None
    latest = max(e.last_sign_ns for e in condemned)
    silent_ns = max(e.last_sign_ns for e in group) - latest
    least_ns = max(_LEAST_LEAD_NS, *(e.limit_ns // 2 for e in condemned))
    if all(e.last_sign_ns - latest > silent_ns // 2 for e in others) and silent_ns > least_ns:
        seconds = silent_ns / NS_PER_SECOND
        return Attribution(ranks_of(condemned), f"silent while the others went on for {seconds:.1f} s")
    return None


def is_busy_alone(group: Group) -> Attribution | None:
    """Name the only rank that uses the CPU while all others sleep."""
    busy = [e for e in group if e.is_busy]
    if len(busy) != 1 or any(e.is_busy is None for e in group) or busy[0].waits or has_arrived(busy[0], group):
        return None
    if len(group) > 1 and busy[0].is_condemned:
        return hedged(busy, "the only rank that uses the processor, the others sleep")
    return None
