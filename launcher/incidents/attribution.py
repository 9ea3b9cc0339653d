"""Who is to blame, and why. Pure.

In a synchronous job one rank's trouble stops all: peers of a dead rank lose their connections, peers of a stuck one
wait in a collective, and which deadline or exit comes first is a coin. The rules below go from the surest evidence
to the weakest; the first that speaks decides. Where none does, nobody is named, and the reason says so.
"""

from __future__ import annotations

from launcher.incidents.attributed import (
    AFTER_ASKING,
    THE_STORE,
    Attribution,
    Group,
    asleep_apart,
    at_places,
    gets_on,
    kinds_of,
    ranks_of,
    times_phrase,
)
from launcher.incidents.rules_of_collectives import has_not_arrived
from launcher.incidents.rules_of_exceptions import doubted
from launcher.incidents.rules_of_exits import died_or_raised
from launcher.incidents.rules_of_hangs import (
    cannot_run,
    hangs_in_kernel,
    has_died,
    is_ahead,
    is_behind,
    is_busy_alone,
    is_overdue_alone,
    is_stopped,
    not_begun,
    outside_collectives,
    stands_apart,
    stopped_or,
    waits_elsewhere,
)
from launcher.incidents.rules_of_leaving import left_early
from launcher.processes.evidence import Evidence

__all__ = ["attribute"]


def attribute(group: Group, *, has_others: bool = False) -> Attribution:
    """Tell the culprits from the victims.

    Args:
        group: Every local rank; at least one is condemned, or has failed.
        has_others: The job has ranks on other nodes, of which nothing is known here.

    Returns:
        A rank is named only for something that a victim does not do: it raised an exception of its own, died of a
        signal, exited by itself, left early, cannot run, or stands elsewhere than those who wait.
    """
    upset = [e for e in group if e.may_be_upset]
    if len({_how_it_failed(e) for e in upset}) > 1:  # whichever of them came first is a coin
        calm = [e._replace(error=None, exit_code=None, ended_ns=0, has_left=False) if e in upset else e for e in group]
        known = attribute(calm, has_others=has_others)
        return known._replace(why=f"{known.why}; {len(upset)} ranks failed or ended{AFTER_ASKING}")
    if (blame := _waiting_in_a_handler(group, has_others) or _hung_beside_a_handler(group)) is not None:
        return blame
    if (blame := died_or_raised(group, has_others)) is not None:
        return _stopped_beside(blame, group) or blame
    for rule in (cannot_run, hangs_in_kernel, left_early):
        if (blame := rule(group)) is not None:
            return blame
    if any(e.is_condemned for e in group):
        for rule in (
            not_begun,
            outside_collectives,
            has_not_arrived,
            waits_elsewhere,
            is_behind,
            is_overdue_alone,
            is_busy_alone,
        ):
            if (blame := rule(group)) is not None:
                return blame
        for rule in () if has_others else (stands_apart, is_ahead):
            if (blame := rule(group)) is not None:
                return blame
    return _lost_a_thread(group) or _by_elimination(group, has_others)


# ---- from the surest sign to the weakest ----------------------------------------------------------------


def _how_it_failed(e: Evidence) -> tuple[str, str] | int | None:
    return e.error[:2] if e.error is not None and not e.has_lost_a_thread else e.exit_code


def _waiting_in_a_handler(group: Group, has_others: bool) -> Attribution | None:
    """Attribute a hang to who stands outside any collective, where one that has raised waits for it in a handler.

    Where all others wait, too, it waits in another collective than they do, and is the cause.
    """
    waiting = [e for e in group if e.has_raised and e.waits and e.exit_code is None and not e.has_left_program]
    calm = [e._replace(error=None) if e in waiting else e for e in group]
    if not waiting or not any(e.is_condemned for e in group) or outside_collectives(calm) is None:
        return None
    who = "another rank has" if len(waiting) == 1 else "others have"
    why = f"{who} raised {kinds_of(waiting)}, and may wait while handling that"
    return doubted(attribute(calm, has_others=has_others), why)


def _hung_beside_a_handler(group: Group) -> Attribution | None:
    """Name who hangs beside one that has destroyed its process group in a handler, which may go on after that."""
    raised = [e for e in group if e.has_raised and e.left_group_ns and e.exit_code is None and not e.has_left_program]
    hung = [e for e in group if e.is_condemned and not e.waits and not e.has_raised and e.exit_code is None]
    if not raised or not hung or any(e.fatal_signal is not None for e in group):
        return None
    who = "another" if len(raised) == 1 else "others"
    return Attribution(
        tuple(sorted(ranks_of([*raised, *hung]))),
        f"likely: one rank hangs, and {who} raised {kinds_of(raised)} and destroyed its process group; "
        "not certain, since either may be the cause",
    )


def _stopped_beside(blame: Attribution, group: Group) -> Attribution | None:
    """Name ranks that are stopped where others raised or exited, which may have given them up.

    Beside one that has died of a signal both are named: it may have been killed by its own watchdog.
    """
    named = [e for e in group if e.local_rank in blame.local_ranks]
    stopped = [e for e in group if is_stopped(e)]
    if not stopped:
        return None
    why = blame.why.removeprefix("likely: ").partition(";")[0]
    if any(has_died(e) for e in named):
        return Attribution(ranks_of([*named, *stopped]), stopped_or(why))
    who = "another rank" if len(named) == 1 else "others"
    return Attribution(
        ranks_of(stopped), f"likely: the process is stopped (SIGSTOP); not certain, since {who} failed: {why}"
    )


def _lost_a_thread(group: Group) -> Attribution | None:
    """Name a rank whose thread ended with an exception, for want of better evidence.

    A rank waits in vain for a thread that read batches or copied weights. One that reported figures is not missed.
    """
    lost = [e for e in group if e.has_lost_a_thread and not e.is_victim and not e.waits]
    if not lost or len(lost) == len(group) or any(e.exit_code and not e.is_victim for e in group):
        return None
    kinds = " and ".join(sorted({e.error.type for e in lost if e.error is not None}))
    return Attribution(
        ranks_of(lost),
        f"likely: one of its threads ended with {kinds}, and it may wait for that thread in vain; not certain, since "
        "the training may go on without it",
    )


def _by_elimination(group: Group, has_others: bool) -> Attribution:
    failed = [e for e in group if e.exit_code not in (None, 0)]
    if len(group) == 1 and not has_others:
        return Attribution(ranks_of(group), "the only rank")
    if failed and all(e.is_victim for e in failed):
        apart = asleep_apart(group) if not has_others else []
        if apart and all(e.is_victim or e in apart for e in group):
            return Attribution(
                ranks_of(apart),
                f"likely: sleeps in {apart[0].kernel_wait}, in no collective, and all others lost a peer or waited for "
                "one in vain; not certain, since it may have done so too, and have caught that",
            )
        where = "on another node" if has_others else "not known"
        return Attribution((), f"who failed lost a peer or waited for one in vain: the cause is {where}")
    if failed:
        return Attribution((), "ended first, but left no exception on record: it may be the cause, or have lost a peer")
    if at_store := [e for e in group if e.waits and e.waits_for_store]:
        return Attribution((), _for_the_store(len(at_store), len(group), has_others))
    if all(e.waits for e in group) and any(e.waits_by_source for e in group):
        return Attribution(
            (), "every rank seems to wait for others, going by the source of the lines in which they stand"
        )
    if all(e.waits for e in group):
        if has_others:
            return Attribution(
                (), "every rank here waits for others: the culprit skipped a collective or is on another node"
            )
        return Attribution(
            (),
            "every rank waits for the others: one may have skipped a collective or a message, or called another, or "
            f"one too many{_level(group)}",
        )
    late = [e for e in group if e.is_condemned]
    if late and all(e.waits_for_one for e in late):
        others = "; the others get on" if all(gets_on(e, group) for e in group if not e.is_condemned) else ""
        return Attribution(
            (),
            f"who is overdue waits {at_places(late)}for a message to or from one other rank, and it cannot be told "
            f"which{others}",
        )
    if all(e.waits for e in late):
        return Attribution((), "who is overdue waits for others; it cannot be told which of those held it up")
    return Attribution((), "it cannot be told from iterations, processes or stacks which rank is the cause")


def _for_the_store(count: int, size: int, has_others: bool) -> str:
    cause = "it may be unreachable, or a rank has not come to it in time"
    if count == size:
        return f"every rank{' here' if has_others else ''} waits for {THE_STORE}: {cause}"
    who = f"{count} of {size} ranks{' here' if has_others else ''} {'waits' if count == 1 else 'wait'}"
    return f"{who} for {THE_STORE}: {cause}; it cannot be told which rank holds the others up"


def _level(group: Group) -> str:
    """Return what the sections say where they do not tell the ranks apart."""
    shared = set.intersection(*(set(e.open_sections) for e in group))
    for section in sorted(shared):
        counts = {dict(e.closed).get(section, -1) for e in group}
        if len(counts) == 1 and -1 not in counts:
            closed = times_phrase(counts.pop())
            return f"; nobody is ahead, all are in section '{section}' and have closed it {closed} before"
    return ""
