"""Rules for failures that several nodes have seen, each by its own clock. Pure.

Nothing orders what ranks of two machines do by themselves; what they did tells which of it may follow from the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from launcher.incidents.attributed import LIKELY, PERHAPS_FOR_ANOTHER, SEVERAL_RAISED_IT, Attribution, ranks_of
from launcher.incidents.error_kinds import gave_up
from launcher.incidents.node_accounts import Failures, NodeAccount, named_by
from launcher.incidents.rules_of_exceptions import BEFORE, GONE_OUT, NOT_ENDED, was_out
from launcher.incidents.rules_of_exits import NO_RECORD, ended_without_record
from launcher.incidents.rules_of_hangs import has_died, is_stopped, stopped_or
from launcher.incidents.rules_of_leaving import left_before
from launcher.processes.evidence import Evidence

__all__ = [
    "JobAttribution",
    "as_likely",
    "beside_exits",
    "beside_leavers",
    "beside_outside",
    "beside_unmonitored",
    "died_first",
    "each_failure",
    "first_of",
    "gave_no_word",
    "has_exited",
    "may_be_first",
    "stopped_beside",
    "without_record",
]

_COUNT = re.compile(r"^\d+ ranks raised the same ")


class JobAttribution(NamedTuple):
    """The culprits' ranks, or nodes that are to blame as a whole; both are empty when it cannot be told. And why."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    why: str


def first_of(candidates: Sequence[tuple[NodeAccount, Attribution]]) -> JobAttribution:
    """Name those of one node, or of several: on two machines nothing orders what ranks do by themselves.

    Not even iterations do: one rank may be a step ahead when both run into what one of them has caused.
    """
    if len(candidates) == 1:
        ((_, found),) = candidates
        return JobAttribution(found.local_ranks, (), found.why)
    named = [named_by(account, found) for account, found in candidates]
    ranks = tuple(sorted(e.local_rank for group in named for e in group))
    whys = {found.why.replace(BEFORE, "").replace(NOT_ENDED, "") for _, found in candidates}
    if len(whys) == 1 and len({_how_it_failed(e) for group in named for e in group}) == 1:
        why = whys.pop()
        is_everybody = all(len(found.local_ranks) == len(account.evidence()) for account, found in candidates)
        if is_everybody and why.endswith(SEVERAL_RAISED_IT):  # there is no elsewhere
            why = why.removeprefix(LIKELY).removesuffix(SEVERAL_RAISED_IT)
        likely = "" if is_everybody and not why.startswith(LIKELY) else LIKELY
        why = _COUNT.sub("raised ", why.removeprefix(LIKELY))  # how many of one node did
        alike = f"{len(ranks)} ranks on {len(named)} nodes failed alike: {why}"
        return JobAttribution(ranks, (), likely + alike)
    each = "; ".join(f"node {account.node}: {_short(found.why)}" for account, found in candidates)
    return JobAttribution(
        ranks, (), f"likely: {len(named)} nodes failed by themselves, and it cannot be told which came first ({each})"
    )


def _how_it_failed(e: Evidence) -> tuple[str, str, str | None] | int | None:
    return (*e.error[:2], e.error.earlier) if e.error is not None else e.exit_code


def may_be_first(doubtful: tuple[NodeAccount, Attribution], sure: Failures) -> bool:
    """Return whether those who are named in doubt may have failed before those of other nodes who are named for sure.

    What several raise does not make them victims, nor does the end of a wait, which may have been one for a disk. A
    rank that was killed was hardly killed for that.
    """
    if SEVERAL_RAISED_IT in doubtful[1].why:
        return True
    raised = [e.error for e in named_by(*doubtful) if e.error is not None]
    has_died = any(e.fatal_signal is not None for each in sure for e in named_by(*each))
    return bool(raised) and all(map(gave_up, raised)) and not has_died


def has_exited(doubtful: tuple[NodeAccount, Attribution]) -> bool:
    """Return whether a node names a rank that has exited without an exception on record."""
    return any(e.error is None and (e.exit_code or 0) > 0 for e in named_by(*doubtful))


def without_record(accounts: Sequence[NodeAccount], sure: Failures) -> list[tuple[NodeAccount, Attribution]]:
    """Return who has ended with 1 on nodes of which nobody is named for sure, and before those were told of a failure.

    That may be why others have raised; hardly anybody is killed or crashes for it.
    """
    if not all(e.has_raised for each in sure for e in named_by(*each)):
        return []
    return gave_no_word([each for each in accounts if each not in [account for account, _ in sure]])


def gave_no_word(accounts: Sequence[NodeAccount]) -> list[tuple[NodeAccount, Attribution]]:
    """Return who was the first to end with 1, with nothing on record, on each node that was not told of a failure."""
    ended = [(each, ended_without_record(each.own_evidence())[:1]) for each in accounts if not each.was_told]
    return [(account, Attribution(ranks_of(first), LIKELY + NO_RECORD)) for account, first in ended if first]


def beside_exits(named: JobAttribution, sure: Failures, gone: Failures) -> JobAttribution:
    """Return an attribution to ranks that have crashed or raised as likely: one that has exited may have been first.

    A script may raise anything when it has lost a peer, so both are named then. It may also crash in its cleanup, and
    surely has where a rank on the peer's node has crashed after it in the same way. Nobody is killed for that.
    """
    ends = [e for each in sure for e in named_by(*each)]
    if all(e.has_raised for e in ends):  # which may be how a script gives up, as an exit may
        return first_of([*sure, *gone])
    if any(e.was_killed or e.asking_signal is not None for e in ends):
        return named
    crashes = {e.exit_code for e in ends if e.has_crashed}
    for account, how in gone if len(crashes) == 1 and all(e.has_crashed for e in ends) else ():
        after = {e.exit_code for e in account.evidence() if e.local_rank not in how.local_ranks and e.has_crashed}
        if crashes <= after:
            return JobAttribution(how.local_ranks, (), f"{as_likely(how.why)}; not certain, since {each_failure(sure)}")
    return named._replace(why=f"{as_likely(named.why)}; not certain, since {each_failure(gone)}")


def beside_outside(named: JobAttribution, sure: Failures, everybody: Sequence[Evidence]) -> JobAttribution:
    """Return an attribution to ranks that have raised or crashed as likely where another rank may have been first.

    That is one that has destroyed its process group, one that has ended with 0, or one that lives, stands outside any
    collective, and is not known to have been getting on: its exception is on record only once it leaves the script.
    A crash may come of the first of these alone.
    """
    ends = [e for each in sure for e in named_by(*each)]
    if named.why.startswith(LIKELY) or not all(e.has_raised or e.has_crashed for e in ends):
        return named
    known = [e for account, _ in sure for e in account.own_evidence()]  # these are ordered by one clock
    gone = [e for e in everybody if e.has_gone_out and e.local_rank not in ranks_of(known)]
    if gone and not any(was_out(e) for e in known if e.local_rank in ranks_of(ends)):
        who = f"rank {', '.join(str(e.local_rank) for e in gone)}"
        why = f"{as_likely(named.why)}; not certain, since {who} {GONE_OUT}, perhaps before"
        return JobAttribution(tuple(sorted({*named.ranks, *ranks_of(gone)})), (), why)
    if not all(e.has_raised for e in ends):
        return named
    living = [e for e in everybody if e.exit_code is None and e.error is None and not e.waits and not e.is_lively]
    outside = [e for e in living if e.waits is False or e.sleeps_apart]
    if left := left_before(everybody):
        who = f"rank {', '.join(str(e.local_rank) for e in left)}"
        return named._replace(why=f"{as_likely(named.why)}; not certain, since {who} had ended with 0")
    if not outside:
        return named
    who = f"rank {', '.join(str(e.local_rank) for e in outside)}"
    doubt = f"{who} {'stands' if len(outside) == 1 else 'stand'} outside any collective, and may have failed before"
    return named._replace(why=f"{as_likely(named.why)}; not certain, since {doubt}")


def stopped_beside(named: JobAttribution, sure: Failures, accounts: Sequence[NodeAccount]) -> JobAttribution | None:
    """Name ranks that are stopped where others raised or exited, which may have given them up; with one that died."""
    stopped = [e for account in accounts for e in account.evidence() if is_stopped(e)]
    if not stopped:
        return None
    if any(has_died(e) for each in sure for e in named_by(*each)):
        ranks = tuple(sorted({*named.ranks, *ranks_of(stopped)}))
        return JobAttribution(ranks, (), stopped_or(named.why.removeprefix(LIKELY).partition(";")[0]))
    why = f"likely: the process is stopped (SIGSTOP); not certain, since {each_failure(sure)}"
    return JobAttribution(ranks_of(stopped), (), why)


def beside_leavers(
    found: JobAttribution, first: Failures, gone: Failures, everybody: Sequence[Evidence]
) -> JobAttribution:
    """Name, with ranks that have left in good order, those that failed elsewhere, unless one was further than they.

    Ranks that are as far as all others may have been needed for what follows the last iteration, or by nobody. Without
    iterations, who has ended with 1 and nothing on record (``gone``) is taken to have lost them.
    """
    left = [e for e in everybody if e.local_rank in found.ranks and e.has_left and not e.open_sections]
    reached = max((e.iteration for e in everybody if e not in left), default=-1)
    failures = [*first, *(gone if reached >= 0 else ())]
    if not failures or not left or len(left) < len(found.ranks) or any(e.iteration < reached for e in left):
        return found
    failed = {rank for _, how in failures for rank in how.local_ranks}
    why = f"likely: {_short(found.why).partition(';')[0]}, or failed: {each_failure(failures)}"
    return JobAttribution(tuple(sorted({*found.ranks, *failed})), (), f"{why}; it cannot be told which came first")


def beside_unmonitored(found: JobAttribution, first: Failures, everybody: Sequence[Evidence]) -> JobAttribution:
    """Name, with ranks outside any collective that are not monitored, those that exited before they were told.

    They may have exited since they lost those, or without a reason that anybody else knows of; nothing tells whether
    who is outside a collective has got stuck there or has much to do.
    """
    exits = [each for each in first if not each[0].was_told and has_exited(each)]
    plain = [e for e in everybody if e.local_rank in found.ranks and not e.has_begun and e.exit_code is None]
    if not exits or not plain or len(plain) < len(found.ranks):
        return found
    ranks = tuple(sorted({*found.ranks, *(rank for _, how in exits for rank in how.local_ranks)}))
    why = f"{as_likely(_short(found.why).partition(';')[0])}, or failed: {each_failure(exits)}"
    return JobAttribution(ranks, (), f"{why}; it cannot be told which came first")


def died_first(sure: Failures) -> JobAttribution | None:
    """Name ranks that were killed before those that have crashed, and both before those that have failed otherwise.

    Nobody is killed for what another rank does, and few crash for that; what a script raises when it has lost a peer is
    anything.
    """
    killed = [each for each in sure if all(e.was_killed for e in named_by(*each))]
    crashed = [each for each in sure if all(e.has_crashed for e in named_by(*each))]
    for died in (killed, crashed):
        others = [each for each in sure if each not in died]
        if died and others:
            named = first_of(died)
            return named._replace(why=f"{as_likely(named.why)}; not certain, since {each_failure(others)}")
    return None


def each_failure(failures: Failures) -> str:
    """Return who has failed on which node, and how."""
    return "; ".join(
        f"rank {', '.join(map(str, found.local_ranks))} on node {account.node}: {_short(found.why)}"
        for account, found in failures
    )


def _short(why: str) -> str:
    """Return a reason without what is so on one node alone."""
    why = why.removeprefix(LIKELY).replace(BEFORE, "")
    return why.removesuffix(SEVERAL_RAISED_IT).removesuffix(PERHAPS_FOR_ANOTHER)


def as_likely(why: str) -> str:
    """Return a reason as one that is not certain."""
    return LIKELY + why.removeprefix(LIKELY)
