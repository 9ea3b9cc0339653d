"""What a node and the leader say to each other: the node all that it is, again and again; the leader what follows.

A node repeats its whole status, so that nothing is lost with a message, a connection or a leader.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from launcher.nodes.membership import NodeInfo

__all__ = ["Doing", "Elsewhere", "Granted", "Renew", "Status", "View"]


class Doing:
    """What a node is doing; plain words, since they travel."""

    IDLE = "idle"
    """It runs no rank and would take part."""
    RUNNING = "running"
    FINISHED = "finished"
    """All of its ranks have ended with 0."""
    FAILED = "failed"
    LEAVING = "leaving"
    """It will take part no more, and its ranks are being stopped; others may go on."""
    LEFT = "left"
    """It runs no rank and will take part no more."""
    ENDING = "ending"
    """It wants the job to end, for all."""


class Status(NamedTuple):
    """A node's word about itself.

    Args:
        doing: One of :class:`Doing`.
        generation: That it is doing it in.
        why: For ``failed``, ``leaving``, ``left`` and ``ending``.
        is_excluded: For ``left``: its host is to join no more.
        exit_code: For ``ending``.
        store_port: Where it would host the store of the next generation.
        saved: For ``running``: the iteration of the newest checkpoint that all of its ranks have saved in this
            generation; -1 where there is none, or nobody asks.
        has_finished: For ``left``: all of its ranks had ended with 0 before, so that those of others may go on.
        is_unhealthy: For ``left``: a health check has failed. It may come back, but counts as lost once more.
        may_save: For ``ending``: nothing has failed, so that ranks may save before they end.
    """

    doing: str
    generation: int
    why: str = ""
    is_excluded: bool = False
    exit_code: int = 0
    store_port: int = 0
    saved: int = -1
    has_finished: bool = False
    is_unhealthy: bool = False
    may_save: bool = False


class View(NamedTuple):
    """What one node must know of the job.

    Args:
        version: Of the membership.
        generation: The current one, from 0; -1 before the first.
        phase: See :class:`launcher.nodes.membership.Phase`.
        group_rank: This node's, None where it is no member.
        group_size: How many members there are.
        first_rank: Global rank of the node's first rank.
        world_size: Of the generation.
        store_host: Where the ranks meet.
        store_port: See ``store_host``.
        failures: Generations that have failed.
        why: Why the generation is over, or the job.
        may_save: Nothing has failed.
        exit_code: Of the job, once it has ended.
    """

    version: int
    generation: int
    phase: str
    group_rank: int | None
    group_size: int
    first_rank: int
    world_size: int
    store_host: str
    store_port: int
    failures: int
    why: str
    may_save: bool
    exit_code: int | None


class Renew(NamedTuple):
    """A node's request for a further lease.

    Args:
        info: The node.
        status: What it does.
        stamp_ns: The node's clock; comes back with the answer, and orders what a node has said.
        seen: Version of the last :class:`View` that it has.
        seen_voters: Index of the last list of voters that it has.
        job: Name of the job that the node belongs to; empty before it belongs to one.
    """

    info: NodeInfo
    status: Status
    stamp_ns: int
    seen: int
    seen_voters: int
    job: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; named tuples travel as lists."""
        return self._asdict()

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Renew:
        """Make a message of its fields."""
        return cls(info=NodeInfo(*fields.pop("info")), status=Status(*fields.pop("status")), **fields)


class Granted(NamedTuple):
    """The leader's answer, or its word where something has changed.

    Args:
        stamp_ns: Of the request; None where nobody asked.
        quorum_age_ns: How long ago the leader was still sure to be the leader.
        view: What has changed; None where the node has it.
        voters_index: Of the list of voters in force.
        voters: Their names and addresses, None where the node has them.
        job: Name of the leader's job.
        refusal: Why the node cannot take part; empty where it can, or nothing is known against it.
        is_excluded: It never will be.
    """

    stamp_ns: int | None
    quorum_age_ns: int
    view: View | None
    voters_index: int
    voters: dict[str, tuple[str, int]] | None
    job: str = ""
    refusal: str = ""
    is_excluded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields; named tuples travel as lists."""
        return self._asdict()

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Granted:
        """Make a message of its fields."""
        view, voters = fields.pop("view"), fields.pop("voters")
        return cls(
            view=None if view is None else View(*view),
            voters=None if voters is None else {name: (host, port) for name, (host, port) in voters.items()},
            **fields,
        )


class Elsewhere(NamedTuple):
    """The answer of somebody who does not lead.

    Args:
        leader: Who does, as far as it knows.
        address: Where that one listens.
        port: See ``address``.
        void: A job of the receiver's that has come to nothing: it belongs to none. Only who was that job's one voter,
            and has given it up, says so.
        job: Where the sender leads: its job.
        is_waiting: Where the sender leads: that job has come to nothing yet, and can be given up.
    """

    leader: str | None
    address: str
    port: int
    void: str = ""
    job: str = ""
    is_waiting: bool = False
