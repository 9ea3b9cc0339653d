"""What the leader tells each node: the same for all but for the node's own place."""

from __future__ import annotations

from itertools import accumulate

from launcher.nodes.membership import Membership, Phase
from launcher.nodes.session_messages import View

__all__ = ["Views"]


class Views:
    """Views of one membership; what they share is computed once for each of its versions.

    Args:
        membership: What is agreed.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._shared: View | None = None
        self._places: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> View:
        """Return what a node is to be told."""
        membership = self._membership
        if self._shared is None or self._shared.version != membership.version:
            self._shared = self._make()
        place = self._places.get(name)
        if place is None:
            return self._shared
        return self._shared._replace(group_rank=place[0], first_rank=place[1])

    def _make(self) -> View:
        membership = self._membership
        host, port = membership.store or ("", 0)
        members, slots = (membership.members, membership.slots) if membership.phase == Phase.RUNNING else ((), ())
        firsts = accumulate(slots, initial=0)
        self._places = {name: (at, first) for (at, name), first in zip(enumerate(members), firsts, strict=False)}
        return View(
            version=membership.version,
            generation=membership.generation,
            phase=membership.phase,
            group_rank=None,
            group_size=len(members),
            first_rank=0,
            world_size=sum(slots),
            store_host=host,
            store_port=port,
            failures=membership.failures,
            why=membership.why,
            may_save=membership.may_save,
            exit_code=membership.exit_code,
        )
