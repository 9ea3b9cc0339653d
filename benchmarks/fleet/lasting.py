"""Differences between healthy ranks that last: over some steps, some windows, or the whole job."""

from __future__ import annotations

import math

import attrs
import numpy as np

from benchmarks.fleet.noise import Drawn, Floats, Process, Random, Shape

__all__ = ["Ar1", "Experts", "HealthyDrift", "Natural", "Nodes", "Pink"]


@attrs.define
class _Ar1Process:
    """One value per rank that remembers, at each step or at each window."""

    ranks: int
    steps: int
    sigma: float
    phi: float
    random: Random
    state: Floats

    def values(self) -> Floats:
        """Return the next value of every step, or one where ``steps`` is 1, shape ``(ranks, steps)``."""
        fresh = math.sqrt(1.0 - self.phi**2) * self.random.standard_normal((self.steps, self.ranks))
        for step in range(self.steps):
            self.state = self.phi * self.state + fresh[step]
            fresh[step] = self.state
        return self.sigma * fresh.T

    def window(self, number: int) -> Floats:
        return np.exp(self.values())


@attrs.frozen
class Ar1:
    """Autocorrelated logarithms: a first-order autoregression per rank.

    Args:
        sigma: Standard deviation of the logarithm.
        tau: Steps or windows after which the correlation is 1/e.
        over: ``"steps"`` or ``"windows"``.
    """

    sigma: float
    tau: float
    over: str = "windows"

    def begin(self, shape: Shape, random: Random) -> _Ar1Process:
        steps = shape.steps if self.over == "steps" else 1
        first = random.standard_normal(shape.ranks)
        return _Ar1Process(shape.ranks, steps, self.sigma, math.exp(-1.0 / self.tau), random, first)


@attrs.frozen
class Pink:
    """Logarithms with a spectrum close to 1/f over windows: autoregressions of several time constants, added.

    Args:
        sigma: Standard deviation of the logarithm.
        taus: Time constants in windows.
    """

    sigma: float
    taus: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)

    def begin(self, shape: Shape, random: Random) -> Process:
        each = self.sigma / math.sqrt(len(self.taus))
        parts = [Ar1(each, tau).begin(shape, random) for tau in self.taus]
        return Drawn(lambda _: np.exp(np.sum([part.values() for part in parts], axis=0)))


@attrs.frozen
class Experts:
    """A rank holds experts whose load drifts: the ranks' shares of the tokens, which add up to all of them.

    Args:
        sigma: Standard deviation of the logarithm of a rank's load.
        tau: Windows after which the correlation of the load is 1/e.
        part: Share of the step that grows with the load.
    """

    sigma: float = 0.1
    tau: float = 4.0
    part: float = 0.5

    def begin(self, shape: Shape, random: Random) -> Process:
        loads = Ar1(self.sigma, self.tau).begin(shape, random)

        def draw(number: int) -> Floats:
            load = np.exp(loads.values())
            return np.asarray(1.0 - self.part + self.part * load / load.mean())

        return Drawn(draw)


@attrs.frozen
class Nodes:
    """Nodes that differ by nature: the ranks of a node share a factor for the whole job.

    Args:
        sigma: Standard deviation of the factor.
    """

    sigma: float

    def begin(self, shape: Shape, random: Random) -> Process:
        nodes = shape.node_of
        factors = 1.0 + self.sigma * random.standard_normal(int(nodes[-1]) + 1)
        fixed = factors[nodes][:, None]
        return Drawn(lambda _: fixed)


@attrs.frozen
class Natural:
    """Ranks that differ by nature, each for itself.

    Args:
        sigma: Standard deviation of the factor.
    """

    sigma: float

    def begin(self, shape: Shape, random: Random) -> Process:
        fixed = 1.0 + self.sigma * random.standard_normal((shape.ranks, 1))
        return Drawn(lambda _: fixed)


@attrs.frozen
class HealthyDrift:
    """Healthy ranks that become slower or faster, slowly and within bounds.

    Args:
        most: Largest share by which a rank ever differs.
        shortest: Least windows of a period; the longest is three times that.
    """

    most: float = 0.02
    shortest: float = 40.0

    def begin(self, shape: Shape, random: Random) -> Process:
        amplitude = self.most * random.random((shape.ranks, 1))
        period = self.shortest * (1.0 + 2.0 * random.random((shape.ranks, 1)))
        phase = 2.0 * np.pi * random.random((shape.ranks, 1))
        return Drawn(lambda number: 1.0 + amplitude * np.sin(2.0 * np.pi * number / period + phase))
