"""Samples by row and contender, and the table a person reads: medians, p99, and how many times ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["GOALS", "P99_GOALS", "Results", "p99"]

GOALS: Mapping[str, float] = {
    "start_section + end_section": 0.8,
    "send_heartbeat": 0.4,
    "bus.step_start + bus.step_end, monitored": 2,
    "section pair, monitor SIGSTOPped": 0.8,
    "section pair, monitor dead": 0.8,
    "bus events, monitor SIGSTOPped": 2,
    "bus events, monitor dead": 2,
    "system calls in: start_section + end_section": 0,
    "system calls in: send_heartbeat": 0,
    "system calls in: bus.step_start + bus.step_end, monitored": 0,
    "hang: deadline -> verdict": 10,
    "hang: deadline -> signal, without stacks": 10,
    "hang: deadline -> signal, with the stacks of all ranks": 60,
    "SIGKILL of a rank -> seen": 20,
    "last rank done -> launcher gone": 100,
    "monitoring 8 ranks: PSS": 15,
    "monitoring 8 ranks: share of a core": 0.2,
}
"""What ours must not exceed at the median (a verdict: at the p99), in the row's unit."""

P99_GOALS = frozenset({"hang: deadline -> verdict"})


def p99(samples: Sequence[float]) -> float:
    """The 99th percentile; the maximum of fewer than a hundred."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


class Results:
    """What was measured."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = {}
        self._p99s: dict[tuple[str, str], list[float]] = {}
        self._words: dict[tuple[str, str], str] = {}
        self._units: dict[str, str] = {}
        self._notes: dict[str, None] = {}

    def add(self, row: str, contender: str, samples: Iterable[float], *, unit: str) -> None:
        """More samples of one cell."""
        self._units[row] = unit
        self._samples.setdefault(row, {}).setdefault(contender, []).extend(samples)

    def add_p99(self, row: str, contender: str, values: Iterable[float]) -> None:
        """The p99 of single calls, where the samples are means of many."""
        self._p99s.setdefault((row, contender), []).extend(values)

    def say(self, row: str, contender: str, word: str) -> None:
        """A cell that has no figure."""
        self._samples.setdefault(row, {})
        self._words[row, contender] = word

    def note(self, sentence: str) -> None:
        """Something that the reader must know, once."""
        self._notes[sentence] = None

    def fail(self, group: str, contender: str, why: str) -> None:
        """One launch did not do what was to be measured: its samples are missing, and that is said."""
        self.note(f"{contender}, {group}: one launch is missing from the figures: {why}")

    def to_json(self) -> dict[str, Any]:
        """Every raw sample."""
        return {
            "unit": self._units,
            "samples": self._samples,
            "p99_of_single_calls": {f"{row} / {who}": values for (row, who), values in self._p99s.items()},
            "notes": list(self._notes),
        }

    def missed_goals(self, contender: str) -> list[str]:
        """One sentence for each goal that a contender, ours, did not reach."""
        missed = []
        for row, goal in GOALS.items():
            samples = self._samples.get(row, {}).get(contender)
            if samples:
                reached = p99(samples) if row in P99_GOALS else statistics.median(samples)
                if reached > goal:
                    missed.append(f"goal missed: {row}: {_figure(reached)} {self._units[row]}, wanted at most {goal:g}")
        return missed

    def lines(self, contenders: Sequence[str]) -> list[str]:
        """The table, for a terminal; ours is the first contender."""
        rows = [["median / p99 (n)", "unit", "goal", *contenders]]
        for row, cells in self._samples.items():
            ours = cells.get(contenders[0])
            base = statistics.median(ours) if ours else None
            shown = [self._cell(row, who, base if who != contenders[0] else None) for who in contenders]
            rows.append([row, self._units.get(row, ""), f"{GOALS[row]:g}" if row in GOALS else "", *shown])
        widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        return [*lines, "", *self._notes]

    def _cell(self, row: str, who: str, base: float | None) -> str:
        samples = self._samples[row].get(who)
        if not samples:
            return self._words.get((row, who), "-")
        median = statistics.median(samples)
        tail = statistics.median(self._p99s[row, who]) if (row, who) in self._p99s else p99(samples)
        cell = _figure(median) if len(samples) == 1 else f"{_figure(median)} / {_figure(tail)} ({len(samples)})"
        return cell if not base else f"{cell}  x{_ratio(median / base)}"


def _figure(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
