"""Which nodes make up a generation."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from launcher.nodes.membership import Membership, NodeInfo

__all__ = ["Policy", "choose_members", "why_no_part", "why_too_few"]

_STRIKES_THAT_AVOID = 2


class Policy(NamedTuple):
    """What the user has asked for; the same on every node.

    Args:
        least: Nodes that a generation needs.
        most: Nodes that are let in; with ``is_fixed`` those beyond ``least`` are spares.
        is_fixed: Exactly ``least`` nodes, in the same places, in every generation.
        max_restarts: Failures that the job survives.
        lease_ns: How long a node may be silent.
        last_call_ns: How long the first generation waits for further nodes once the least are there.
        join_ns: How long a generation waits for the least.
        joins_at_checkpoint: A generation in which nothing has failed is ended after a checkpoint, so that nodes that
            have come later take part.
    """

    least: int
    most: int
    is_fixed: bool
    max_restarts: int
    lease_ns: int
    last_call_ns: int
    join_ns: int
    joins_at_checkpoint: bool = False


def why_no_part(membership: Membership, name: str, info: NodeInfo, policy: Policy) -> str:
    """Return why a node cannot take part as the job is now: it cannot join, or no place in it has as many ranks.

    Empty for a node that can.
    """
    if why := membership.refusal(name, info, policy.most):
        return why
    if not policy.is_fixed or name in membership.members or not membership.members or info.slots in membership.slots:
        return ""
    there = " or ".join(str(slots) for slots in sorted(set(membership.slots)))
    return (
        f"it runs {info.slots} ranks (--nproc-per-node), while each node of the job runs {there}, and with "
        "--ft-membership fixed it could take the place only of one with as many; start it with as many"
    )


def why_too_few(ready: int, members: int, policy: Policy) -> str:
    """Return why the job ends, when for too long only so many of the nodes that are ready could be members."""
    seconds = policy.join_ns / 1e9
    why = f"only {members} of at least {policy.least} nodes could take part within {seconds:g} s"
    others = ready - members  # places of a fixed job were left, and these do not fit
    return why + (f"; {others} of the others run another number of ranks (--nproc-per-node)" if others else "")


def choose_members(membership: Membership, ready: Collection[str], policy: Policy) -> list[str]:
    """Return the members of the next generation in rank order; fewer than ``policy.least`` cannot make one.

    Members of the last generation keep their places. A host that was lost twice is taken only where there is no
    other. Nodes come in the order that they have named (their host's place in the scheduler's list), then as they
    have joined.

    Args:
        membership: What is agreed.
        ready: Nodes that run no rank and know how the last generation has ended.
        policy: The user's.
    """
    joined = {name: at for at, name in enumerate(membership.nodes)}

    def place(name: str) -> tuple[str, int]:
        return membership.nodes[name].order, joined[name]

    last = set(membership.members)
    survivors = [name for name in membership.members if name in ready]
    newcomers = sorted((name for name in ready if name not in last), key=place)
    newcomers.sort(key=lambda name: membership.strikes_of(membership.nodes[name].host) >= _STRIKES_THAT_AVOID)
    if policy.is_fixed and membership.members:
        places = [name if name in ready else None for name in membership.members]
        for at, slots in enumerate(membership.slots):
            if places[at] is None:  # a spare takes the ranks of the node whose place it takes: no more and no fewer
                places[at] = next((name for name in newcomers if membership.nodes[name].slots == slots), None)
                newcomers = [name for name in newcomers if name != places[at]]
        return [name for name in places if name is not None]
    steady = [name for name in newcomers if membership.strikes_of(membership.nodes[name].host) < _STRIKES_THAT_AVOID]
    at_most = policy.least if policy.is_fixed else policy.most
    chosen = [*survivors, *steady][:at_most]
    taken = set(chosen)
    chosen += [name for name in newcomers if name not in taken][: max(0, policy.least - len(chosen))]
    return sorted(chosen, key=place)
