"""Faults whose truth is known: which ranks are slowed, from which window on, and by how much in each step."""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from benchmarks.fleet.noise import Floats, Random, Shape

__all__ = ["Drift", "Fault", "Healthy", "Intermittent", "Steady", "Struck", "Victims"]

Mask = npt.NDArray[np.bool_]


@attrs.frozen
class Victims:
    """Which ranks a fault slows.

    Args:
        count: How many, wherever they are; 0 where ``share`` or ``node`` says it.
        share: Share of the ranks.
        node: All ranks of one node.
    """

    count: int = 1
    share: float = 0.0
    node: bool = False

    def draw(self, shape: Shape, random: Random) -> Mask:
        """Choose them, shape ``(ranks,)``."""
        if self.node:
            nodes = shape.node_of
            return np.asarray(nodes == random.integers(int(nodes[-1]) + 1))
        count = max(1, round(self.share * shape.ranks)) if self.share else self.count
        slow = np.zeros(shape.ranks, dtype=bool)
        slow[random.choice(shape.ranks, count, replace=False)] = True
        return slow


@attrs.frozen
class Struck:
    """The fault of one job.

    Args:
        slow: Which ranks are slowed, shape ``(ranks,)``.
        onset: First window of it.
        end: Window from which on it is over; None: it stays.
        kind: What says how much.
        random: Where its draws come from.
    """

    slow: Mask
    onset: int
    end: int | None
    kind: Fault
    random: Random

    def window(self, number: int, steps: int) -> Floats:
        """Return the factors of one window, shape ``(ranks, steps)``."""
        factors = np.ones((len(self.slow), steps))
        if number >= self.onset and (self.end is None or number < self.end):
            count = int(self.slow.sum())
            factors[self.slow] = self.kind.factors(number - self.onset, (count, steps), self.random)
        return factors


class Fault(Protocol):
    """A kind of fault."""

    def strike(self, shape: Shape, random: Random) -> Struck:
        """Choose the ranks of one job."""

    def factors(self, age: int, size: tuple[int, int], random: Random) -> Floats:
        """Return by how much the steps are longer, ``age`` windows after the onset."""


@attrs.frozen
class Healthy:
    """No fault."""

    def strike(self, shape: Shape, random: Random) -> Struck:
        return Struck(np.zeros(shape.ranks, dtype=bool), shape.windows, None, self, random)

    def factors(self, age: int, size: tuple[int, int], random: Random) -> Floats:
        return np.ones(size)


@attrs.frozen(kw_only=True)
class Steady:
    """Every step is longer by the same share.

    Args:
        by: The share.
        victims: Which ranks.
        onset: First window.
        lasts: Windows until it is over; 0: it stays.
    """

    by: float
    victims: Victims = Victims()
    onset: int = 12
    lasts: int = 0

    def strike(self, shape: Shape, random: Random) -> Struck:
        end = self.onset + self.lasts if self.lasts else None
        return Struck(self.victims.draw(shape, random), self.onset, end, self, random)

    def factors(self, age: int, size: tuple[int, int], random: Random) -> Floats:
        return np.full(size, 1.0 + self.by)


@attrs.frozen(kw_only=True)
class Intermittent:
    """A share of the steps is longer.

    Args:
        by: By which share such a step is longer.
        share: Of the steps, chosen anew in each.
        victims: Which ranks.
        onset: First window.
    """

    by: float
    share: float
    victims: Victims = Victims()
    onset: int = 12

    def strike(self, shape: Shape, random: Random) -> Struck:
        return Struck(self.victims.draw(shape, random), self.onset, None, self, random)

    def factors(self, age: int, size: tuple[int, int], random: Random) -> Floats:
        return np.where(random.random(size) < self.share, 1.0 + self.by, 1.0)


@attrs.frozen(kw_only=True)
class Drift:
    """Steps that become longer from window to window, up to a share.

    Args:
        to: The share.
        over: Windows until it is reached; it stays after that.
        victims: Which ranks.
        onset: First window.
    """

    to: float = 0.15
    over: int = 60
    victims: Victims = Victims()
    onset: int = 12

    def strike(self, shape: Shape, random: Random) -> Struck:
        return Struck(self.victims.draw(shape, random), self.onset, None, self, random)

    def factors(self, age: int, size: tuple[int, int], random: Random) -> Floats:
        return np.full(size, 1.0 + self.to * min((age + 1) / self.over, 1.0))
