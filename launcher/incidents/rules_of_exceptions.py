"""Rules of attribution for exceptions: who has raised first, and whether it may go on after that."""

from __future__ import annotations

import math

from launcher.incidents.attributed import (
    AFTER_ASKING,
    AT_ONCE_NS,
    NOTICED_LATE_NS,
    PERHAPS_FOR_ANOTHER,
    SEVERAL_RAISED_IT,
    TAKEN_DOWN_NS,
    Attribution,
    Group,
    asleep_apart,
    kinds_of,
    ranks_of,
    when_raised,
)
from launcher.incidents.error_kinds import may_be_of_another
from launcher.incidents.rules_of_leaving import left_before
from launcher.processes.evidence import Evidence

__all__ = [
    "BEFORE",
    "GONE_OUT",
    "NOT_ENDED",
    "beside",
    "beside_gone",
    "doubted",
    "gone_out_before",
    "lived_on",
    "may_go_on",
    "of_exceptions",
    "was_out",
]

BEFORE = " before any other failure was seen"
NOT_ENDED = ", and has not ended yet"
GONE_OUT = "had destroyed its process group"


def of_exceptions(raised: Group, group: Group, has_others: bool) -> Attribution:
    """Attribute a failure to the first that has raised, or to all that have raised the same.

    Args:
        raised: Those that have, the first one first.
        group: All ranks of this node.
        has_others: Whether other nodes have ranks, too.
    """
    first = raised[0]
    assert first.error is not None
    same = _alike(raised)
    if gone := gone_out_before(first, first.error.at_ns, group):
        return beside_gone(gone, f"raised {kinds_of(same)}", same)
    why = AFTER_ASKING if all(e.may_be_upset for e in same) else ""
    peers = [e for e in group if e is not first]
    likely = "likely: " if (peers or has_others) and may_be_of_another(first.error) else ""
    why += PERHAPS_FOR_ANOTHER if likely else ""
    is_everybody = not has_others and len(same) == len(group) and len({e.error and e.error.earlier for e in same}) == 1
    is_everybody &= first.error.type != "SystemExit"  # so scripts give up, whatever they had caught
    if len(same) > 1 and not is_everybody and not likely:
        likely, why = "likely: ", why + SEVERAL_RAISED_IT
    if len(same) > 1:
        return Attribution(ranks_of(same), f"{likely}{len(same)} ranks raised the same {first.error.type}{why}")
    # A peer may have failed earlier: this rank may have left the group, and raised afterwards.
    is_first = bool(peers) and not any(_failed_by(e, first.error.at_ns) for e in peers)
    before = BEFORE if is_first and not first.may_be_upset else ""
    second = _raised_meanwhile(first, raised)
    if second is not None and not has_others and lived_on([first], when_raised(second)):
        return beside([second], f"raised {kinds_of([second])}", [first])
    if not likely and not has_others and (doubt := _may_be_later(first, raised, group)):
        return doubted(Attribution((first.local_rank,), f"raised {first.error.type}"), doubt)
    later = "" if first.exit_code is not None else NOT_ENDED
    return Attribution((first.local_rank,), f"{likely}raised {first.error.type}{before}{later}{why}")


def may_go_on(raised: Group, end_ns: float) -> bool:
    """Return whether all that raised still lived at a time, and their exceptions had not left their programs."""
    return not any(0 < e.ended_ns <= end_ns or e.has_left_program for e in raised)


def was_out(failed: Evidence) -> bool:
    """Return whether a rank had destroyed its own process group before it failed, other than on its way out.

    It can have lost no peer then. By the clock of its node.
    """
    return 0 < failed.left_group_ns < (when_raised(failed) or failed.ended_ns) - AT_ONCE_NS


def gone_out_before(failed: Evidence, failed_ns: int, group: Group) -> list[Evidence]:
    """Return who had destroyed its process group when another rank failed, which may have lost it.

    Args:
        failed: That rank.
        failed_ns: When it did.
        group: All ranks of this node.
    """
    return [e for e in group if e.has_gone_out and e.left_group_ns < failed_ns and not was_out(failed)]


def beside_gone(gone: Group, how: str, failed: Group) -> Attribution:
    """Name ranks that have failed beside those that had destroyed their process group before.

    Args:
        gone: The latter.
        how: How the others have failed, as the predicate of a sentence.
        failed: Those.
    """
    who = "one rank" if len(failed) == 1 else f"{len(failed)} ranks"
    others = "another" if len(gone) == 1 else "others"
    ranks = tuple(sorted(ranks_of([*failed, *gone])))
    return Attribution(
        ranks, f"likely: {who} {how}, and {others} {GONE_OUT} before; not certain, since that may be why"
    )


def lived_on(raised: Group, failed_ns: float) -> bool:
    """Return whether another rank failed so long after these had raised that it can be told, and these still lived."""
    return failed_ns >= when_raised(raised[0]) + AT_ONCE_NS and may_go_on(raised, failed_ns)


def beside(failed: Group, how: str, raised: Group) -> Attribution:
    """Name ranks that have failed beside those that had raised before, and that may go on after what they handle.

    Args:
        failed: The ranks.
        how: How they have, as the predicate of a sentence.
        raised: Those that had raised, the first one first.
    """
    alike = _alike(raised)
    ranks = tuple(sorted({*ranks_of(failed), *ranks_of(alike)}))
    one = "one rank" if len(failed) == 1 else f"{len(failed)} ranks"
    others, these = ("another", "that one") if len(alike) == 1 else ("others", "those")
    why = f"{one} {how}, and {others} had raised {kinds_of(alike)} before"
    return Attribution(ranks, f"likely: {why}; not certain, since {these} had not ended, and may go on after that")


def _alike(raised: Group) -> list[Evidence]:
    """Return the first that has raised, and those that have raised the same."""
    first = raised[0].error
    return [e for e in raised if e.error is not None and first is not None and e.error[:2] == first[:2]]


def doubted(found: Attribution, why: str) -> Attribution:
    """Return an attribution as likely, for one more reason where it is so already."""
    so_far, _, reason = found.why.removeprefix("likely: ").partition("; not certain, since ")
    so_far = so_far.replace(BEFORE, "")
    reason = "" if PERHAPS_FOR_ANOTHER.endswith(reason) else reason  # that is what is told now
    return found._replace(why=f"likely: {so_far}; not certain, since {f'{reason}, and ' if reason else ''}{why}")


def _may_be_later(first: Evidence, raised: Group, group: Group) -> str:
    """Return why another rank may have failed before the first that raised; nothing where there is no reason."""
    left = [e for e in left_before(group, TAKEN_DOWN_NS) if not any(0 < each.ended_ns < e.ended_ns for each in raised)]
    if left:
        return f"{'another rank has' if len(left) == 1 else 'others have'} ended with 0 before, or at the same time"
    if apart := asleep_apart(group):
        return f"another rank sleeps in {apart[0].kernel_wait}, in no collective, and may have failed before"
    second = _raised_meanwhile(first, raised)
    if second is not None and second.error is not None:
        return f"another rank raised {second.error.type} before that one had ended"
    return ""


def _raised_meanwhile(first: Evidence, raised: Group) -> Evidence | None:
    """Return who raised something else while the first one that did still lived: hardly for want of that one.

    An exception is on record once it leaves a section or the script, which may be long after it was raised, or as the
    rank destroys its process group, which it may do in a handler and go on.
    """
    end_ns = first.ended_ns - NOTICED_LATE_NS if first.ended_ns else math.inf
    others = [e for e in raised if e.error is not None and first.error is not None and e.error[:2] != first.error[:2]]
    return next((e for e in others if when_raised(e) < end_ns), None)


def _failed_by(e: Evidence, time_ns: int) -> bool:
    raised = e.error is not None and not e.has_lost_a_thread and e.error.at_ns < time_ns
    return raised or (e.exit_code not in (None, 0) and 0 < e.ended_ns < time_ns)
