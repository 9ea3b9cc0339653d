"""Who is to blame, and why. Pure.

In a synchronous job one rank's trouble stops all: peers of a dead rank lose their connections, peers of a stuck one
wait in a collective, and which deadline or exit comes first is a coin. The rules below go from the surest evidence
to the weakest; the first that speaks decides. Where none does, nobody is named, and the reason says so.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from launcher.processes.evidence import Evidence
from resilience_core.monitoring.error_record import ErrorRecord

__all__ = ["Blame", "assign_blame"]

_NOTICED_LATE_NS = 100_000_000
"""How much later than it happened a death may be noticed, on a busy machine."""
_LEAST_LEAD_NS = 1_000_000_000
"""By how much ranks may be apart without one of them being held up."""

_BEFORE = " before any other failure was seen"
_ASKED = ", after a signal had asked for the stack, which may be why"
_FOR_ANOTHER = "; not certain, since another rank may have caused it"
_STORE = "the store of the process group (MASTER_ADDR:MASTER_PORT or init_method)"
# What torch raises while ranks communicate tells of another rank more often than not: the one that checks raises it.
_OF_COMMUNICATION = re.compile(r"torch/(distributed|nn/parallel)/")
_FRAME = re.compile(r'^  File "([^"]*)", line \d+, in ', re.MULTILINE)
_GIVES_UP = {
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "EOFError",
    "TimeoutError",
    "_queue.Empty",
    "concurrent.futures._base.TimeoutError",  # Python 3.10
    "asyncio.exceptions.TimeoutError",
    "http.client.IncompleteRead",
    "http.client.RemoteDisconnected",
    "multiprocessing.context.TimeoutError",
    "subprocess.TimeoutExpired",
    "urllib.error.URLError",
}
_CAUSE = re.compile(r"^([\w.]+)(?::|$)", re.MULTILINE)

Group = Sequence[Evidence]


class Blame(NamedTuple):
    """The culprits' local ranks, empty when it cannot be told, and why."""

    local_ranks: tuple[int, ...]
    why: str


def assign_blame(group: Group, *, has_others: bool = False) -> Blame:
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
        known = assign_blame(calm, has_others=has_others)
        return known._replace(why=f"{known.why}; {len(upset)} ranks failed or ended{_ASKED}")
    if (blame := _died_or_raised(group, has_others)) is not None:
        return blame
    for rule in (_left_early, _cannot_run):
        if (blame := rule(group)) is not None:
            return blame
    if any(e.is_condemned for e in group):
        for rule in (_not_begun, _outside, _elsewhere, _behind, _alone, _busy):
            if (blame := rule(group)) is not None:
                return blame
        for rule in () if has_others else (_apart, _ahead):
            if (blame := rule(group)) is not None:
                return blame
    return _lost_a_thread(group) or _by_elimination(group, has_others)


# ---- from the surest sign to the weakest ----------------------------------------------------------------


def _died_or_raised(group: Group, has_others: bool) -> Blame | None:
    deaths = sorted((e for e in group if e.fatal_signal is not None), key=_when_noticed)
    raised = sorted((e for e in group if e.has_raised), key=_when_raised)
    if deaths and not (raised and _when_raised(raised[0]) < _when_noticed(deaths[0]) - _NOTICED_LATE_NS):
        first = deaths[0]
        assert first.fatal_signal is not None
        name = first.fatal_signal.name
        if first.is_dumping_core:
            return Blame((first.local_rank,), f"is dumping core after {name}")
        # What kills from outside (out of memory, an administrator) may strike several at once.
        same = [e for e in deaths if e.exit_code == first.exit_code == -9] or [first]
        return Blame(_ranks(same), f"killed by {name}" if first.ended_ns else f"is ending after {name}")
    if raised:
        first = raised[0]
        assert first.error is not None
        same = [e for e in raised if e.error is not None and e.error[:2] == first.error[:2]]
        why = _ASKED if all(e.may_be_upset for e in same) else ""
        peers = [e for e in group if e is not first]
        if len(same) > 1:
            return Blame(
                _ranks(same), f"likely: {len(same)} ranks raised the same {first.error.type}{why}{_FOR_ANOTHER}"
            )
        likely = "likely: " if (peers or has_others) and _may_be_of_another(first.error) else ""
        why += _FOR_ANOTHER if likely else ""
        # A peer may have failed earlier: this rank may have left the group, and raised afterwards.
        is_first = bool(peers) and not any(_failed_by(e, first.error.at_ns) for e in peers)
        before = _BEFORE if is_first and not first.may_be_upset else ""
        later = "" if first.exit_code is not None else ", and has not ended yet"
        return Blame((first.local_rank,), f"{likely}raised {first.error.type}{before}{later}{why}")
    # Where GPUs are used, an abort is what the watchdog of a collective library does to a victim.
    may_abort = not any(e.has_gpu for e in group)
    exited = sorted((e for e in group if _exited_by_itself(e) and (may_abort or e.exit_code != -6)), key=_when_noticed)
    if exited:
        first, others = exited[0], "first" if len(exited) > 1 else "by itself"
        is_close = len(exited) > 1 and exited[1].ended_ns - first.ended_ns < _NOTICED_LATE_NS
        if (number := first.asking_signal) is not None:
            before = _BEFORE if len(exited) > 1 else ""
            return Blame((first.local_rank,), f"ended by {number.name}, which ft_launcher had not sent{before}")
        if first.exit_code == -signal.SIGABRT:  # the exit code does not tell who has sent it
            others = f"{'first, ' if len(exited) > 1 else ''}by SIGABRT, its own (abort()) or another process's"
        why = _ASKED if first.may_be_upset else ""
        likely = ""
        if is_close:
            likely, why = "likely: ", f"{why}; not certain, since another one was seen to end less than 0.1 s later"
        elif first.exit_code == -signal.SIGABRT and (len(group) > 1 or has_others):  # gloo does so for a wrong message
            likely, why = "likely: ", why + _FOR_ANOTHER
        return Blame((first.local_rank,), f"{likely}ended {others}, without an exception on record{why}")
    return None


def _may_be_of_another(error: ErrorRecord) -> bool:
    """Whether a rank also raises it for what another one does: a wait that ended, or a check while they communicate."""
    frames = _FRAME.findall(error.traceback)
    in_communication = bool(frames) and _OF_COMMUNICATION.search(frames[-1]) is not None
    is_end_of_wait = error.type in _GIVES_UP or not _GIVES_UP.isdisjoint(_CAUSE.findall(error.traceback))
    return in_communication or is_end_of_wait or error.type.startswith("torch.distributed.")


def _how_it_failed(e: Evidence) -> tuple[str, str] | int | None:
    return e.error[:2] if e.error is not None and not e.has_lost_a_thread else e.exit_code


def _failed_by(e: Evidence, time_ns: int) -> bool:
    raised = e.error is not None and not e.has_lost_a_thread and e.error.at_ns < time_ns
    return raised or (e.exit_code not in (None, 0) and 0 < e.ended_ns < time_ns)


def _exited_by_itself(e: Evidence) -> bool:
    """Ended with something but 0, and not by an exception: one would have ended it with 1 and be on record."""
    return e.exit_code not in (None, 0) and e.error is None and (e.exit_code != 1 or e.is_monitored)


def _left_early(group: Group) -> Blame | None:
    # Who lost a peer shuts monitoring down on its way out, and was not the one to leave.
    left = [e for e in group if e.has_left and not e.is_condemned and not e.is_victim]
    staying = [e for e in group if e not in left]
    held_up = [e for e in staying if e.is_victim or (e.is_condemned and e.waits)]
    if not left or not held_up or any(e.is_condemned and not e.waits for e in staying):
        return None
    has_ended = all(e.exit_code == 0 for e in left)
    asked = _ASKED if all(e.may_be_upset for e in left) else ""
    at_store = any(e.waits_for_store for e in held_up)
    in_midst = [e for e in left if e.open_sections and e.is_monitored]  # nobody ends properly there
    if len(left) > len(staying) and not in_midst:
        gone = "ended with 0" if has_ended else "finished their training"
        cause = f"it waits for {_STORE}" if at_store else "it seems to have called a collective too many"
        return Blame(
            _ranks(held_up),
            f"likely: still needs ranks that have {gone}, as most have{asked}: {cause}; not certain, since they may "
            "have left too early",
        )
    how = f"{'ended with 0' if has_ended else 'finished its training'} while the others still needed it{asked}"
    if at_store:
        how = f"likely: {how}; not certain, since {_STORE}, where they wait, may be unreachable"
    elif len(left) == len(staying) and not in_midst:
        how = f"likely: {how}; not certain, since they may have called a collective too many"
    return Blame(_ranks(in_midst or left), how)


def _cannot_run(group: Group) -> Blame | None:
    stopped = [e for e in group if e.state in ("T", "t") and e.exit_code is None]
    if not stopped:
        return None
    stuck = [e for e in group if e.is_condemned and e.waits is False and e not in stopped]
    if stuck and not any(e.is_condemned for e in stopped):
        return Blame(
            (), "one rank is stopped, another is stuck outside any collective: it cannot be told which came first"
        )
    by = "stopped by a tracer (a debugger)" if all(e.state == "t" for e in stopped) else "stopped (SIGSTOP)"
    if stuck:
        return Blame(
            _ranks(stopped),
            f"likely: the process is {by}; not certain, since another rank is stuck outside any collective",
        )
    return Blame(_ranks(stopped), f"the process is {by}")


def _not_begun(group: Group) -> Blame | None:
    late = [e for e in group if e.is_condemned and not e.has_begun]
    if not late or not any(e.has_begun for e in group):
        return None
    return Blame(_ranks(late), "has not come as far as init_workload_monitoring(), others have")


def _outside(group: Group) -> Blame | None:
    outside = [e for e in group if e.waits is False]
    if not outside:
        return None
    if waiting := [e for e in group if e.waits]:
        named = [e for e in outside if e.is_condemned] or outside
        surest = [e for e in named if not e.may_wait] or named
        why = "its stack stands outside any collective, the others wait"
        if not any(e.waits_for_store for e in waiting):
            return _hedged(surest, f"{why} in one")
        where = "for" if all(e.waits_for_store for e in waiting) else "in one or for"
        return Blame(_ranks(surest), f"likely: {why} {where} {_STORE}; not certain, since that may be unreachable")
    condemned = [e for e in group if e.is_condemned]
    if outside == condemned and len(condemned) == 1 and len(group) > 1:
        return _hedged(outside, "the only rank that is overdue, and its stack stands outside any collective")
    stuck = [e for e in outside if e.is_condemned and not e.may_wait]
    if len(stuck) == 1 and len(group) > 1:
        return Blame(_ranks(stuck), "its stack stands outside any collective, where it waits for nobody")
    return None


def _hedged(named: Group, why: str) -> Blame:
    if any(e.may_wait for e in named):
        why = f"likely: {why}; not certain, since it may wait for another rank there in a way that no stack shows"
    return Blame(_ranks(named), why)


def _elsewhere(group: Group) -> Blame | None:
    """All wait, a few of them in another place than most; a store that nobody can reach may be asked for anywhere."""
    if len(group) < 3 or not all(e.waits and e.waits_at and not e.waits_for_store for e in group):
        return None
    place, count = Counter(e.waits_at for e in group).most_common(1)[0]
    if count == len(group) or 2 * count <= len(group):
        return None
    return Blame(
        _ranks([e for e in group if e.waits_at != place]),
        f"likely: waits elsewhere than the others, who wait at {place}; not certain, since they may have skipped what "
        "it waits for",
    )


def _behind(group: Group) -> Blame | None:
    known = [e for e in group if e.iteration >= 0]
    iterations = {e.iteration for e in known}
    if len(iterations) < 2:
        return None
    behind = [e for e in known if e.iteration == min(iterations)]
    # A rank that is ahead may have skipped what they wait for. Where a stack is known and leaves open whether its rank
    # waits, that is possible, too.
    if any(e.waits or (e.waits is None and e.stands_at) for e in behind):
        return None
    return _hedged(behind, f"behind the others, at iteration {min(iterations)} of {max(iterations)}")


def _apart(group: Group) -> Blame | None:
    """Of all but one it is not seen that they wait (a loop until a file is there, a thread), but they stand alike.

    They may also be stuck by themselves, all of them in the same thing, while the one waits for them in such a way.
    """
    places = Counter(e.stands_at for e in group)
    (place, count), *_ = places.most_common(1)
    if len(group) < 3 or "" in places or count != len(group) - 1:
        return None
    (apart,) = (e for e in group if e.stands_at != place)
    # One that runs, or hangs in the kernel, is not held up by another rank.
    if apart.waits is not False or any(e.state != "S" for e in group if e is not apart):
        return None
    return Blame(
        (apart.local_rank,),
        f"likely: it stands elsewhere than the others, who all stand at {place}; not certain, since they may be stuck "
        "there by themselves",
    )


def _ahead(group: Group) -> Blame | None:
    """All wait; one has been through a section that the others wait in, so it was not in that collective with them.

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
            return Blame(
                _ranks(ahead),
                f"likely: it has closed section '{section}' {_times(fewest + 1)}, {others} {_times(fewest)} and still "
                f"{waits} in a collective inside it, which this rank seems to have skipped; not certain, since "
                f"{others} may have called one too many, or a connection failed",
            )
    return None


def _alone(group: Group) -> Blame | None:
    """Who is held up by another stops soon after it; most have gone on long after these few.

    One alone that has gone on longer may as well be the culprit, which was late for what the others wait in. And so may
    one of several that are a little late: limits are made to be far longer than what is usual.
    """
    condemned = [e for e in group if e.is_condemned]
    others = [e for e in group if not e.is_condemned]
    if len(others) <= len(condemned) or any(e.waits or not e.last_sign_ns for e in condemned):
        return None
    latest = max(e.last_sign_ns for e in condemned)
    silent_ns = max(e.last_sign_ns for e in group) - latest
    least_ns = max(_LEAST_LEAD_NS, *(e.limit_ns // 2 for e in condemned))
    if all(e.last_sign_ns - latest > silent_ns // 2 for e in others) and silent_ns > least_ns:
        return Blame(_ranks(condemned), f"silent while the others went on for {silent_ns / 1e9:.1f} s")
    return None


def _busy(group: Group) -> Blame | None:
    """Of some nothing is known but that they use the processor, while everybody else sleeps."""
    busy = [e for e in group if e.is_busy]
    if len(busy) != 1 or any(e.is_busy is None for e in group) or busy[0].waits:
        return None
    if len(group) > 1 and busy[0].is_condemned:
        return _hedged(busy, "the only rank that uses the processor, the others sleep")
    return None


def _lost_a_thread(group: Group) -> Blame | None:
    """Name a rank whose thread ended with an exception, for want of better evidence.

    A rank waits in vain for a thread that read batches or copied weights. One that reported figures is not missed.
    """
    lost = [e for e in group if e.has_lost_a_thread and not e.is_victim and not e.waits]
    if not lost or len(lost) == len(group) or any(e.exit_code and not e.is_victim for e in group):
        return None
    kinds = " and ".join(sorted({e.error.type for e in lost if e.error is not None}))
    return Blame(
        _ranks(lost),
        f"likely: one of its threads ended with {kinds}, and it may wait for that thread in vain; not certain, since "
        "the training may go on without it",
    )


def _by_elimination(group: Group, has_others: bool) -> Blame:
    failed = [e for e in group if e.exit_code not in (None, 0)]
    if len(group) == 1 and not has_others:
        return Blame(_ranks(group), "the only rank")
    if failed and all(e.is_victim for e in failed):
        where = "on another node" if has_others else "not known"
        return Blame((), f"who failed lost a peer or waited for one in vain: the cause is {where}")
    if failed:
        return Blame((), "ended first, but left no exception on record: it may be the cause, or have lost a peer")
    if at_store := [e for e in group if e.waits and e.waits_for_store]:
        return Blame((), _for_the_store(len(at_store), len(group), has_others))
    if all(e.waits for e in group) and any(e.waits_by_source for e in group):
        return Blame((), "every rank seems to wait for others, going by the source of the lines in which they stand")
    if all(e.waits for e in group):
        if has_others:
            return Blame((), "every rank here waits for others: the culprit skipped a collective or is on another node")
        return Blame(
            (), f"every rank waits for the others: one has skipped a collective, or called one too many{_level(group)}"
        )
    if all(e.waits for e in group if e.is_condemned):
        return Blame((), "who is overdue waits for others; it cannot be told which of those held it up")
    return Blame((), "it cannot be told from iterations, processes or stacks which rank is the cause")


def _for_the_store(count: int, size: int, has_others: bool) -> str:
    cause = "it may be unreachable, or a rank has not come to it in time"
    if count == size:
        return f"every rank{' here' if has_others else ''} waits for {_STORE}: {cause}"
    who = f"{count} of {size} ranks{' here' if has_others else ''} {'waits' if count == 1 else 'wait'}"
    return f"{who} for {_STORE}: {cause}; it cannot be told which rank holds the others up"


def _level(group: Group) -> str:
    """What the sections say where they do not tell the ranks apart."""
    shared = set.intersection(*(set(e.open_sections) for e in group))
    for section in sorted(shared):
        counts = {dict(e.closed).get(section, -1) for e in group}
        if len(counts) == 1 and -1 not in counts:
            return f"; nobody is ahead, all are in section '{section}' and have closed it {_times(counts.pop())} before"
    return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ranks(group: Group) -> tuple[int, ...]:
    return tuple(e.local_rank for e in group)


def _when_raised(e: Evidence) -> int:
    return e.error.at_ns if e.error is not None else 0


def _when_noticed(e: Evidence) -> int:
    return e.ended_ns
