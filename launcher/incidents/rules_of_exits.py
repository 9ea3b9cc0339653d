"""Rules of attribution that go by how ranks end: a signal, an exception, an exit, leaving early."""

from __future__ import annotations

import math
import signal

from launcher.incidents.attributed import (
    AFTER_ASKING,
    AT_ONCE_NS,
    NOTICED_LATE_NS,
    PERHAPS_FOR_ANOTHER,
    TAKEN_DOWN_NS,
    Attribution,
    Group,
    asleep_apart,
    kinds_of,
    ranks_of,
    when_raised,
)
from launcher.incidents.rules_of_exceptions import (
    BEFORE,
    beside,
    beside_gone,
    doubted,
    gone_out_before,
    lived_on,
    may_go_on,
    of_exceptions,
)
from launcher.incidents.rules_of_leaving import left_before_all
from launcher.processes.evidence import Evidence

__all__ = ["NO_RECORD", "died_or_raised", "ended_without_record"]

_OF_A_SHELL = 128
"""A shell ends with this plus the number of the signal that has ended its command."""
NO_RECORD = "ended by itself, without an exception on record"


def died_or_raised(group: Group, has_others: bool) -> Attribution | None:
    """Attribute a failure to the first rank that died, raised an error or exited.

    What a rank does when it has lost its peer may be anything, a crash in what it takes down included. So whoever has
    ended before is named rather than one that has crashed; only a kill from outside is nobody's consequence.
    """
    # One that lost its peer before, and dies in what it does then, is a victim all the same.
    deaths = sorted((e for e in group if e.fatal_signal is not None and not e.is_victim), key=_when_noticed)
    raised = sorted((e for e in group if e.has_raised), key=when_raised)
    exited = _exited_by_themselves(group, deaths)
    if deaths:
        kills = [e for e in deaths if e.was_killed and _is_close(deaths[0], e)]
        first = kills[0] if kills else deaths[0]
        if raised and when_raised(raised[0]) < _latest(first, group) - NOTICED_LATE_NS:
            return _of_exceptions_before(first, deaths, raised, group, has_others)
        if exited and _is_before(exited[0], first):
            return _of_exits([*exited, *deaths], group, has_others)
        found = _of_deaths(first, deaths)
        if raised and _may_have_raised_before(raised[0], _latest(first, group), has_crashed=first.has_crashed):
            return _beside_death(found, raised)
        if first.has_crashed and (gone := gone_out_before(first, _latest(first, group), group)):
            return beside_gone(gone, _how_it_died(found), [e for e in deaths if e.local_rank in found.local_ranks])
        if any(_is_before(e, first) for e in ended_without_record(group)):
            return doubted(found, "another rank had ended before, without an exception on record")
        return found
    if raised:
        if gone := _gone_in_the_midst(group, raised):
            why = f"ended with 0 in section '{gone[0].open_sections[-1]}'"
            return doubted(Attribution(ranks_of(gone), why), f"another rank raised {kinds_of(raised)}")
        if not has_others and (gone_first := left_before_all(group) or _given_up(group, raised)) is not None:
            return gone_first
        found = of_exceptions(raised, group, has_others)
        gone = sorted([*exited, *ended_without_record(group)], key=_when_noticed)
        if gone and gone[0] in exited and lived_on(raised, gone[0].ended_ns):
            return beside(gone[:1], NO_RECORD, raised)
        if not gone or not _may_be_before(gone[0], raised):
            return found
        if gone[0] not in exited:
            return _either(gone[0], found, raised)
        if gone[0].ended_ns >= when_raised(raised[0]) + AT_ONCE_NS:
            return doubted(found, "another rank has ended without an exception on record")
        return doubted(_of_exits(exited, group, has_others), f"another rank raised {kinds_of(raised)}")
    return _of_exits(exited, group, has_others) if exited else None


def _of_exceptions_before(first: Evidence, deaths: Group, raised: Group, group: Group, has_others: bool) -> Attribution:
    """Attribute a failure where others had raised before the first death.

    One that still lived then, and has not left its program by that, may have been handling what it can go on after: a
    save that it tries again after a pause, say.
    """
    if not may_go_on(raised, _latest(first, group)):
        return of_exceptions(raised, group, has_others)
    found = _of_deaths(first, deaths)
    return beside([e for e in deaths if e.local_rank in found.local_ranks], _how_it_died(found), raised)


def _may_have_raised_before(raised: Evidence, died_ns: int, *, has_crashed: bool) -> bool:
    """Return whether a rank may have raised before another one died, whose end was noticed at most somewhat later.

    What crashes may do so for want of one that had destroyed its process group.
    """
    was_gone = has_crashed and 0 < raised.left_group_ns < died_ns
    return when_raised(raised) < died_ns - (0 if was_gone else AT_ONCE_NS)


def _how_it_died(found: Attribution) -> str:
    """Return how those that have died did, as the predicate of a sentence."""
    how = found.why.removeprefix("likely: ").partition(";")[0]
    return how if how.startswith("is ") else f"was {how}"


def _beside_death(found: Attribution, raised: Group) -> Attribution:
    """Name those that have died beside the first that has raised."""
    how = _how_it_died(found)
    ranks = tuple(sorted({*found.local_ranks, raised[0].local_rank}))
    why = f"one rank {how}, and another raised {kinds_of(raised[:1])}"
    return Attribution(ranks, f"likely: {why}; not certain, since it cannot be told which came first")


def ended_without_record(group: Group) -> list[Evidence]:
    """Return who has ended with 1 and left no exception on record though nothing was to keep it, the first one first.

    An exception may have ended it, or a ``sys.exit(1)``: for what it did itself, or for a peer that it had lost.
    """
    ended = (e for e in group if e.exit_code == 1 and e.error is None and not e.is_monitored)
    return sorted(ended, key=_when_noticed)


def _either(exited: Evidence, found: Attribution, raised: Group) -> Attribution:
    """Name one that has ended with 1 beside those that raised: either may be how a script gives up a lost peer."""
    ranks = tuple(sorted({exited.local_rank, *found.local_ranks}))
    kinds = kinds_of([e for e in raised if e.local_rank in found.local_ranks])
    how = f"one rank {NO_RECORD}, and {'another' if len(ranks) == 2 else 'others'} raised {kinds}"
    return Attribution(ranks, f"likely: {how}; not certain, since it cannot be told which came first")


def _may_be_before(exited: Evidence, raised: Group) -> bool:
    """Return whether a rank may have exited before others raised: it ended before, or while all of those still lived.

    What they raise may be how a script gives up that has lost its peer: its connections are closed some time before it
    has ended. Nobody loses one that has raised before that one takes down its process group, so it ends first.
    """
    if not exited.ended_ns or any(0 < e.ended_ns < exited.ended_ns for e in raised):
        return False
    return exited.ended_ns - TAKEN_DOWN_NS < when_raised(raised[0])


def _gone_in_the_midst(group: Group, raised: Group) -> list[Evidence]:
    """Return who has ended with 0 in a section, which nobody does properly, when others raised.

    The peers of one that has raised may do so a moment later.
    """
    end_ns = when_raised(raised[0]) + AT_ONCE_NS
    return [e for e in group if e.exit_code == 0 and 0 < e.ended_ns < end_ns and e.open_sections and e.is_monitored]


def _given_up(group: Group, raised: Group) -> Attribution | None:
    """Attribute a failure to ranks that sleep in no collective where several, all others, have raised alike.

    A time limit for it may have passed, and the exception that said so have been caught.
    """
    apart = asleep_apart(group)
    others = [e for e in group if e not in apart and not e.is_victim]
    kinds = {e.error.type for e in raised if e.error is not None}
    if not apart or len(raised) < 2 or len(kinds) > 1 or any(e not in raised for e in others):
        return None
    why = f"sleeps in {apart[0].kernel_wait}, in no collective; not certain, since {len(raised)} ranks raised"
    return Attribution(ranks_of(apart), f"likely: {why} {kinds_of(raised)}, and may have done so by themselves")


def _exited_by_themselves(group: Group, deaths: Group) -> list[Evidence]:
    # Where GPUs are used, an abort is what the watchdog of a collective library does to a victim.
    may_abort = not any(e.has_gpu for e in group)
    aborts = (-signal.SIGABRT, _OF_A_SHELL + signal.SIGABRT)
    exited = (e for e in group if e not in deaths and _exited_by_itself(e) and (may_abort or e.exit_code not in aborts))
    return sorted(exited, key=_when_noticed)


def _is_close(first: Evidence, second: Evidence) -> bool:
    """Return whether the second may have ended before the first, whose end was noticed earlier or not yet."""
    return not first.ended_ns or second.ended_ns - first.ended_ns < NOTICED_LATE_NS


def _is_before(exited: Evidence, death: Evidence) -> bool:
    """Return whether a rank had exited before another one died."""
    if not exited.ended_ns:
        return False
    if death.was_killed:  # for nothing that another rank does
        return exited.ended_ns < death.ended_ns - NOTICED_LATE_NS
    return not death.ended_ns or exited.ended_ns < death.ended_ns


def _latest(e: Evidence, group: Group) -> int:
    """Return when a death was noticed; of one that is still ending, when the last end was."""
    return e.ended_ns if e.ended_ns or e.is_dumping_core else max(each.ended_ns for each in group)


def _of_deaths(first: Evidence, deaths: Group) -> Attribution:
    assert first.fatal_signal is not None
    name = first.fatal_signal.name
    why = f"killed by {name}" if first.ended_ns else f"is ending after {name}"
    if first.was_killed:
        # What kills from outside (out of memory, an administrator) may strike several at once.
        return Attribution(ranks_of([e for e in deaths if e.was_killed]), why)
    why = f"is dumping core after {name}" if first.is_dumping_core else why
    if any(e is not first and _is_close(first, e) for e in deaths):
        why = f"likely: {why}; not certain, since another rank has died with it"
    return Attribution((first.local_rank,), why)


def _of_exits(ended: Group, group: Group, has_others: bool) -> Attribution:
    """Attribute a failure to the first of those that have ended, which has exited."""
    first, others = ended[0], "first" if len(ended) > 1 else "by itself"
    is_close = len(ended) > 1 and 0 < ended[1].ended_ns < first.ended_ns + NOTICED_LATE_NS
    if (number := first.asking_signal) is not None:
        before = BEFORE if len(ended) > 1 else ""
        return Attribution((first.local_rank,), f"ended by {number.name}, which ft_launcher had not sent{before}")
    if first.exit_code == -signal.SIGABRT:  # the exit code does not tell who has sent it
        others = f"{'first, ' if len(ended) > 1 else ''}by SIGABRT, its own (abort()) or another process's"
    why = AFTER_ASKING if first.may_be_upset else ""
    likely = ""
    if is_close:
        likely, why = "likely: ", f"{why}; not certain, since another one was seen to end less than 0.1 s later"
    elif first.exit_code == -signal.SIGABRT and (len(group) > 1 or has_others):  # gloo does so for a wrong message
        likely, why = "likely: ", why + PERHAPS_FOR_ANOTHER
    elif (
        (len(group) > 1 or has_others)
        and first.exit_code is not None
        and first.exit_code > 0
        and _signal_behind(first.exit_code) is None
    ):
        # Many a script ends so when its peer is gone.
        likely, why = "likely: ", why + PERHAPS_FOR_ANOTHER
    elif (behind := _signal_behind(first.exit_code)) is not None and (len(group) > 1 or has_others):
        likely = "likely: "
        why += f"; not certain, since a shell around it ends so where {behind} has ended the training"
    return Attribution((first.local_rank,), f"{likely}ended {others}, without an exception on record{why}")


def _signal_behind(exit_code: int | None) -> str | None:
    """Return the signal that an exit code of a shell stands for, of those that others than the rank may have caused."""
    asks = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT, signal.SIGKILL)
    return next((number.name for number in asks if exit_code == _OF_A_SHELL + number), None)


def _exited_by_itself(e: Evidence) -> bool:
    """Return whether it exited neither with 0 nor by an exception, which would be on record."""
    return e.exit_code not in (None, 0) and e.error is None and (e.exit_code != 1 or e.is_monitored)


def _when_noticed(e: Evidence) -> float:
    """Return when its end was noticed; one that is still ending comes after all whose end was."""
    return e.ended_ns or math.inf
