"""What voters say to each other; fields are those of the Raft paper (figure 2) unless they say otherwise.

``job`` is the job that the sender belongs to. :class:`launcher.nodes.protocol.NodeProtocol` sets it, and hands on
nothing of another job: two jobs have the same terms and indices, and their logs have nothing in common.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from launcher.nodes.raft_log import Entry, Snapshot

__all__ = ["Append", "Appended", "Install", "RaftMessage", "RequestVote", "TimeoutNow", "Vote"]


class RequestVote(NamedTuple):
    """A request for a vote.

    Args:
        term: The candidate's, or the one that it would stand in where it only asks ahead.
        last_index: Of its log.
        last_term: Of its log.
        is_ahead: It asks whether it would be elected (PreVote; dissertation, 9.6).
        is_asked: The leader has asked it to stand, or is known to be dead, so that nobody sticks to that leader
            (dissertation, 3.10).
    """

    term: int
    last_index: int
    last_term: int
    is_ahead: bool
    is_asked: bool
    job: str = ""


class Vote(NamedTuple):
    """The answer.

    Args:
        term: Of the voter, or the one asked for where the vote is granted ahead.
        is_granted: Whether the candidate has the vote.
        is_ahead: As in the request.
        contact_age_ns: How long ago the voter last acknowledged a leader; None where it never did. A new leader may
            derive until when leases of its predecessors run.
    """

    term: int
    is_granted: bool
    is_ahead: bool
    contact_age_ns: int | None
    job: str = ""


class Append(NamedTuple):
    """Entries, or none as a heartbeat.

    Args:
        term: The leader's.
        previous_index: Index before the first entry.
        previous_term: That entry's term.
        entries: What follows.
        commit_index: The leader's.
        stamp_ns: The leader's clock when it sent this; comes back with the answer.
    """

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    stamp_ns: int
    job: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; named tuples travel as lists."""
        return self._asdict()

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Append:
        """Make a message of its fields."""
        entries = tuple(Entry(*each) for each in fields.pop("entries"))
        return cls(entries=entries, **fields)


class Install(NamedTuple):
    """The leader's snapshot, for who is too far behind."""

    term: int
    snapshot: Snapshot
    stamp_ns: int
    job: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; named tuples travel as lists."""
        return self._asdict()

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Install:
        """Make a message of its fields."""
        last_index, last_term, voters, state = fields.pop("snapshot")
        return cls(snapshot=Snapshot(last_index, last_term, tuple(voters), state), **fields)


class Appended(NamedTuple):
    """The answer to :class:`Append` and :class:`Install`.

    Args:
        term: The follower's.
        is_match: Its log agrees up to ``last_index``; otherwise that is the last entry that may agree.
        last_index: See there.
        stamp_ns: As in the request.
    """

    term: int
    is_match: bool
    last_index: int
    stamp_ns: int
    job: str = ""


class TimeoutNow(NamedTuple):
    """Stand for election at once: the leader is about to leave (dissertation, 3.10)."""

    term: int
    job: str = ""


RaftMessage = RequestVote | Vote | Append | Install | Appended | TimeoutNow
