"""Jobs: the durations of every step of every rank, and the windows that the ranks would report.

A duration is the row's usual seconds, times the factor of each noise of the job, times the stage's factor, times that
of the fault. Every row has processes of its own. The job is seen in one of three ways:

- ``work``: each row is a section without a collective, and its duration is the rank's own work;
- ``arrival``: all ranks wait at the end of each step for the slowest of them. What is measured is the arrival gap,
  which is the work of all rows together, and the synchronous section ``sync``, which lasts until the slowest has come;
- ``both``: the rows and these two.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from benchmarks.fleet.faults import Fault, Healthy, Struck
from benchmarks.fleet.noise import Floats, Noise, Shape
from benchmarks.fleet.summaries import Statistics, summaries

__all__ = ["SYNC", "VIEWS", "Job", "Kind", "Row", "Spec", "Window", "generator"]

VIEWS = ("work", "arrival", "both")
SYNC = "sync"
_COLLECTIVE_SHARE = 0.03
"""What the collective itself takes, as a share of the step's usual time."""
_COLLECTIVE_NOISE = 0.05
_HEALTHY = Healthy()


@attrs.frozen
class Row:
    """One kind of work in each step.

    Args:
        name: Of the section.
        seconds: Usual duration.
    """

    name: str
    seconds: float = 0.3


@attrs.frozen
class Kind:
    """What a row of a window holds.

    Args:
        name: Of the section.
        family: ``"section"`` or ``"arrival"``.
        synchronous: The section contains a collective, so its duration is a wait.
    """

    name: str
    family: str = "section"
    synchronous: bool = False

    @property
    def is_work(self) -> bool:
        """Whether the duration is the rank's own work."""
        return not self.synchronous


@attrs.frozen(kw_only=True)
class Spec:
    """A kind of job.

    Args:
        name: Of the scenario; a part of the seed.
        ranks: Ranks.
        windows: Windows.
        steps: Steps in a window.
        per_node: Ranks on a node.
        rows: Work in each step.
        view: One of :data:`VIEWS`.
        noise: What healthy ranks do.
        fault: What the slow ones do.
        fault_rows: Names of the rows that it slows; empty: all.
        stages: Factor of each group of ranks, in order of rank; the groups are of equal size.
        declared: The ranks tell which group they are in.
        missing: Share of the windows that do not arrive.
    """

    name: str
    ranks: int = 64
    windows: int = 40
    steps: int = 60
    per_node: int = 8
    rows: tuple[Row, ...] = (Row("step"),)
    view: str = "work"
    noise: tuple[Noise, ...] = ()
    fault: Fault = _HEALTHY
    fault_rows: tuple[str, ...] = ()
    stages: tuple[float, ...] = (1.0,)
    declared: bool = False
    missing: float = 0.0

    @property
    def shape(self) -> Shape:
        """How large it is."""
        return Shape(self.ranks, self.steps, self.windows, self.per_node)


@attrs.frozen
class Window:
    """What the ranks report once.

    Args:
        number: Of the report.
        kinds: What each row is.
        present: Who has reported, shape ``(ranks,)``.
        groups: Declared group of each rank, shape ``(ranks,)``.
        nodes: Node of each rank, shape ``(ranks,)``.
        statistics: Of each row and rank, NaN where missing.
    """

    number: int
    kinds: tuple[Kind, ...]
    present: npt.NDArray[np.bool_]
    groups: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int64]
    statistics: Statistics

    @property
    def work(self) -> list[int]:
        """The rows that are a rank's own work."""
        return [row for row, kind in enumerate(self.kinds) if kind.is_work]


def generator(seed: int, *words: str) -> np.random.Generator:
    """Make the generator of one purpose, the same for the same seed and words."""
    return np.random.default_rng([seed, *(zlib.crc32(word.encode()) for word in words)])


class Job:
    """One job.

    Attributes:
        fault: What is wrong with it: the truth.
        stage: The true group of each rank, declared or not.

    Args:
        spec: Its kind.
        seed: Of everything that is drawn.
    """

    def __init__(self, spec: Spec, seed: int) -> None:
        if spec.view not in VIEWS:
            raise ValueError(f"the view is {spec.view!r}; expected one of {', '.join(VIEWS)}")
        self.spec = spec
        shape = spec.shape
        self._processes = [
            [
                kind.begin(shape, generator(seed, spec.name, row.name, str(place)))
                for place, kind in enumerate(spec.noise)
            ]
            for row in spec.rows
        ]
        self.fault: Struck = spec.fault.strike(shape, generator(seed, spec.name, "fault"))
        self.stage = np.arange(spec.ranks) * len(spec.stages) // spec.ranks
        self._random = generator(seed, spec.name, "job")

    def durations(self, number: int) -> Floats:
        """Return each rank's own work in each step of the next window, in seconds, shape ``(rows, ranks, steps)``."""
        spec = self.spec
        stage = np.array(spec.stages)[self.stage][:, None]
        slowed = self.fault.window(number, spec.steps)
        seconds = np.empty((len(spec.rows), spec.ranks, spec.steps))
        for place, row in enumerate(spec.rows):
            is_slowed = not spec.fault_rows or row.name in spec.fault_rows
            seconds[place] = row.seconds * stage * (slowed if is_slowed else 1.0)
            for process in self._processes[place]:
                seconds[place] *= process.window(number)
        return seconds

    def windows(self) -> Iterator[Window]:
        """Yield every window."""
        spec = self.spec
        groups = self.stage if spec.declared else np.zeros(spec.ranks, dtype=np.int64)
        for number in range(spec.windows):
            kinds, seconds = self._seen(self.durations(number))
            present = self._random.random(spec.ranks) >= spec.missing
            seconds[:, ~present] = np.nan
            yield Window(number, kinds, present, groups, spec.shape.node_of, summaries(seconds))

    def _seen(self, work: Floats) -> tuple[tuple[Kind, ...], Floats]:
        kinds = tuple(Kind(row.name) for row in self.spec.rows)
        if self.spec.view == "work":
            return kinds, work
        gap = work.sum(axis=0)
        usual = sum(row.seconds for row in self.spec.rows)
        collective = _COLLECTIVE_SHARE * usual * np.exp(_COLLECTIVE_NOISE * self._random.standard_normal(gap.shape))
        wait = gap.max(axis=0) - gap + collective
        sync = (Kind(SYNC, synchronous=True), Kind(SYNC, "arrival"))
        both = np.stack([wait, gap])
        if self.spec.view == "arrival":
            return sync, both
        return (*kinds, *sync), np.concatenate([work, both])
