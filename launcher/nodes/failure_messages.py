"""What a node and the leader say to each other of a failure (:mod:`launcher.nodes.gathering`)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Account", "LookDone", "LookRequest", "OfFailure", "Proceed", "Story", "Suspicion"]


class Suspicion(NamedTuple):
    """A node's word to the leader: a rank is late, or has failed for a reason that another node must know of."""

    generation: int
    job: str = ""


class LookRequest(NamedTuple):
    """The leader's word that follows from it: look at your ranks now.

    Args:
        is_brief: All have looked already: only say who came back since.
        came_back: Of a brief one: who did until then, as in :class:`LookDone`.
    """

    generation: int
    job: str = ""
    is_brief: bool = False
    came_back: tuple[int, ...] = ()


class LookDone(NamedTuple):
    """A node's word to the leader: it has looked at its ranks, and keeps what it has seen.

    Args:
        came_back: Three numbers for each rank that was silent and has come back: rank, nanoseconds since then,
            nanoseconds for which it was silent.
        only_waits: It suspects ranks that wait in a collective, and nobody of its own is to blame.
        is_brief: It answers a brief request.
    """

    generation: int
    job: str = ""
    came_back: tuple[int, ...] = ()
    only_waits: bool = False
    is_brief: bool = False


class Proceed(NamedTuple):
    """The leader's word to who suspects a rank: all nodes have looked, and these ranks came back there."""

    generation: int
    job: str = ""
    came_back: tuple[int, ...] = ()


class Account(NamedTuple):
    """What a node has seen of its own ranks in a generation that is over, as text."""

    generation: int
    text: str
    job: str = ""


class Story(NamedTuple):
    """What has happened, as text."""

    generation: int
    text: str
    job: str = ""


OfFailure = Suspicion | LookRequest | LookDone | Proceed | Account | Story
