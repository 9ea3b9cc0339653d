"""The result of an attribution, and what its rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.processes.evidence import Evidence

__all__ = [
    "AFTER_ASKING",
    "AT_ONCE_NS",
    "Attribution",
    "Group",
    "LIKELY",
    "NOTICED_LATE_NS",
    "PERHAPS_FOR_ANOTHER",
    "SEVERAL_RAISED_IT",
    "TAKEN_DOWN_NS",
    "THE_STORE",
    "asleep_apart",
    "at_places",
    "gets_on",
    "has_subgroups",
    "hedged",
    "kinds_of",
    "ranks_of",
    "times_phrase",
    "when_raised",
]

LIKELY = "likely: "
"""What a reason begins with that is not certain."""


AT_ONCE_NS = 20_000_000
"""How soon the end of a process is noticed, unless the machine is busy."""


NOTICED_LATE_NS = 100_000_000
"""How much later than it happened a death may be noticed, on a busy machine."""


TAKEN_DOWN_NS = 2_000_000_000
"""How long a process may take to end once it has closed its connections: torch's libraries, a GPU's memory."""


AFTER_ASKING = ", after a signal had asked for the stack, which may be why"


PERHAPS_FOR_ANOTHER = "; not certain, since another rank may have caused it"


SEVERAL_RAISED_IT = "; not certain, since what several ranks raise may have one cause elsewhere"


THE_STORE = "the store of the process group (MASTER_ADDR:MASTER_PORT or init_method)"


Group = Sequence[Evidence]


class Attribution(NamedTuple):
    """The culprits' local ranks, empty when it cannot be told, and why."""

    local_ranks: tuple[int, ...]
    why: str


def hedged(named: Group, why: str) -> Attribution:
    """Return an attribution to some ranks, marked as likely where one of them may wait for another."""
    if any(e.may_wait for e in named):
        why = f"likely: {why}; not certain, since it may wait for another rank there in a way that no stack shows"
    return Attribution(ranks_of(named), why)


def gets_on(e: Evidence, group: Group) -> bool:
    """Return whether a rank has gone on for nearly as long as others have waited, and so hardly holds them up.

    Its limit has not passed, and its last sign was given in the last tenth of the shortest limit that has.
    """
    limits_ns = [each.limit_ns for each in group if each.is_condemned and each.limit_ns]
    is_watched = not e.is_condemned and not e.has_left and e.exit_code is None
    return is_watched and e.is_lively and e.silent_ns >= 0 and bool(limits_ns) and 10 * e.silent_ns <= min(limits_ns)


def has_subgroups(group: Group) -> bool:
    """Return whether some of the ranks also communicate in a process group that not all of them belong to."""
    sizes = {each.size for e in group for each in e.groups if each.size > 1}
    return len(sizes) > 1 or any(size < len(group) for size in sizes)


def asleep_apart(group: Group) -> list[Evidence]:
    """Return who sleeps where no main thread waits for others, has raised nothing, and is not known to get on."""
    return [e for e in group if e.sleeps_apart and e.error is None and not e.is_lively]


def at_places(group: Group) -> str:
    """Return where ranks wait in the user's own code, with a blank behind it; nothing where that is not known."""
    places = " and ".join(sorted({e.waits_at for e in group if e.waits_at}))
    return f"at {places} " if places else ""


def times_phrase(count: int) -> str:
    """Return ``once`` or the number of times."""
    return "once" if count == 1 else f"{count} times"


def ranks_of(group: Group) -> tuple[int, ...]:
    """Return the local ranks of a group."""
    return tuple(e.local_rank for e in group)


def when_raised(e: Evidence) -> int:
    """Return when a rank raised; 0 where it did not."""
    return e.error.at_ns if e.error is not None else 0


def kinds_of(raised: Group) -> str:
    """Return the types of what ranks raised."""
    return " and ".join(sorted({e.error.type for e in raised if e.error is not None}))
