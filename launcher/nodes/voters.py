"""Which nodes vote: the leader and some more, an odd number of at most five."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["next_voters"]

_MOST_VOTERS = 5


def next_voters(voters: Sequence[str], alive: Sequence[str], leader: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return who should learn to become a voter next, and the voters after the next removal.

    With an even number of voters one more loss stalls all, and none less is survived than with one fewer; so two
    nodes have one voter, and a single voter takes in two others at once. A leader that leaves (it is not among the
    living any more) goes last, once somebody else can vote.

    Args:
        voters: In force.
        alive: Nodes that are there, in the order of joining.
        leader: Who decides.
    """
    gone = [name for name in voters if name not in alive and name != leader]
    if gone:
        return (), tuple(name for name in voters if name != gone[0])
    if not alive:
        return (), tuple(voters)
    wanted = min(len(alive), _MOST_VOTERS)
    wanted -= wanted % 2 == 0
    living = [name for name in voters if name in alive]
    learners = [name for name in alive if name not in voters]
    if len(living) < wanted and learners:
        return tuple(learners[: 2 if len(voters) == 1 and wanted > 2 else 1]), tuple(voters)
    if leader not in alive and living:
        return (), tuple(living)
    if len(living) > wanted:
        last = next(name for name in reversed(living) if name != leader)
        return (), tuple(name for name in voters if name != last)
    return (), tuple(voters)
