"""What a report shows of failures and near misses; times and units are as in :mod:`launcher.reports.model`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FoldedStack", "Incident", "NearMiss", "Suspect"]


class FoldedStack(NamedTuple):
    """A stack that several ranks have in common."""

    thread: str
    frames: tuple[str, ...]
    """Innermost first, ``function (file:line)``."""
    own: int | None
    """Index of the innermost frame of the user's own code."""
    ranks: tuple[int, ...]
    is_culprits: bool
    """A culprit is among the ranks."""


class Suspect(NamedTuple):
    """A rank that is to blame."""

    rank: int
    node: str
    local_rank: int | None
    section: str | None
    """None for out of section."""
    iteration: int | None
    line: str | None
    """``function (file:line)``, the innermost line of the user's own code."""
    headline: str
    """One sentence: what happened to it."""
    message: str | None
    """The first line of its exception, or what the kernel has done to it."""
    open_seconds: float | None
    """How long the section was open when the failure was seen (a duration)."""
    limit_seconds: float | None
    stack: tuple[str, ...]
    """Frames of its main thread, innermost first."""


class Incident(NamedTuple):
    """One failure of the job."""

    number: int
    """From 1, in the order of time, through the whole story."""
    at: float
    """When it was seen first."""
    wall_time: str
    """ISO 8601."""
    run: int
    """Index into :attr:`Report.runs`."""
    generation: int
    """Number of the generation within the run."""
    kind: str
    """``hang``, ``failure``, ``lost`` (a node) or ``request``."""
    why: str
    """How the culprit was told from the others."""
    is_likely: bool
    """The culprit is not certain."""
    culprits: tuple[Suspect, ...]
    """Empty where nobody can be named."""
    nodes_to_blame: tuple[str, ...]
    """Nodes that are to blame as a whole."""
    victims: tuple[int, ...]
    """The other ranks whose state was written down."""
    stacks: tuple[FoldedStack, ...]
    """Culprits' first, then by number of ranks."""
    machine: tuple[str, ...]
    """What the machine tells, oldest first."""
    action: str
    report: str | None
    """Path of ``report.txt``."""
    late_seconds: float | None
    """From the passed limit to when it was seen (a duration); None for a failure."""
    cost_seconds: float | None
    """What it cost each rank on average: lost work, detection, stop, rendezvous, waiting and start (a duration)."""
    is_cost_about: bool
    """The cost rests on something that is missing: a row of the ledger that it is summed from is about right only."""
    repeated: int | None
    """How many iterations had to be done again for it."""


class NearMiss(NamedTuple):
    """A verdict that was taken back: the rank came back before it was signalled."""

    at: float
    run: int
    """Index into :attr:`Report.runs`."""
    generation: int | None
    rank: int
    node: str
    kind: str
    """Kind of limit: ``section step``, ``heartbeat``, ``out of section``, ``startup``."""
    limit_seconds: float
    late_seconds: float | None
    """By how much the limit was missed (a duration)."""
    is_late_at_most: bool = False
    """That is an upper bound, since it is not known exactly."""
