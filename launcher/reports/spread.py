"""What is known of durations of a section: of each the powers of two between which it lies, and of all the sum."""

from __future__ import annotations

import collections

from resilience_core.protocol.figures_read import SectionFigures

__all__ = ["Spread"]


class Spread:
    """Durations of one section, of all ranks and generations."""

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._took_ns = 0.0

    def add(self, section: SectionFigures) -> None:
        """Take up the durations of one rank in one generation."""
        known = sum(section.durations.values())
        self._counts.update(section.durations)
        if section.closed > 0:  # lines since the last full one tell of more, without the powers of two
            self._took_ns += section.took_ns * known / section.closed

    def typical_ns(self, longest_ns: int) -> float | None:
        """Return about the median; None without any.

        The mean of those between the same powers of two as the median is taken for it. What the others took in all lies
        between bounds, and so does that mean; it is as good as exact where most are alike.

        Args:
            longest_ns: The longest of them all.
        """
        total = sum(self._counts.values())
        so_far = 0
        for bits in sorted(self._counts):
            so_far += self._counts[bits]
            if total and 2 * so_far >= total:
                break
        else:
            return None
        least_ns = most_ns = self._took_ns
        for other in self._counts.keys() - {bits}:
            low_ns, high_ns = _bounds_ns(other, longest_ns)
            least_ns -= high_ns * self._counts[other]
            most_ns -= low_ns * self._counts[other]
        number, (low_ns, high_ns) = self._counts[bits], _bounds_ns(bits, longest_ns)
        ends_ns = [min(max(mean_ns, low_ns), high_ns) for mean_ns in (least_ns / number, most_ns / number)]
        return min(sum(ends_ns) / 2, longest_ns)


def _bounds_ns(bits: int, longest_ns: int) -> tuple[int, int]:
    """Return between what durations of so many bits lie."""
    low_ns = 1 << (bits - 1) if bits else 0
    return low_ns, max(low_ns, min((1 << bits) - 1, longest_ns))
