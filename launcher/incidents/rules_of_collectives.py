"""A rule of attribution that goes by how far ranks are in the collectives of their process groups."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.incidents.attributed import Attribution, Group, hedged
from launcher.processes.evidence import Evidence
from resilience_core.protocol.group_numbers import GroupNumber

__all__ = ["has_arrived", "has_not_arrived"]

_GLOO = "gloo"


def has_not_arrived(group: Group) -> Attribution | None:
    """Attribute a hang to the one rank that has not entered the collective in which all others wait.

    Nothing less is conclusive. A rank may have called fewer collectives than others because it waits in one of another
    group, or for its GPU that has not done an earlier one, and then it is held up itself: so all that it has called
    must be done. Numbers of gloo differ where ranks have sent something, so all others must have the same. A group of
    which one member is not here tells nothing.
    """
    for name in sorted({each.name for e in group for each in e.groups}):
        members = [(e, each) for e in group for each in e.groups if each.name == name]
        if len(members) != len(group) or len(group) < 2 or any(each.size != len(group) for _, each in members):
            continue
        least = min(each.number for _, each in members)
        behind = [e for e, each in members if each.number == least]
        ahead = [(e, each) for e, each in members if each.number != least]
        if len(behind) != 1 or not ahead or not _is_free(behind[0]):
            continue
        places = set(_places(ahead))
        if len(places) == 1 and (place := places.pop()) is not None and place > least:
            operation = next((f" ({each.operation})" for _, each in ahead if each.operation), "")
            others = "the other waits" if len(ahead) == 1 else "the others wait"
            return hedged(
                behind,
                f"has not arrived: {others} in collective {place} of group {name}{operation}, and this rank has "
                f"called {least} and is in none",
            )
    return None


def has_arrived(e: Evidence, group: Group) -> bool:
    """Return whether a rank is itself in the collective in which the others wait, as in a thread of its own.

    A GPU may be behind what was called, and in several groups the others may wait in another one.
    """
    others = [each for each in group if each.waits and each is not e]
    if e.is_idle is not False or e.has_gpu or len(e.groups) != 1 or not others:
        return False
    (own,) = e.groups
    return all(
        len(each.groups) == 1
        and each.groups[0].name == own.name
        and each.groups[0].number == each.groups[0].first_undone == own.number
        for each in (e, *others)
    )


def _is_free(e: Evidence) -> bool:
    """Return whether a rank waits in no collective, as torch and its stack say."""
    if e.waits or e.is_idle is not True or e.state in ("Z", "X"):
        return False
    # What it receives by gloo is not seen, and where its source is not known, nor is a wait for that; but no wait of
    # gloo's is one for a disk or a device.
    return e.waits is False or e.state == "D" or not any(_GLOO in each.backend for each in e.groups)


def _places(ahead: list[tuple[Evidence, GroupNumber]]) -> Iterator[int | None]:
    """Yield in which collective each of them waits; None where it waits in none, or that is not known."""
    for e, each in ahead:
        if e.waits is False or each.first_undone == 0:
            yield None
        elif each.first_undone is not None:
            yield each.first_undone
        else:
            yield each.number if e.waits and e.waits_for_all else None
