"""The tables: F1 of each rule in each scenario, names in healthy jobs, and what a stated confidence is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.fleet.judging import REPORTS_A_DAY, Tally, bins
from benchmarks.fleet.play import OURS, STOPPING
from benchmarks.fleet.rules import FACTORS

__all__ = [
    "TOLERANCE",
    "behind",
    "behind_table",
    "calibration",
    "f1_table",
    "false_table",
    "held_table",
    "how_often_first",
    "least_rate",
]

Results = Mapping[str, Mapping[str, Tally]]

TOLERANCE = 0.03
"""How much worse than the best rule ours may be without a mark."""
_EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0 + 1e-9)


def behind(tallies: Mapping[str, Tally]) -> float:
    """By how much the best of the other rules has a higher F1 than ours; negative where ours is the best."""
    others = [tally.f1 for name, tally in tallies.items() if name not in (OURS, STOPPING)]
    known = [value for value in others if value == value]
    return max(known, default=0.0) - (0.0 if tallies[OURS].f1 != tallies[OURS].f1 else tallies[OURS].f1)


def f1_table(results: Results) -> str:
    """Lay out F1, one row per scenario; ``*`` marks where ours is more than :data:`TOLERANCE` behind."""
    rules = _rules(results)
    head = ["scenario", *rules, "delay", "P", "R", "noticed", "at end"]
    rows = []
    for name, tallies in results.items():
        ours = tallies[OURS]
        shares = (ours.precision, ours.recall, ours.noticed_share, ours.f1_at_end)
        rows.append([*_f1_row(name, tallies, rules), _number(ours.delay, 1), *map(_number, shares)])
    return _layout(head, rows)


def held_table(results: Results, places: Mapping[str, int]) -> str:
    """Lay out F1 of rules that were made stricter; over each column by how much, in times of what it compares with.

    Args:
        results: What they did.
        places: How strict each was, as a place in ``FACTORS``.
    """
    rules = _rules(results)
    head = [f"{rule} x{FACTORS[places[rule]]:.3g}" if rule in places else rule for rule in rules]
    return _layout(["scenario", *head], [_f1_row(name, tallies, rules) for name, tallies in results.items()])


def behind_table(results: Results) -> str:
    """Lay out F1 of the scenarios in which ours is more than :data:`TOLERANCE` behind; empty where there is none."""
    rules = _rules(results)
    rows = [_f1_row(name, tallies, rules) for name, tallies in results.items() if behind(tallies) > TOLERANCE]
    return _layout(["scenario", *rules], rows) if rows else ""


def how_often_first(results: Results) -> str:
    """Say in how many scenarios ours is at most :data:`TOLERANCE` behind."""
    late = sum(behind(tallies) > TOLERANCE for tallies in results.values())
    return f"ours is the best or within {TOLERANCE} of it in {len(results) - late} of {len(results)} scenarios"


def false_table(results: Results) -> str:
    """Lay out how often healthy ranks of healthy jobs were named: per 1,000 job-days, and (ranks per job)."""
    rules = _rules(results)
    rows = []
    for name, tallies in results.items():
        cells = [f"{tallies[rule].per_1000_job_days:,.0f} ({tallies[rule].false_per_job:.2g})" for rule in rules]
        rows.append([name, *cells])
    return _layout(["healthy jobs", *rules], rows)


def least_rate(results: Results) -> float:
    """Return what one name is in the unit of :func:`false_table`, in the scenario with the fewest reports."""
    return max(1000 * REPORTS_A_DAY / tallies[OURS].reports for tallies in results.values())


def calibration(results: Results) -> str:
    """Lay out, of the ranks that ours named, the stated confidence and the share that was right, over all jobs."""
    stated = [pair for tallies in results.values() for pair in tallies[OURS].stated]
    rows = [
        [f"{low:g} to {min(high, 1.0):g}", str(count), f"{said:.5f}", f"{right:.3f}"]
        for low, high, count, said, right in bins(stated, _EDGES)
    ]
    return _layout(["stated confidence", "names", "mean stated", "right"], rows)


def _f1_row(name: str, tallies: Mapping[str, Tally], rules: Sequence[str]) -> list[str]:
    mark = "*" if behind(tallies) > TOLERANCE else ""
    return [name, *(_number(tallies[rule].f1) + (mark if rule == OURS else "") for rule in rules)]


def _rules(results: Results) -> list[str]:
    return list(next(iter(results.values()), {}))


def _number(value: float, digits: int = 3) -> str:
    return "-" if value != value else f"{value:.{digits}f}"


def _layout(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
