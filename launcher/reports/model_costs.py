"""What a report shows of costs, limits and slow ranks; times and units are as in :mod:`launcher.reports.model`."""

from __future__ import annotations

from typing import NamedTuple

from resilience_core.protocol.limit_kinds import section_name

__all__ = ["CATEGORIES", "Category", "Ledger", "LedgerEntry", "Limit", "RankLedger", "Recommendation", "SlowRank"]


class Category(NamedTuple):
    """One of the things that time is spent on."""

    key: str
    """For programs; never changes."""
    name: str
    """For people."""
    meaning: str
    """One sentence for people: from when to when."""


CATEGORIES = (
    Category("productive", "productive", "training steps that were kept"),
    Category(
        "checkpointing",
        "checkpointing",
        "closed sections 'checkpointing', without what steps went on for",
    ),
    Category("lost_work", "lost work", "what had been done and had to be done again"),
    Category("start", "start", "from the start of the processes to the first step"),
    Category("detection", "detection", "from the last sign of progress to when the failure was seen"),
    Category("stop", "stop", "from when the failure was seen until all ranks had ended"),
    Category("rendezvous", "rendezvous", "from when all ranks had ended to the start of the next ones"),
    Category("waiting", "waiting", "back-off before a restart, where starts kept failing"),
    Category(
        "idle",
        "idle at the end",
        "from the last sign of progress to the end of the launcher, or of ranks that wait",
    ),
    Category("between_runs", "between runs", "from the end of one launcher to the begin of the next one there"),
    Category(
        "absent",
        "not in the job",
        "before the launcher of a node began, after it was lost or had left, or without a rank in that place",
    ),
    Category("unknown", "unknown", "what the run has not written down"),
)
"""In the order in which they are shown. Together they are the whole wall time."""


_LITTLE_ROOM = 0.2


class Limit(NamedTuple):
    """One limit against what was observed. Seconds are durations."""

    kind: str
    """``section step``, ``heartbeat``, ``out of section``."""
    seconds: float | None
    """In force last, the least over the ranks; None where there is none."""
    seconds_most: float | None
    """The same, the greatest over the ranks."""
    source: str | None
    """``configured``, ``learned`` or ``default``."""
    longest: float | None
    """The longest that was observed and ended by itself; None where none has."""
    longest_rank: int | None
    typical: float | None
    """The median of what was observed, as far as their sum and the powers of two between which each lies tell it; None
    where it is not known."""
    room: float | None
    """(limit - longest) / limit, from minus infinity to 1; None where either is unknown. Below 0.2 it is close."""
    close_calls: int
    """How many took 80 % of the limit or more, and ended by themselves."""
    near_misses: int
    """Verdicts that were taken back."""
    samples: int
    """How many were observed; of heartbeats and of the time between sections, the longest of each rank and generation
    alone is known, and these are counted."""
    option: str
    """The command-line option that sets it."""
    is_known: bool = True
    """Whether it is known which limit is in force, or that none is: a rank that has opened a section for the first time
    tells of its limit some lines later."""
    is_about: bool = False
    """Figures are missing: there may have been longer durations, and more, than were observed."""
    is_typical_about: bool = False
    """There is a median, which is an estimate: single durations are not written down."""

    @property
    def are_maxima(self) -> bool:
        """Whether what was observed is the longest of each rank and generation, not every duration."""
        return section_name(self.kind) is None

    @property
    def is_close(self) -> bool:
        """Whether there is little room: close calls are counted from the same share."""
        return self.room is not None and self.room < _LITTLE_ROOM


class SlowRank(NamedTuple):
    """A rank that the straggler detector has called slow."""

    rank: int
    node: str
    slowdown: float
    """0.21: it takes 21 % longer than its peers; the worst report."""
    section: str | None
    reports: int
    """In how many reports it was slow."""
    of_reports: int
    since: float | None
    because: str
    source: str
    """Path of the file that says so."""


class LedgerEntry(NamedTuple):
    """What one category costs."""

    category: Category
    seconds: float
    """Average over the ranks (a duration)."""
    share: float
    """Of the wall time, 0 to 1."""
    rank_seconds: float
    """Sum over the ranks: what it costs in GPU time (a duration)."""
    is_about: bool
    """An interpolation is in it."""


class RankLedger(NamedTuple):
    """The same for one place of one rank: a device of a node."""

    node: str
    local_rank: int
    rank: int
    """Which it was last."""
    wall_seconds: float
    seconds: tuple[float, ...]
    """In the order of :data:`CATEGORIES`."""


class Ledger(NamedTuple):
    """Where the time went."""

    wall_seconds: float
    """From the begin to the end (or to the last line) of the launchers, averaged over the ranks (a duration), the time
    in which a node took no part in its run included. The entries add up to it."""
    rank_seconds: float
    """The same, summed over the ranks."""
    entries: tuple[LedgerEntry, ...]
    """In the order of :data:`CATEGORIES`; those that are zero are left out."""
    by_rank: tuple[RankLedger, ...]
    repeated: int | None
    """How many iterations had to be done again in the whole story; None where it is not known."""
    steps: int | None
    """How many iterations were passed and kept, with those whose step an exception has left if a later one has ended;
    None where it is not known."""
    step_seconds: float | None
    """Median over the ranks of the productive time for each kept iteration (a duration)."""
    is_count_about: bool = False
    """Of a node nothing was read, or its last lines are missing: its ranks may have done fewer iterations than the
    others, which are counted, or more."""
    is_wall_about: bool = False
    """When the job began, or when it ended, is not known; so the wall time is about right only."""


class Recommendation(NamedTuple):
    """Something to set, and why."""

    about: str
    """``checkpoint interval``, ``limit``."""
    text: str
    """A sentence or two for people: what to set, why, and how sure that is."""
    option: str | None
    """What to write on the command line; None where it is set in the script."""
    value: float | None
    """In :attr:`unit`; None where only a bound is known."""
    unit: str
    """``s``, ``steps``."""
    samples: int
    """From how many observations (failures, saves, durations)."""
    low: float | None
    high: float | None
    """Between which the value lies by what is known (95 %), in :attr:`unit`; None for unbounded."""
    is_about: bool = False
    """Something is missing of what it rests on, which the text says."""
