"""Noise of healthy ranks: each kind makes factors that the durations of a window are multiplied with.

A kind is a frozen description; ``begin`` makes the process of one job, which is asked for one window after the other
and returns an array that broadcasts to ``(ranks, steps)``. Every process draws from its own generator, so that the
draws of one kind do not depend on which others a job has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "Bursts",
    "Checkpoints",
    "Drawn",
    "Floats",
    "Lengths",
    "Lognormal",
    "Noise",
    "Pareto",
    "Process",
    "Random",
    "Shape",
    "StudentT",
    "White",
]

Floats = npt.NDArray[np.float64]
Random = np.random.Generator

_LEAST = 0.05
"""No step takes less than this share of its usual time."""


@attrs.frozen
class Shape:
    """How large a job is.

    Args:
        ranks: Ranks.
        steps: Steps in a window.
        windows: Windows, one per report.
        per_node: Ranks on a node.
    """

    ranks: int
    steps: int
    windows: int
    per_node: int = 8

    @property
    def node_of(self) -> npt.NDArray[np.int64]:
        """The node's number of each rank."""
        return np.arange(self.ranks) // self.per_node


class Process(Protocol):
    """The noise of one job."""

    def window(self, number: int) -> Floats:
        """Return the factors of one window; called with 0, 1, 2 and so on."""


class Noise(Protocol):
    """A kind of noise."""

    def begin(self, shape: Shape, random: Random) -> Process:
        """Make the process of one job."""


@attrs.frozen
class Drawn:
    """A process without a memory: each window is drawn anew."""

    draw: Callable[[int], Floats]

    def window(self, number: int) -> Floats:
        return self.draw(number)


@attrs.frozen
class White:
    """Gaussian noise.

    Args:
        step: Standard deviation of each step, as a share of its time.
        window: Standard deviation of each window, the same for all its steps.
    """

    step: float = 0.0
    window: float = 0.0

    def begin(self, shape: Shape, random: Random) -> Process:
        def draw(number: int) -> Floats:
            factors = np.ones((shape.ranks, shape.steps))
            if self.step:
                factors += self.step * random.standard_normal(factors.shape)
            if self.window:
                factors *= np.maximum(1.0 + self.window * random.standard_normal((shape.ranks, 1)), _LEAST)
            return np.maximum(factors, _LEAST)

        return Drawn(draw)


@attrs.frozen
class Lognormal:
    """Lognormal steps with mean 1.

    Args:
        sigma: Standard deviation of the logarithm.
    """

    sigma: float

    def begin(self, shape: Shape, random: Random) -> Process:
        size = (shape.ranks, shape.steps)
        return Drawn(lambda _: np.exp(self.sigma * random.standard_normal(size) - self.sigma**2 / 2))


@attrs.frozen
class StudentT:
    """Steps with symmetric heavy tails.

    Args:
        degrees: Degrees of freedom, which is the tail index.
        scale: What a draw is multiplied with.
    """

    degrees: float
    scale: float

    def begin(self, shape: Shape, random: Random) -> Process:
        size = (shape.ranks, shape.steps)
        return Drawn(lambda _: np.maximum(1.0 + self.scale * random.standard_t(self.degrees, size), _LEAST))


@attrs.frozen
class Pareto:
    """Some steps of each rank take longer by a Pareto draw.

    Args:
        index: Tail index.
        share: Of the steps.
        scale: Least that such a step takes longer.
        most: Most that such a step takes longer.
    """

    index: float = 1.5
    share: float = 0.02
    scale: float = 0.2
    most: float = 50.0

    def begin(self, shape: Shape, random: Random) -> Process:
        size = (shape.ranks, shape.steps)

        def draw(number: int) -> Floats:
            longer = np.minimum(self.scale * (1.0 + random.pareto(self.index, size)), self.most)
            return 1.0 + np.where(random.random(size) < self.share, longer, 0.0)

        return Drawn(draw)


@attrs.frozen
class Bursts:
    """Pauses of single ranks, such as garbage collection: some steps are longer by an exponential draw.

    Args:
        share: Of the steps of each rank.
        mean: Mean of what is added, in usual steps.
    """

    share: float = 0.01
    mean: float = 2.0

    def begin(self, shape: Shape, random: Random) -> Process:
        size = (shape.ranks, shape.steps)
        return Drawn(lambda _: 1.0 + (random.random(size) < self.share) * random.exponential(self.mean, size))


@attrs.frozen
class Checkpoints:
    """Work that all ranks do in the same steps, such as evaluation or a checkpoint.

    Args:
        every: Windows between two of them.
        steps: How many steps in a row of that window.
        longer: By how much such a step is longer, in usual steps.
        unequal: Standard deviation of the logarithm of a rank's own share in it, drawn anew each time.
    """

    every: int = 5
    steps: int = 4
    longer: float = 3.0
    unequal: float = 0.0

    def begin(self, shape: Shape, random: Random) -> Process:
        def draw(number: int) -> Floats:
            factors = np.ones((shape.ranks, shape.steps))
            if number % self.every == self.every - 1:
                own = np.exp(self.unequal * random.standard_normal((shape.ranks, 1)))
                factors[:, : self.steps] += self.longer * own
            return factors

        return Drawn(draw)


@attrs.frozen
class Lengths:
    """Steps as long as their data: a lognormal length that all ranks share, and one of each rank.

    Args:
        shared: Standard deviation of the logarithm of the shared length.
        own: The same of the rank's own length.
    """

    shared: float = 0.3
    own: float = 0.0

    def begin(self, shape: Shape, random: Random) -> Process:
        def draw(number: int) -> Floats:
            logs = self.shared * random.standard_normal((1, shape.steps))
            return np.exp(logs + self.own * random.standard_normal((shape.ranks, shape.steps)))

        return Drawn(draw)
