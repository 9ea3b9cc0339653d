"""Reports of a simulated job: the simulator's timings through all of scoring, to a log that can be drawn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from straggler.errors import ReportLogError
from straggler.exchange.gathered import GatheredWindows, RowMatrix
from straggler.measurement.measured import STATE_FIELDS, Family
from straggler.measurement.name_table import NameTable
from straggler.reporting.report import Report
from straggler.reporting.report_log import ReportLog
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings
from straggler.simulation.simulator import SimulatedJob, Simulation

__all__ = ["reports", "write_log"]

_WRITE_SECONDS = 10.0


def reports(job: SimulatedJob, *, interval_seconds: float = 60.0) -> Iterator[Report]:
    """Yield each window of a simulated job as a report."""
    names = NameTable()
    hashes = np.array(sorted(names.add(f"section {row}") for row in range(job.sections)), dtype=np.uint64)
    scorer = Scorer(job.ranks, DetectorSettings(scores_to_compute=["relative_perf_scores"]))
    nodes = [f"node-{rank // job.ranks_per_node:04d}" for rank in range(job.ranks)]
    none = np.zeros((0, job.ranks))
    empty = RowMatrix(np.zeros(0, np.uint64), none, none, none, np.zeros(0, bool), none, none, none)
    for sequence, medians in enumerate(Simulation(job)):
        med = medians.astype(np.float64)
        num, unknown = np.full(med.shape, float(job.samples)), np.full(med.shape, np.nan)
        blocks = dict.fromkeys(Family, empty)
        blocks[Family.SECTION] = RowMatrix(
            hashes, med, med * num, num, np.zeros(len(hashes), bool), med, unknown, unknown
        )
        gathered = GatheredWindows(
            job.ranks,
            np.ones(job.ranks, bool),
            nodes,
            np.zeros(job.ranks, np.int64),
            np.full((job.ranks, len(STATE_FIELDS)), np.nan),
            np.full(job.ranks, interval_seconds),
            0,
            blocks,
            {},
            np.full(job.ranks, sequence),
        )
        yield Report(
            scores=scorer.score(gathered),
            gathered=gathered,
            name_of=names.get,
            sequence=sequence,
            rank=0,
            report_seconds=[interval_seconds] * (sequence + 1),
            wall_time=1.7e9 + interval_seconds * sequence,
        )


def write_log(job: SimulatedJob, path: str | os.PathLike[str]) -> None:
    """Append all reports of a simulated job to a log.

    Raises:
        ReportLogError: They cannot be written.
    """
    log = ReportLog(path)
    try:
        for report in reports(job):
            log.append(report)
            log.flush(_WRITE_SECONDS)
            if log.lost_because:
                raise ReportLogError(f"the reports of the simulated job were not written to {path}: {log.lost_because}")
    finally:
        log.close()
