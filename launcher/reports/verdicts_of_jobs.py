"""What the nodes of a job have found together of a failure, as the events of each of them tell it.

The folder of that incident lies on one node. Where it is missing, these few facts are what is known of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.records.verdicts import listed

__all__ = ["JobVerdict", "verdict_in"]

_KINDS = ("failure", "hang", "lost", "request")


class JobVerdict(NamedTuple):
    """Who is to blame, by what all nodes have seen."""

    kind: str | None
    culprits: tuple[int, ...]
    """Ranks."""
    nodes: tuple[str, ...]
    """The hosts of the culprits, one for each; without culprits, the nodes that are to blame as a whole."""
    folder: str | None
    """Where the incident was written, on the node that has gathered it; None where it could not be."""
    gathered_on: str

    def host_of(self, index: int) -> str:
        """Return the host of a culprit, by its index; empty where that is not told."""
        return self.nodes[index] if len(self.nodes) == len(self.culprits) else ""


def verdict_in(event: Mapping[str, Any]) -> JobVerdict:
    """Return what an event ``job_incident`` tells; what is damaged in it is left out."""
    kind, folder, host = event.get("kind"), event.get("folder"), event.get("gathered_on")
    return JobVerdict(
        kind=kind if kind in _KINDS else None,
        culprits=tuple(rank for rank in listed(event.get("culprits")) if type(rank) is int),
        nodes=tuple(name for name in listed(event.get("nodes")) if isinstance(name, str) and name),
        folder=folder if isinstance(folder, str) and folder else None,
        gathered_on=host if isinstance(host, str) else "",
    )
