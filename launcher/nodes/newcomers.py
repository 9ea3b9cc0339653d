"""When a generation in which nothing has failed is ended, so that nodes that have come later take part.

By default never: they wait for the next restart. With ``joins_at_checkpoint`` after the next checkpoint, when no work
is lost but for the steps since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from launcher.nodes.membership import Membership, Phase
from launcher.nodes.policy import Policy, choose_members
from launcher.nodes.session_messages import Doing, Status

__all__ = ["Newcomers"]


class Newcomers:
    """Nodes that wait beside a running generation; volatile, the leader's own.

    Args:
        membership: What is agreed.
        policy: The user's.
    """

    def __init__(self, membership: Membership, policy: Policy) -> None:
        self._membership, self._policy = membership, policy
        self._before: tuple[int, int] | None = None
        """A generation, and the newest checkpoint that any of its nodes had when newcomers were first seen."""

    def may_take_part(self, ready: Collection[str], statuses: Mapping[str, Status]) -> bool:
        """Return whether all members have completed a checkpoint that none of them had when newcomers were first seen.

        A checkpoint is complete when every rank has its part. Nodes learn of each other at different moments, so the
        iterations are compared, and not the nodes' own counts.

        Args:
            ready: Nodes that run no rank and know what the generation is.
            statuses: What each node has said last.
        """
        membership = self._membership
        generation, members = membership.generation, membership.members
        if membership.phase != Phase.RUNNING or membership.finished or not self._would_grow(ready):
            self._before = None
            return False
        said = [statuses[name] for name in members if name in statuses]
        saved = [each.saved for each in said if (each.doing, each.generation) == (Doing.RUNNING, generation)]
        if len(saved) < len(members):
            return False
        if self._before is None or self._before[0] != generation:
            self._before = (generation, max(saved))
        return min(saved) > self._before[1]

    def _would_grow(self, ready: Collection[str]) -> bool:
        members = self._membership.members
        if not self._policy.joins_at_checkpoint or not any(name not in members for name in ready):
            return False
        return len(choose_members(self._membership, {*members, *ready}, self._policy)) > len(members)
