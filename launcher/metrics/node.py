"""What is known of one node now: its cells, the figures beside them, what its launcher has counted and written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from launcher.agent.exporter_settings import ExporterSettings
from launcher.agent.history import Told
from launcher.agent.shared_history import HistoryReader, NoHistoryError, Shared
from launcher.live.rank_cells import RankCells
from launcher.live.rank_look import RankLook
from launcher.metrics.log_reader import LogReader
from launcher.metrics.straggler_scores import StragglerScores
from launcher.metrics.totals import RankTotals, SectionTotals, Totals
from launcher.records.event_files import event_of
from launcher.records.figures_log import figures_of
from launcher.records.tail import Tail
from resilience_core.protocol.cell_layout import LIMITS_TEXT
from resilience_core.protocol.figures_read import SectionFigures
from resilience_core.protocol.limits_text import read_limits

__all__ = ["LimitNow", "Node", "NodeNow", "RankNow"]

_PATIENCE_SECONDS = 0.2
"""How long a scrape waits for the log folder; what it had read before is served then."""


_FIRST_PATIENCE_SECONDS = 30.0
"""The same for the first time, when all that a long run has written is read."""


class LimitNow(NamedTuple):
    """A limit in force."""

    kind: str
    """As in :mod:`resilience_core.protocol.limit_kinds`."""
    source: str
    seconds: float


class RankNow(NamedTuple):
    """One rank that runs."""

    look: RankLook
    limits: tuple[LimitNow, ...]


class NodeNow(NamedTuple):
    """A node at one moment."""

    seen_ns: int
    ranks: tuple[RankNow, ...]
    """Those whose cells can be read."""
    totals: tuple[tuple[int, int, RankTotals], ...]
    """Rank, local rank, and what it has done in all generations here."""
    told: Told | None
    """What the launcher has counted of its events; None where that could never be read."""
    lost: Mapping[str, int]
    """Lines that each log of the launcher lacks; empty where that could never be read."""
    slowdowns: Mapping[int, float]
    """By rank, on the node of rank 0."""
    straggler_reports: int | None
    """That were read; None while there is no log of them."""
    damaged: Mapping[str, int]
    """What could not be read so far, by what it was."""
    log_age_seconds: float


class Node:
    """Looks at the node that an exporter was started for.

    Args:
        settings: The exporter's.
    """

    def __init__(self, settings: ExporterSettings) -> None:
        self._history = HistoryReader(settings.history)
        self._shared: Shared | None = None
        self._totals = Totals()
        self._scores = StragglerScores()
        self._cells = RankCells(settings.run_folder)
        self._damaged: Counter[str] = Counter()
        self._reports = Tail(settings.straggler_log or "")
        files = {
            "figures_line": (Tail(settings.figures or ""), self._take_figures),
            "straggler_report": (self._reports, self._scores.take),
        }
        paths = {"figures_line": settings.figures, "straggler_report": settings.straggler_log}
        self._log = LogReader({what: files[what] for what, path in paths.items() if path})
        self._is_host = False
        """Whether rank 0, which writes the straggler reports, runs here."""

    def start(self) -> None:
        """Read what was written before, within a bound: counters that are served must not jump up afterwards."""
        self._log.start()
        self._log.refresh(_FIRST_PATIENCE_SECONDS)

    def look(self) -> NodeNow:
        """Look at the node. It waits for nothing but the log folder, and for that a fifth of a second at most."""
        self._log.refresh(_PATIENCE_SECONDS)
        with self._log.quiet():
            shared = self._read_history()
            told = None if shared is None else shared.told
            if told is not None:
                if told.run_folder is not None:
                    self._cells.move(told.run_folder)
                self._cells.end(told.over)
            found = self._cells.look()
            ranks = []
            for look in found.ranks:
                self._note_figures(look)
                if look.view is None or look.rank is None:
                    self._damaged["cell"] += 1
                else:
                    ranks.append(RankNow(look, _limits(look)))
            if ranks:  # else as in the generation before
                self._is_host = any(rank.look.rank == 0 for rank in ranks)
            return NodeNow(
                seen_ns=found.seen_ns,
                ranks=tuple(ranks),
                totals=tuple(self._totals.ranks()),
                told=told,
                lost={} if shared is None else shared.lost,
                slowdowns=dict(self._scores.slowdowns) if self._is_host else {},
                straggler_reports=self._scores.reports if self._reports.has_been_there else None,
                damaged=self._damaged + self._log.damaged + Counter(event=shared.not_taken if shared else 0),
                log_age_seconds=self._log.age_seconds,
            )

    def _read_history(self) -> Shared | None:
        """Return what the launcher has counted; what was read before, where it cannot be read now."""
        try:
            self._shared = self._history.read(time.monotonic_ns())
        except NoHistoryError:
            self._damaged["event"] += 1
        return self._shared

    def _note_figures(self, look: RankLook) -> None:
        if look.rank is None:
            return
        try:
            figures = self._cells.figures(look.local_rank)
        except ValueError:
            self._damaged["figures"] += 1
            return
        if figures is None:
            return
        totals = RankTotals.of(figures.first_iteration, figures.done, figures.passed, _sections(figures.sections))
        self._totals.note(look.generation, look.rank, look.local_rank, totals)

    def _take_figures(self, line: str) -> None:
        """Take the figures of a full line; of others the durations are missing, and newer ones are in shared memory."""
        found = figures_of({"node": "", "boot": "", **event_of(line)})
        for rank, each in found.ranks.items():
            if (details := each.details) is not None:
                totals = RankTotals.of(details.first_iteration, each.done, each.passed, _sections(each.sections))
                self._totals.note(found.generation, rank, details.local_rank, totals)


def _sections(figures: Mapping[str, SectionFigures]) -> dict[str, SectionTotals]:
    return {
        name: SectionTotals(section.took_ns, section.close_calls, section.durations)
        for name, section in figures.items()
    }


def _limits(look: RankLook) -> tuple[LimitNow, ...]:
    """Return the limits of a rank, the longest of those that share a name."""
    text = read_limits(look.cell.read_text(LIMITS_TEXT)) if look.cell is not None else None
    if text is None:
        return ()
    longest = {kind: max(entries, key=lambda entry: entry.seconds) for kind, entries in text.limits.items() if entries}
    return tuple(LimitNow(kind, entry.source, entry.seconds) for kind, entry in longest.items())
