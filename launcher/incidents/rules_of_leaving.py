"""Rules of attribution that go by who has left, since others still needed it."""

from __future__ import annotations

from launcher.incidents.attributed import (
    AFTER_ASKING,
    AT_ONCE_NS,
    THE_STORE,
    Attribution,
    Group,
    at_places,
    has_subgroups,
    kinds_of,
    ranks_of,
    when_raised,
)
from launcher.processes.evidence import Evidence

__all__ = ["left_before", "left_before_all", "left_early"]


def left_before_all(group: Group) -> Attribution | None:
    """Attribute a failure to ranks that have ended with 0 where all others that failed did so in the same way.

    What a script raises when it has lost a peer may be anything; what several raise may have one cause elsewhere. One
    alone may have raised for a rank that ended in the midst of a section, or had done fewer iterations.
    """
    left, raised = left_before(group), [e for e in group if e.has_raised]
    others = [e for e in group if e not in left and e not in raised and not e.is_victim]
    kinds = {e.error[:2] for e in raised if e.error is not None}
    if not raised or len(kinds) > 1 or any(e.exit_code is not None for e in others):
        return None
    if len(raised) == 1:
        reached = raised[0].iteration
        left = [e for e in left if (e.open_sections and e.is_monitored) or 0 <= e.iteration < reached]
        how = f"another rank raised {kinds_of(raised)}; not certain, since that one may have done so by itself"
    else:
        how = (
            f"{len(raised)} ranks raised {kinds_of(raised)} alike; not certain, since they may have done so by "
            "themselves"
        )
    return Attribution(ranks_of(left), f"likely: ended with 0 before {how}") if left else None


def left_before(group: Group, late_ns: int = AT_ONCE_NS) -> list[Evidence]:
    """Return who has ended with 0 before anybody raised, so that those who raised may have lost it.

    Args:
        group: Of the evidence.
        late_ns: How much later than it happened an end may have been noticed.
    """
    raised = [e for e in group if e.has_raised]
    left = [e for e in group if e.exit_code == 0 and e.has_left and e.error is None and not e.is_condemned]
    return [e for e in left if all(_left_ns(e, late_ns) < when_raised(each) for each in raised)]


def _left_ns(e: Evidence, late_ns: int) -> int:
    """Return when a rank has left: by shutting monitoring down, or else by ending."""
    return e.last_sign_ns if e.last_sign_ns and not e.open_sections else e.ended_ns - late_ns


def left_early(group: Group) -> Attribution | None:
    # Who lost a peer shuts monitoring down on its way out, and was not the one to leave.
    """Attribute a failure to ranks that shut monitoring down while others waited."""
    left = [e for e in group if e.has_left and not e.is_condemned and not e.is_victim]
    staying = [e for e in group if e not in left]
    held_up = [e for e in staying if e.is_victim or (e.is_condemned and e.waits)]
    if not left or not held_up or any(e.is_condemned and not e.waits for e in staying):
        return None
    has_ended = all(e.exit_code == 0 for e in left)
    asked = AFTER_ASKING if all(e.may_be_upset for e in left) else ""
    at_store = any(e.waits_for_store for e in held_up)
    in_midst = [e for e in left if e.open_sections and e.is_monitored]  # nobody ends properly there
    lost_nobody = not in_midst and not any(e.is_victim for e in held_up)
    if lost_nobody and (apart := _among_themselves(held_up)) is not None:
        return apart
    if len(left) > len(staying) and not in_midst:
        gone = "ended with 0" if has_ended else "finished their training"
        cause = f"it waits for {THE_STORE}" if at_store else "it seems to have called a collective too many"
        return Attribution(
            ranks_of(held_up),
            f"likely: still needs ranks that have {gone}, as most have{asked}: {cause}; not certain, since they may "
            "have left too early",
        )
    how = f"{'ended with 0' if has_ended else 'finished its training'} while the others still needed it{asked}"
    if any(e.exit_code != 0 and not e.is_victim and not e.waits for e in staying):
        how = f"likely: {how}; not certain, since another rank may have failed, and have told nothing of that yet"
    elif at_store:
        how = f"likely: {how}; not certain, since {THE_STORE}, where they wait, may be unreachable"
    elif len(left) == len(staying) and not in_midst:
        how = f"likely: {how}; not certain, since they may have called a collective too many"
    elif lost_nobody and has_subgroups(group):
        how = f"likely: {how}; not certain, since they may wait for each other in a smaller process group"
    elif lost_nobody and all(e.waits_by_source and not e.waits_for_all for e in held_up):
        how = f"likely: {how}; not certain, since they may wait for each other, for messages"
    return Attribution(ranks_of(in_midst or left), how)


def _among_themselves(held_up: Group) -> Attribution | None:
    """Name nobody where those that wait do so for each other, as far as can be seen, rather than for who has left."""
    if len(held_up) > 1 and all(e.waits_for_one for e in held_up):
        return Attribution(
            (),
            f"{len(held_up)} ranks wait {at_places(held_up)}for a message to or from one other rank: for each other, "
            "or for a rank that is gone; it cannot be told which",
        )
    for name in sorted({each.name for e in held_up for each in e.groups}):
        members = [each for e in held_up for each in e.groups if each.name == name]
        if len(members) == members[0].size and len({each.number for each in members}) > 1:
            return Attribution(
                (),
                f"the ranks that wait have called different numbers of collectives of group {name}, to which no other "
                "rank belongs: they wait for each other, or for a rank that is gone; it cannot be told which",
            )
    return None
