"""Simulator of a job's timings with known truth.

What a window's median is made of, per rank and section::

    base x (1 + constant of the rank) x (1 + constant of rank and section) x slowdown x median of noisy samples

The samples are drawn one by one for small jobs and not for large ones: the median of ``n`` samples of relative
noise ``s`` is normal with deviation ``1.2533 s / sqrt(n)`` to within a per cent at n >= 20, and ``tests`` check the
two against each other. Outliers in the samples (0.1 % are tenfold) move such a median by less than its own noise.

The spread between ranks is constant in time. ``spread_shape="normal"`` takes the spread as a standard deviation,
the harder reading: among 10,000 healthy ranks the slowest is then 8 % slower than the middle, for ever, and no
rule in the world can tell it, at the first report, from a rank that was made slower by 10 %. ``"uniform"`` takes
it as the largest deviation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt

from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest
from straggler.setting_checks import check_flag, check_number, check_whole, refuse

__all__ = ["SLOWDOWN_KINDS", "SimulatedSlowdown", "SlowdownKind", "SimulatedJob", "Simulation", "truth"]

SlowdownKind = Literal["slow_rank", "slow_node", "slow_link", "drift", "transient", "bogus_clock"]
SLOWDOWN_KINDS: tuple[SlowdownKind, ...] = ("slow_rank", "slow_node", "slow_link", "drift", "transient", "bogus_clock")
SpreadShape = Literal["normal", "uniform"]
SPREAD_SHAPES: tuple[SpreadShape, ...] = ("normal", "uniform")

Float32 = npt.NDArray[np.float32]


def _check_kind(_: object, attribute: attrs.Attribute[SlowdownKind], value: SlowdownKind) -> None:
    if value not in SLOWDOWN_KINDS:
        raise ConfigError(f"kind of slowdown is {value!r}{nearest(str(value), SLOWDOWN_KINDS)}")


def _check_shape(_: object, attribute: attrs.Attribute[SpreadShape], value: SpreadShape) -> None:
    if value not in SPREAD_SHAPES:
        raise ConfigError(f"SimulatedJob.spread_shape is {value!r}{nearest(str(value), SPREAD_SHAPES)}")


def _to_tuple(given: Iterable[SimulatedSlowdown]) -> tuple[SimulatedSlowdown, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise ConfigError(f"SimulatedJob.slowdowns is {given!r}; expected a tuple of SimulatedSlowdown(...)") from None


def _check_slowdowns(
    instance: SimulatedJob, attribute: attrs.Attribute[tuple[SimulatedSlowdown, ...]], value: tuple[object, ...]
) -> None:
    for slowdown in value:
        if not isinstance(slowdown, SimulatedSlowdown):
            raise refuse(instance, attribute, value, "SimulatedSlowdown(...) each")
        if slowdown.rank >= instance.ranks:
            raise ConfigError(f"a slowdown is on rank {slowdown.rank}; expected a rank from 0 to {instance.ranks - 1}")


@attrs.frozen(kw_only=True)
class SimulatedSlowdown:
    """One deviation from healthy timings.

    Args:
        kind: ``slow_rank``: all sections; ``slow_node``: all ranks of a node; ``slow_link``: one section (the
            last) of a node's ranks; ``drift``: grows from nothing over ``windows``; ``transient``: lasts for
            ``windows`` and is no straggler; ``bogus_clock``: reports ``1 + slowdown`` (give -0.5) of the true time.
        rank: The rank, or any rank of the node.
        slowdown: 0.1 is 10 % longer.
        onset: The window in which it begins.
        windows: See ``kind``.
    """

    kind: SlowdownKind = attrs.field(validator=_check_kind)
    rank: int = attrs.field(validator=check_whole(0))
    slowdown: float = attrs.field(default=0.1, validator=check_number(-0.999, 1e6))
    onset: int = attrs.field(default=0, validator=check_whole(0))
    windows: int = attrs.field(default=2, validator=check_whole(1))


@attrs.frozen(kw_only=True)
class SimulatedJob:
    """A simulated job.

    Args:
        ranks: 2 to 1,000,000.
        sections: Rows.
        windows: Reports.
        noise: Relative standard deviation of one sample.
        samples: Samples in a window.
        spread: Constant difference between ranks, see ``spread_shape``.
        spread_shape: ``normal`` or ``uniform``.
        section_spread: Constant difference of a rank between its sections, a standard deviation.
        outliers: Share of samples that are tenfold.
        ranks_per_node: For nodes.
        slowdowns: What goes wrong.
        exact: Draw every sample; None: while a window has at most a million of them.
        seed: Equal seeds give equal timings.

    Raises:
        ConfigError: A setting is out of range; the message names it.
    """

    ranks: int = attrs.field(default=512, validator=check_whole(2, 1_000_000))
    sections: int = attrs.field(default=4, validator=check_whole(1))
    windows: int = attrs.field(default=12, validator=check_whole(1))
    noise: float = attrs.field(default=0.05, validator=check_number(0.0, 1e6))
    samples: int = attrs.field(default=20, validator=check_whole(1))
    spread: float = attrs.field(default=0.02, validator=check_number(0.0, 1e6))
    spread_shape: SpreadShape = attrs.field(default="normal", validator=_check_shape)
    section_spread: float = attrs.field(default=0.0, validator=check_number(0.0, 1e6))
    outliers: float = attrs.field(default=0.001, validator=check_number(0.0, 1.0))
    ranks_per_node: int = attrs.field(default=8, validator=check_whole(1))
    slowdowns: tuple[SimulatedSlowdown, ...] = attrs.field(default=(), converter=_to_tuple, validator=_check_slowdowns)
    exact: bool | None = attrs.field(default=None, validator=attrs.validators.optional(check_flag))
    seed: int = attrs.field(default=0, validator=check_whole(0))


class Simulation:
    """Iterator over a job's windows: medians in seconds, float32, shape ``(sections, ranks)``."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self._random = np.random.default_rng(job.seed)
        self._constant = self._constants()
        self._window = 0

    def __iter__(self) -> Simulation:
        return self

    def __next__(self) -> Float32:
        if self._window >= self.job.windows:
            raise StopIteration
        medians = self._constant * self._noise()
        for slowdown in self.job.slowdowns:
            self._apply(slowdown, medians)
        self._window += 1
        return medians

    def _constants(self) -> Float32:
        job = self.job
        if job.spread_shape == "normal":
            of_rank = job.spread * self._random.standard_normal(job.ranks)
        else:
            of_rank = self._random.uniform(-job.spread, job.spread, job.ranks)
        of_cell = job.section_spread * self._random.standard_normal((job.sections, job.ranks))
        base = 0.002 * np.geomspace(1.0, 20.0, job.sections)[:, None]
        return np.asarray(base * np.maximum(1.0 + of_rank, 0.5) * np.maximum(1.0 + of_cell, 0.5), dtype=np.float32)

    def _noise(self) -> Float32:
        job, shape = self.job, (self.job.sections, self.job.ranks)
        exact = job.exact if job.exact is not None else shape[0] * shape[1] * job.samples <= 1_000_000
        if not exact:
            deviation = 1.2533 * job.noise / np.sqrt(job.samples)
            normal = self._random.standard_normal(shape, dtype=np.float32)
            return np.asarray(np.maximum(1.0 + deviation * normal, 0.1), dtype=np.float32)
        samples = 1.0 + job.noise * self._random.standard_normal((*shape, job.samples), dtype=np.float32)
        samples[self._random.random(samples.shape, dtype=np.float32) < job.outliers] *= 10.0
        return np.asarray(np.median(np.maximum(samples, 0.01), axis=2), dtype=np.float32)

    def _apply(self, slowdown: SimulatedSlowdown, medians: Float32) -> None:
        since = self._window - slowdown.onset
        if since < 0 or (slowdown.kind == "transient" and since >= slowdown.windows):
            return
        share = min((since + 1) / max(slowdown.windows, 1), 1.0) if slowdown.kind == "drift" else 1.0
        factor = np.float32(1.0 + share * slowdown.slowdown)
        if slowdown.kind == "slow_link":
            medians[-1, self._affected(slowdown)] *= factor
        else:
            medians[:, self._affected(slowdown)] *= factor

    def _affected(self, slowdown: SimulatedSlowdown) -> slice:
        return _ranks_of(slowdown, self.job)


def _ranks_of(slowdown: SimulatedSlowdown, job: SimulatedJob) -> slice:
    if slowdown.kind not in ("slow_node", "slow_link"):
        return slice(slowdown.rank, slowdown.rank + 1)
    first = slowdown.rank // job.ranks_per_node * job.ranks_per_node
    return slice(first, min(first + job.ranks_per_node, job.ranks))


def truth(job: SimulatedJob) -> npt.NDArray[np.bool_]:
    """Return who should be named at the end of the job; a transient and a bogus clock should not."""
    slow = np.zeros(job.ranks, dtype=bool)
    for slowdown in job.slowdowns:
        if slowdown.kind not in ("transient", "bogus_clock"):
            slow[_ranks_of(slowdown, job)] = True
    return slow
