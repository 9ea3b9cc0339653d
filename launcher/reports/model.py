"""Everything that a report shows, as typed values: what is read and computed once, and shown in several ways.

All times are seconds (floats) since the story's begin, which is when its first launcher began, unless a name or a
docstring says otherwise. Each node's times come from its own monotonic clock; between nodes they are aligned by the
wall clock, for display only. Ranks are global ranks. A value that the run did not write down is None and is shown as
unknown, never as zero. Nothing is computed from these values when they are shown, but for roundings and units.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.reports.model_costs import (
    CATEGORIES,
    Category,
    Ledger,
    LedgerEntry,
    Limit,
    RankLedger,
    Recommendation,
    SlowRank,
)
from launcher.reports.model_incidents import FoldedStack, Incident, NearMiss, Suspect

__all__ = [
    "CATEGORIES",
    "DOWN",
    "IDLE",
    "OUT_OF_SECTION",
    "SECTION",
    "SPAN_KINDS",
    "STARTING",
    "STOPPING",
    "UNSEEN",
    "Category",
    "FoldedStack",
    "Generation",
    "Incident",
    "Ledger",
    "LedgerEntry",
    "Limit",
    "NearMiss",
    "Node",
    "Part",
    "Rank",
    "RankLedger",
    "Recommendation",
    "Report",
    "Run",
    "SlowRank",
    "Span",
    "Suspect",
    "wall_seconds",
]

SECTION = "section"
OUT_OF_SECTION = "out of section"
STARTING = "starting"
STOPPING = "stopping"
DOWN = "down"
IDLE = "idle"
UNSEEN = "not seen"
SPAN_KINDS = {
    SECTION: "most of the time was spent in the section that is named",
    OUT_OF_SECTION: "most of the time was spent in no section",
    STARTING: "started, and no step has begun yet",
    STOPPING: "its group had failed or was asked to end, and it had not ended yet",
    DOWN: "no process: between two generations, or before the first",
    IDLE: "no more sign of progress, and its group still ran",
    UNSEEN: "nothing was written down of it",
}
"""What a :class:`Span` may be, in the order of a legend."""


class Run(NamedTuple):
    """One job of one launcher per node; ``ft_autoresume`` makes several of one training."""

    name: str
    """Of its folder."""
    folders: tuple[str, ...]
    """Log folders, one or one of each node."""
    began: float | None
    """None where nothing of it can be read (:attr:`is_unread`); so are the other times."""
    ended: float | None
    """None while it is going on, and where nobody has said that it ended (:attr:`is_running` tells which)."""
    last_seen: float | None
    """When the last line was written."""
    is_running: bool
    """No end was written, and a launcher of it lives, or lines are still being written."""
    outcome: str | None
    """``succeeded``, ``failed``, ``broken off``, ``ended by SIGTERM``; None where no end was written. Of several nodes
    the worst one, without those that were lost."""
    exit_code: int | None
    why: str | None
    """Why it was given up."""
    world_size: int | None
    """How many ranks its largest generation had; None where that was not written down."""
    nodes: int
    restarts: int
    """How many generations followed another one."""
    began_at: str | None
    """Wall clock, ISO 8601 with the time zone."""
    nodes_lost: int = 0
    """On how many of its nodes the launcher has ended without a word, while others went on."""
    is_about: bool = False
    """Events of it are missing, or those of a node: its ranks, nodes and restarts are what the rest tells."""
    is_unread: bool = False
    """Its folder was named, and nothing in it can be read. It stands where it began, or last if that is not known."""
    may_run: bool = False
    """Its last line is young, and the events of a launcher are missing: it is not known whether it still runs."""
    is_begin_about: bool = False
    """The first lines of a launcher are missing: it may have begun before."""
    is_length_about: bool = False
    """When it began, or when it ended, is not known: lines of its launchers are missing."""
    is_end_about: bool = False
    """Its last lines may be on no disk, since nobody has said that it ended, and it does not run: there may have been
    more restarts and incidents."""
    is_of_incidents: bool = False
    """Nothing but its incidents is left: its times go from the first to the last of these, and how long it took is not
    known."""

    @property
    def seconds(self) -> float | None:
        """How long it took, or until its last line; None where that is not known."""
        end = self.ended if self.ended is not None else self.last_seen
        return None if self.began is None or end is None else end - self.began


class Node(NamedTuple):
    """One machine, or one launcher where several run on the same machine at the same time."""

    name: str
    """Unique in a report."""
    ranks: tuple[int, ...]
    """That have run there."""
    runs: tuple[int, ...]
    """Indices into :attr:`Report.runs`."""
    clock_shift: float
    """Seconds by which its clock may differ from the first node's, as far as generations that began together show it;
    0 for the first."""


class Generation(NamedTuple):
    """The ranks that one (re)start has brought to life."""

    run: int
    """Index into :attr:`Report.runs`."""
    number: int
    """Within its run, from 0."""
    began: float
    """When the first node has started its ranks."""
    first_step: float | None
    """When its first step began; None where none did, or it is not known."""
    seen: float | None
    """When its failure was seen first; None without a failure."""
    ended: float | None
    """When the last node's ranks had ended; None where that is not known."""
    world_size: int
    iteration: int | None
    """The highest iteration that a rank has begun."""
    done: int | None
    """The highest iteration that every rank has done, or that the checkpoint holds from which a later one went on."""
    resumed_from: int | None
    """Iteration of the checkpoint that was loaded."""
    why: str | None
    """Why it ended: the incident's reason, or ``finished``; None while it runs and where it is not known."""
    incident: int | None
    """Index into :attr:`Report.incidents` of what ended it."""
    repeated: int | None
    """How many of its iterations were done again later; 0 where nothing was lost, None where that is not known."""


class Part(NamedTuple):
    """A share of a span's time."""

    section: str | None
    """None for out of section."""
    seconds: float
    closed: int
    """How many closings are aggregated here; 0 where it was only open."""


class Span(NamedTuple):
    """A stretch of one rank's time."""

    start: float
    end: float
    kind: str
    """One of :data:`SPAN_KINDS`."""
    section: str | None
    """The section with most of the time, where the kind is ``section``; where it is ``idle``, the one that was open."""
    generation: int | None
    """Index into :attr:`Report.generations`."""
    iteration: int | None
    """The highest that was reported by the end of the span."""
    parts: tuple[Part, ...]
    """What the time was spent on, longest first; empty but for ``section`` and ``out of section``. Sections of one rank
    may be open at the same time, so the parts may come to more than the span."""


class Rank(NamedTuple):
    """One rank's way through time on one node. Its spans do not overlap, are in order, and leave no gap.

    Where ranks are numbered anew, as after the loss of a node, a rank has one of these for each node that it was on.
    """

    rank: int
    node: str
    local_rank: int | None
    """Which it was there last."""
    spans: tuple[Span, ...]


class Report(NamedTuple):
    """The whole story."""

    title: str
    """The run's name; of several, the first and the number of the others."""
    made_at: str
    """ISO 8601: when this report was made."""
    began_at: str
    """ISO 8601."""
    began_epoch: float
    """Seconds since 1970 of the story's begin, by the first node's wall clock."""
    seconds: float
    """From the story's begin to its end, or to its last line while it is going on, by the wall clock: the length of the
    timeline. Launchers that have started no rank in a run in which others have make it no longer. On several nodes
    :attr:`Ledger.wall_seconds` may be a second less, since launchers do not begin and end at the same moment, or differ
    by more where the wall clocks do."""
    is_running: bool
    runs: tuple[Run, ...]
    nodes: tuple[Node, ...]
    generations: tuple[Generation, ...]
    """Of all runs, in the order of time."""
    ranks: tuple[Rank, ...]
    """By node, in the order of the ranks that each had first, then by number; their spans are aggregated so that there
    are at most some 20,000 in all."""
    incidents: tuple[Incident, ...]
    near_misses: tuple[NearMiss, ...]
    limits: tuple[Limit, ...]
    """Least room first."""
    slow_ranks: tuple[SlowRank, ...]
    """Slowest first."""
    ledger: Ledger
    recommendations: tuple[Recommendation, ...]
    notes: tuple[str, ...]
    """What could not be read, and what that means for the figures."""
    lacks_runs: bool = False
    """A run of the training is missing: its folder was not named, or nothing in it can be read. All counts are about
    right only."""
    is_length_about: bool = False
    """When it began, or when it ended, is not known, so its length is about right only."""

    @property
    def is_about(self) -> bool:
        """Whether there may have been more ranks and nodes than are known."""
        return self.lacks_runs or any(run.is_about for run in self.runs)

    @property
    def is_end_about(self) -> bool:
        """Whether there may have been more restarts and incidents than are known."""
        return self.is_about or any(run.is_end_about for run in self.runs)


def wall_seconds(report: Report) -> float:
    """Return how long a story took; of one run, what the rows of its ledger add up to."""
    is_one = sum(not run.is_unread for run in report.runs) == 1 and bool(report.ledger.entries)
    return report.ledger.wall_seconds if is_one else report.seconds
