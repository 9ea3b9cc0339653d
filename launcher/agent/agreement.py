"""What the agent asks a rendezvous beyond torch's ``RendezvousHandler``: who fails, finishes, goes, or is cut off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from launcher.nodes.plane import FailureListener
from resilience_core.protocol.cell_view import CellView

__all__ = ["LOOK_SECONDS", "FailureExchange", "GenerationRendezvous", "TorchAgreement"]

LOOK_SECONDS = 0.1


class FailureExchange(Protocol):
    """How nodes tell each other of failures; no call blocks (:mod:`launcher.nodes.gathering`)."""

    def listen(self, listener: FailureListener) -> None:
        """Have what the other nodes say told to somebody."""

    def suspect(self, generation: int) -> None:
        """Have the other nodes look at their ranks."""

    def looked(
        self, generation: int, came_back: tuple[int, ...] = (), *, only_waits: bool = False, is_brief: bool = False
    ) -> None:
        """Say that this node has looked at its ranks.

        Args:
            generation: Which.
            came_back: Who came back here (:mod:`launcher.monitor.comebacks`).
            only_waits: Ranks are late that wait in a collective, and nobody here is to blame.
            is_brief: It was asked only who came back since.
        """

    def give_account(self, generation: int, text: str) -> None:
        """Say what this node has seen of its ranks in a generation that is over."""

    def decided(self, generation: int, text: str) -> None:
        """Tell all nodes what has happened."""


class GenerationRendezvous(Protocol):
    """What the agent needs beyond torch's ``RendezvousHandler``."""

    generation: int
    """Number of the current generation, from 0; the same on all nodes."""
    failures: int
    """Generations that ended in a failure; the same on all nodes after each round."""

    descriptors: tuple[int, ...]
    """Readable when other nodes have something to say; none where they are asked every ``look_seconds`` alone."""
    exchange: FailureExchange | None
    """By which nodes tell each other of failures; None on one node."""
    place: tuple[int, int] | None
    """Global rank of this node's first rank and size of the world; None where torch's agents find out by a store."""

    def ended_by_peer(self) -> str | None:
        """Return why another node has ended the job, None while it has not."""

    def end(self, why: str) -> None:
        """Tell the other nodes that the job has ended."""

    def prepare(self) -> None:
        """Do ahead, while nothing is in a hurry, what the next rendezvous would have to wait for."""

    def note_failure(self, why: str) -> None:
        """Count a generation that ended in a failure here, and tell the other nodes."""

    def why_over(self) -> str:
        """Return why the generation is over, as another node has said; empty where nobody has."""
        ...

    def finished(self) -> bool:
        """Say that every rank of this node has ended with 0; return whether nobody else is waited for."""
        ...

    def unhealthy(self) -> str | None:
        """Return what is wrong with this node, None while nothing is."""
        ...

    def is_cut_off(self) -> bool:
        """Return whether this node may run no rank, since it hears nothing of the others."""
        ...

    def note_cut_off(self) -> None:
        """Take this node's ranks for gone, by no fault of theirs: it waits until it can take part again."""

    def note_saves(self, views: Callable[[], Mapping[int, CellView]]) -> None:
        """Tell the other nodes which checkpoint all ranks of this one have saved, where they want to know."""

    def leaving(self, why: str) -> None:
        """Say that this node is about to stop its ranks, and to leave."""

    def leave(self, why: str, *, is_excluded: bool) -> None:
        """Leave the job, with no rank running; the others may go on."""

    def failed_elsewhere(self) -> bool:
        """Return whether another node has told of a failure in this generation."""
        ...

    def told_of_failure_ns(self) -> int:
        """Return when another node has told of one (``CLOCK_MONOTONIC``); 0 where that is not known without asking."""
        ...

    def job_has_begun(self) -> bool:
        """Return whether a generation of the job has been formed, as far as this node knows."""
        ...

    @property
    def has_peers(self) -> bool:
        """Return whether nodes could join or leave, so that somebody must ask now and then."""
        ...

    @property
    def look_seconds(self) -> float:
        """How often to ask."""
        ...


class TorchAgreement:
    """What a rendezvous answers where torch's own means are all that nodes agree by."""

    descriptors: tuple[int, ...] = ()
    exchange: FailureExchange | None = None
    place: tuple[int, int] | None = None

    def why_over(self) -> str:
        """See :class:`GenerationRendezvous`."""
        return ""

    def finished(self) -> bool:
        """See :class:`GenerationRendezvous`; torch's agent waits in its exit barrier."""
        return True

    def told_of_failure_ns(self) -> int:
        """See :class:`GenerationRendezvous`; a store would have to be asked."""
        return 0

    def job_has_begun(self) -> bool:
        """See :class:`GenerationRendezvous`; nobody would know."""
        return False

    def unhealthy(self) -> str | None:
        """See :class:`GenerationRendezvous`; nobody looks."""
        return None

    def is_cut_off(self) -> bool:
        """See :class:`GenerationRendezvous`; nobody would know."""
        return False

    def note_cut_off(self) -> None:
        """See :class:`GenerationRendezvous`."""

    def note_saves(self, views: Callable[[], Mapping[int, CellView]]) -> None:
        """See :class:`GenerationRendezvous`; nobody wants to know."""

    def leaving(self, why: str) -> None:
        """See :class:`GenerationRendezvous`."""

    def leave(self, why: str, *, is_excluded: bool) -> None:
        """See :class:`GenerationRendezvous`. The rendezvous stays open: others may go on, or this node come back."""
