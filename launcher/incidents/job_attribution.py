"""Who is to blame for a failure of a job on several nodes. Pure.

Each node tells what it has seen of its own ranks. No two clocks are compared: on one node the order of failures is
known, between nodes it follows from what a rank does and whom it waits for. A rank that only lost its peer is a victim
wherever it is, and where none of the rules speaks, nobody is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.incidents.attributed import LIKELY, Attribution, hedged
from launcher.incidents.attribution import attribute
from launcher.incidents.node_accounts import Failures, NodeAccount, failure_of_its_own
from launcher.incidents.rules_of_hangs import cannot_run, outside_collectives
from launcher.incidents.rules_of_leaving import left_before_all, left_early
from launcher.incidents.rules_of_nodes import (
    JobAttribution,
    as_likely,
    beside_exits,
    beside_leavers,
    beside_outside,
    beside_unmonitored,
    died_first,
    each_failure,
    first_of,
    gave_no_word,
    has_exited,
    may_be_first,
    stopped_beside,
    without_record,
)
from launcher.processes.evidence import Evidence

__all__ = ["JobAttribution", "attribute_job", "nobody_named"]

_NOT_CERTAIN = "; not certain, since "


def attribute_job(
    accounts: Sequence[NodeAccount],
    silent: Sequence[str] = (),
    lost: Sequence[str] = (),
    why_lost: str = "",
    *,
    may_blame_silent: bool = True,
) -> JobAttribution:
    """Tell the culprits of all nodes from the victims.

    Args:
        accounts: Of the nodes that were heard.
        silent: Names of nodes that were not heard, though they are there.
        lost: Names of nodes that are no longer there.
        why_lost: Why the generation is over, as the nodes have agreed.
        may_blame_silent: There is no good reason for their silence.
    """
    asking = [report.rank for each in accounts if each.incident.kind == "request" for report in each.incident.ranks]
    if asking:
        return JobAttribution(tuple(asking), (), "it has asked for the end of the job")
    own = [(account, how) for account in accounts if (how := failure_of_its_own(account)) is not None]
    first = [(account, how) for account, how in own if not account.was_told] or own
    sure = [(account, how) for account, how in first if not how.why.startswith(LIKELY)]
    if lost and all(account.was_told for account, _ in sure):
        return JobAttribution((), tuple(lost), _lost_phrase(lost, why_lost, own, accounts))
    if (stuck := _stuck_by_itself(accounts)) is not None:
        return stuck._replace(why=f"{as_likely(stuck.why)}; not certain, since {each_failure(own)}") if own else stuck
    everybody = [evidence for account in accounts for evidence in account.evidence()]
    if first and (left := left_before_all(everybody)) is not None:
        return JobAttribution(left.local_ranks, (), left.why)
    if sure:
        named = first_of([each for each in first if each in sure or may_be_first(each, sure)])
        named = died_first(sure) or named
        gone = [each for each in first if each not in sure and has_exited(each)]
        if gone := gone + without_record([each for each in accounts if each not in [who for who, _ in gone]], sure):
            named = beside_exits(named, sure, gone)
        named = beside_outside(named, sure, everybody)
        if not named.why.startswith(LIKELY) and any(account.incident.kind == "hang" for account in accounts):
            named = named._replace(
                why=f"{as_likely(named.why)}; not certain, since it may have failed for one that hangs"
            )
        named = stopped_beside(named, sure, accounts) or named
        if silent and all(account.was_told for account, _ in sure):
            named = named._replace(why=f"{as_likely(named.why)}; not certain, since {_unheard(silent)}")
        return named._replace(why=_beside_lost(named.why, lost)) if lost else named
    found = _of_a_hang(accounts, silent, has_failures=bool(first))
    failed = {rank for _, how in first for rank in how.local_ranks}
    gone = gave_no_word([account for account in accounts if account not in [who for who, _ in first]])
    if first and set(found.ranks) in (set(), failed):  # its own failure tells more of a rank than how others end
        by_exits = [*(each for each in first if not each[0].was_told), *gone] if all(map(has_exited, first)) else []
        return first_of(by_exits or first)
    if (both := beside_leavers(found, first, gone, everybody)) is not found:
        return both
    if (both := beside_unmonitored(found, first, everybody)) is not found:
        return both
    if first and _NOT_CERTAIN in found.why:
        found = found._replace(why=f"{found.why}, and since others failed ({each_failure(first)})")
    if not found.ranks and silent and may_blame_silent and everybody and all(e.waits or e.is_victim for e in everybody):
        names, is_one = ", ".join(silent), len(silent) == 1
        who = f"likely: node {names} has" if is_one else f"nodes {names} have"
        why = f"{who} not answered, and every other rank waits or has lost a peer"
        return JobAttribution((), tuple(silent) if is_one else (), why)
    return found


def _stuck_by_itself(accounts: Sequence[NodeAccount]) -> JobAttribution | None:
    """Name ranks that are stopped, or stand outside any collective, past their limits while others failed.

    Those may have waited for them.
    """
    hung = [e for account in accounts if account.incident.kind == "hang" for e in account.evidence()]
    stuck = [e for e in hung if e.is_condemned and e.waits is False and e.exit_code is None and not _has_failed(e)]
    has_failed = any(_has_failed(e) for account in accounts for e in account.evidence())
    if not has_failed:  # where nothing has failed, the rules for hangs know more
        return None
    if any(e.is_condemned and e.state in ("T", "t") for e in hung) and (blame := cannot_run(hung)) is not None:
        return JobAttribution(blame.local_ranks, (), blame.why)
    if not stuck:
        return None
    surest = [e for e in stuck if not e.may_wait] or stuck
    found = hedged(surest, "its stack stands outside any collective, where it has passed its limit")
    return JobAttribution(found.local_ranks, (), found.why)


def _of_a_hang(accounts: Sequence[NodeAccount], silent: Sequence[str], *, has_failures: bool) -> JobAttribution:
    """Go by where ranks stand; one that may have ended because of another counts as one that waited for it.

    Where a node has a failure of its own, which is told unless somebody is found here, the order of failures on
    several nodes is not asked for. Where no rank hangs, a rank that does not wait may have stopped waiting a moment
    ago, since it has lost a peer: it cleans up, and its exception is on record only later. It is named as likely at
    most, and not at all while a node is silent on which the cause may be.
    """
    seen = [e for account in accounts for e in account.evidence()]
    everybody = [_as_waiting(e) if _has_failed(e) else e for e in seen]
    if not everybody:
        return JobAttribution((), (), "nothing is known of any rank")
    has_others = bool(silent) or any(
        report.evidence is None for account in accounts for report in account.incident.ranks
    )
    is_hang = any(account.incident.kind == "hang" for account in accounts)
    if is_hang:
        known: Attribution | None = attribute(everybody, has_others=has_others)
    elif silent:
        known = _doubted(cannot_run(everybody), _unheard(silent))
    else:
        # Ranks that have just failed have not settled as hung ones have: iterations, say, may differ by one.
        known = cannot_run(everybody)
        # Who has exited without a word need not have waited for anybody, and not for a rank that was getting on.
        # One that ends may have lost a peer, caught that, and be taking its interpreter down.
        is_excused = {e.local_rank for e in everybody if e.waits is False and (e.is_lively or e.is_finalizing)}
        if has_failures:  # nothing tells of those that are not monitored whether they were getting on
            plain = [e for e in everybody if e.waits is False and not e.has_begun]
            is_excused |= {e.local_rank for e in plain if e.is_busy or len(plain) > 1}  # as several hardly hang at once
        ended = {e.local_rank for e in seen if _has_failed(e)}
        everybody = [e._replace(waits=None) if e.local_rank in is_excused else e for e in everybody]
        for found in (left_early(everybody), outside_collectives(everybody, ended)):
            known = known or _doubted(found, "it may have lost a peer as the others have")
        if known is None and not has_failures:
            known = attribute(seen, has_others=has_others)
    return JobAttribution(known.local_ranks, (), known.why) if known is not None else nobody_named(silent)


def nobody_named(silent: Sequence[str]) -> JobAttribution:
    """Return that no rule speaks, and why: what the nodes that were heard have seen came of something else."""
    why = "no rank that was heard of is known to have failed by itself"
    return JobAttribution((), (), f"{why}, and {_unheard(silent)}" if silent else why)


def _doubted(found: Attribution | None, why: str) -> Attribution | None:
    """Return an attribution as likely, with the reason, unless it says so already."""
    if found is None or not found.local_ranks or found.why.startswith(LIKELY):
        return found
    return found._replace(why=f"{LIKELY}{found.why}; not certain, since {why}")


def _lost_phrase(lost: Sequence[str], why: str, own: Failures, accounts: Sequence[NodeAccount]) -> str:
    names = f"node {lost[0]} is" if len(lost) == 1 else f"nodes {', '.join(lost)} are"
    phrase = f"{names} lost{f' ({why})' if why else ''}"
    if own:
        return f"{LIKELY}{phrase}; not certain, since {each_failure(own)}"
    left = [str(e.local_rank) for each in accounts for e in each.evidence() if e.has_left and not e.is_victim]
    return f"{LIKELY}{phrase}; not certain, since rank {', '.join(left)} was ending" if left else phrase


def _unheard(silent: Sequence[str]) -> str:
    return (
        f"node{'s' if len(silent) > 1 else ''} {', '.join(silent)} {'have' if len(silent) > 1 else 'has'} not answered"
    )


def _beside_lost(why: str, lost: Sequence[str]) -> str:
    names = f"node {lost[0]} is" if len(lost) == 1 else f"nodes {', '.join(lost)} are"
    return f"{LIKELY}{why.removeprefix(LIKELY)}; not certain, since {names} lost as well"


def _has_failed(e: Evidence) -> bool:
    """Return whether a rank has ended or ends; one that goes on without a thread of its own does not."""
    return e.exit_code not in (None, 0) or (e.error is not None and not e.has_lost_a_thread)


def _as_waiting(e: Evidence) -> Evidence:
    """Return the evidence of a rank that was ended by what it waited for, or may have been."""
    return e._replace(error=None, exit_code=None, ended_ns=0, has_left=False, state="S", waits=True, is_condemned=True)
