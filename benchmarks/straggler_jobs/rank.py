"""One rank of a job: its own work, slowed or not and measured beside the detector, and what it writes down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from benchmarks.straggler_jobs.words import write
from straggler import Detector, Report

_GROUP_TIMEOUT = timedelta(seconds=60)


class Work(NamedTuple):
    """How long a rank works, and how a slow one differs."""

    parts: Mapping[str, float]
    """Seconds of each part of a step."""
    factor: float = 2.0
    """How many times as long all parts of the slow rank take together; what is more lies in ``slow_part``."""
    slow_part: str = "forward"
    every: int = 1
    """The rank is slow in every n-th step."""
    slow_from: int = 0
    """The first step in which it is slow; the measured slowness is that of the steps from there on."""
    late_at: int = -1
    """The step before which it is late once."""
    late_seconds: float = 3.0
    burn: bool = False
    """Use processor time instead of sleeping."""
    weights: Mapping[int, float] = {}
    """How many times as long as others these ranks work by nature."""


class Rank:
    """What a job's loop works with.

    Args:
        number: Which rank this is.
        world_size: Of how many.
        slow: Whether it is the slow one.
        work: How long the parts of a step take.
        steps: How many of them.
        interval: Seconds between reports.
        seconds: Go on until then instead, as :meth:`goes_on` says.
        folder: Where the log of the reports and the words go.
    """

    def __init__(
        self,
        number: int,
        world_size: int,
        *,
        slow: bool,
        work: Work,
        steps: int,
        interval: float,
        seconds: float,
        folder: Path,
    ) -> None:
        self.number, self.world_size, self.steps_of_job, self.interval = number, world_size, steps, interval
        self.log, self.folder = folder / "reports.jsonl", folder
        self._slow, self._work, self._seconds = slow, work, seconds
        self._step, self._own, self._owns = 0, 0.0, list[tuple[float, float]]()
        self._tables, self._returned = list[str](), 0
        self._began = time.monotonic()

    def join(self) -> None:
        """Make the process group; rank 0's system chooses the port, and the others read it from a file."""
        file = self.folder / "port"
        options = {"timeout": _GROUP_TIMEOUT, "wait_for_workers": False}
        if self.number == 0:
            store = dist.TCPStore("127.0.0.1", 0, self.world_size, True, **options)
            (self.folder / "port.new").write_text(str(store.port))
            (self.folder / "port.new").rename(file)
        else:
            while not file.exists():
                time.sleep(0.002)
            store = dist.TCPStore("127.0.0.1", int(file.read_text()), self.world_size, False, **options)
        dist.init_process_group(
            "gloo", store=store, rank=self.number, world_size=self.world_size, timeout=_GROUP_TIMEOUT
        )

    def steps(self) -> Iterator[int]:
        """Yield the steps of the job, and be late where that is due."""
        while self._seconds or self._step < self.steps_of_job:
            self.begin_step()
            yield self._step
            self.end_step()

    def goes_on(self) -> float:
        """Return what rank 0 gives to a sum over all ranks: above 0 while a job that is bounded in time goes on."""
        is_over = self._seconds and time.monotonic() - self._began > self._seconds
        return float(self.number == 0 and not is_over)

    def begin_step(self) -> None:
        """Be late where that is due."""
        if self._slow and self._step == self._work.late_at:
            time.sleep(self._work.late_seconds)

    def end_step(self) -> None:
        """Note how long this rank's own work took."""
        self._owns.append((time.time(), self._own))
        self._own = 0.0
        self._step += 1

    def do(self, part: str) -> None:
        """Do a part of this rank's own work: sleep, or burn processor time."""
        seconds = self.seconds_of(part)
        began = time.perf_counter()
        if self._work.burn:
            # Processor time and not a count of instructions: two virtual cores may be one real one.
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                for _ in range(500):
                    pass
        else:
            time.sleep(seconds)
        self._own += time.perf_counter() - began

    def seconds_of(self, part: str) -> float:
        """Return how long a part of the step that goes on takes this rank."""
        work = self._work
        seconds = work.parts[part]
        is_slow = self._slow and self._step >= work.slow_from and self._step % work.every == work.every - 1
        if is_slow and part == work.slow_part:
            seconds += (work.factor - 1.0) * sum(work.parts.values())
        return seconds * work.weights.get(self.number, 1.0)

    def add_own(self, seconds: float) -> None:
        """Count what was done elsewhere as this rank's own work of the step."""
        self._own += seconds

    def start(self, **settings: Any) -> None:
        """Start the detector, which also appends each report to the log that the harness reads."""
        Detector.initialize(report_time_interval=self.interval, log_path=self.log, **settings)

    def report(self) -> None:
        """Call what is to be called in every iteration."""
        report = Detector.generate_report_if_interval_elapsed()
        if report is not None:
            self.keep(report)

    def keep(self, report: Report) -> None:
        """Keep what a report says to a person."""
        self._returned += 1
        if table := report.table():
            self._tables.append(table)

    def shut_down(self) -> None:
        """Stop the detector and keep its last reports."""
        for report in Detector.shutdown():
            self.keep(report)

    def write_word(self) -> None:
        """Write down what this rank measured and was told; the harness waits for it."""
        write(
            self.folder,
            self.number,
            {
                "owns": self._owns,
                "slow_from": self._work.slow_from,
                "tables": self._tables,
                "returned": self._returned,
            },
        )
