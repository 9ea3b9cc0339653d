"""The project's detector, asked as a user asks it: what its reports say of windows that another simulator made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.jobs import Kind, Window
from benchmarks.fleet.noise import Floats
from straggler.exchange.gathered import GatheredWindows, RowMatrix
from straggler.measurement.measured import STATE_FIELDS, Family
from straggler.measurement.name_table import NameTable, hash_name
from straggler.reporting.report import Report
from straggler.reporting.verdict import MATERIAL_SHARE
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings

__all__ = ["Ours", "gathered"]

Mask = npt.NDArray[np.bool_]


def gathered(window: Window) -> GatheredWindows:
    """Arrange a window as rank 0 does with what the ranks have sent."""
    ranks = len(window.present)
    measured = window.statistics.total.copy()
    elapsed = np.where(window.present, measured.sum(axis=0), np.nan)
    return GatheredWindows(
        ranks,
        window.present,
        [f"node{node}" for node in window.nodes.tolist()],
        window.groups,
        np.full((ranks, len(STATE_FIELDS)), np.nan),
        elapsed,
        0,
        {family: _block(window, family) for family in Family},
        {},
        np.where(window.present, 0, -1),
    )


def _block(window: Window, family: Family) -> RowMatrix:
    statistics = window.statistics
    word = {Family.SECTION: "section", Family.ARRIVAL: "arrival"}.get(family)
    rows = sorted((hash_name(kind.name), row) for row, kind in enumerate(window.kinds) if kind.family == word)
    places = [row for _, row in rows]

    def of(values: Floats) -> Floats:
        return np.where(window.present, values[places], 0.0)

    return RowMatrix(
        np.array([number for number, _ in rows], dtype=np.uint64),
        statistics.med[places],
        of(statistics.total),
        of(statistics.num),
        np.array([window.kinds[row].synchronous for row in places], dtype=bool),
        np.where(window.present, statistics.avg[places], np.nan),
        np.where(window.present, statistics.med_error[places] / statistics.med[places], np.nan),
        np.where(window.present, statistics.avg_error[places] / statistics.avg[places], np.nan),
    )


class Ours:
    """The reports of one job, with default settings.

    Attributes:
        stopping: The ranks for which ``stop_if_detected`` would end the job in the last report: SLOW against the peers
            or against their own past in a section, and losing time that matters.
        confidence: What the last report says of how sure it is, by rank that it names.

    Args:
        ranks: Ranks in the job.
        kinds: What the rows are.
    """

    def __init__(self, ranks: int, kinds: tuple[Kind, ...]) -> None:
        self._ranks = ranks
        self._names = NameTable()
        for kind in kinds:
            self._names.add(kind.name)
        self._scorer = Scorer(ranks, DetectorSettings(node_name="node0"))
        self._seconds: list[float] = []
        self.stopping: Mask = np.zeros(ranks, dtype=bool)
        self.confidence: dict[int, float] = {}

    def see(self, window: Window) -> Mask:
        """Score a window; return which ranks the report calls SLOW, shape ``(ranks,)``."""
        known = gathered(window)
        self._seconds.append(60.0)
        report = Report(
            scores=self._scorer.score(known),
            gathered=known,
            name_of=self._names.get,
            sequence=window.number,
            rank=0,
            report_seconds=self._seconds[-64:],
        )
        named = np.zeros(self._ranks, dtype=bool)
        self.confidence = {}
        for verdict in report.stragglers():
            named[verdict.rank] = True
            self.confidence[verdict.rank] = verdict.confidence
        self.stopping = np.zeros(self._ranks, dtype=bool)
        found = report.identify_stragglers()
        for sections in (found["straggler_sections_relative"], found["straggler_sections_individual"]):
            for rank in {known.rank for ranks in sections.values() for known in ranks}:
                self.stopping[rank] = report.lost_share(rank) >= MATERIAL_SHARE
        return named
