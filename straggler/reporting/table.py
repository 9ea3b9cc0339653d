"""Table for people: the slowest ranks, sections and nodes, with a verdict each. Empty when all is well."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from straggler.reporting.verdict import State, Verdict
from straggler.scoring.robust_scores import SLOW
from straggler.scoring.scorer import Scores

__all__ = ["Tabulated", "render"]


class Tabulated(Protocol):
    """Protocol of what the table shows of a :class:`straggler.reporting.report.Report`."""

    @property
    def sequence(self) -> int:
        """Number of the report."""
        ...

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        ...

    @property
    def coverage(self) -> float:
        """Share of the ranks that answered in time."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for people."""
        ...

    @property
    def scores(self) -> Scores:
        """The scores as arrays."""
        ...

    def verdicts(self) -> list[Verdict]:
        """Return every verdict that is not OK, the slowest first."""
        ...

    def row_name(self, number: int) -> str:
        """Return the name of a row."""
        ...


def render(report: Tabulated, rows: int = 10) -> str:
    """Render what is wrong.

    Args:
        report: Any report.
        rows: At most so many ranks.

    Returns:
        Lines for a log, or ``""`` when every rank is OK and nothing else needs saying.
    """
    wrong = report.verdicts()
    slow = [v for v in wrong if v.state is State.SLOW]
    unknown = [v for v in wrong if v.state is State.UNKNOWN]
    lines = [str(v) for v in slow[:rows]]
    if len(slow) > rows:
        lines.append(f"... and {len(slow) - rows} more slow ranks")
    if slow:
        lines += _waiting(report)
    lines += _nodes(slow)
    lines += _sections(report)
    lines += _unknown(unknown)
    lines += [f"job: most ranks became slower together in {report.row_name(n)!r}" for n in report.scores.job_wide]
    lines += _groups(report)
    lines += list(report.notes)
    if not lines:
        return ""
    head = f"straggler report {report.sequence}: {len(slow)} slow of {report.world_size} ranks"
    if report.coverage < 1.0:
        head += f", coverage {100 * report.coverage:.1f} %"
    return "\n".join([head, *("  " + line for line in lines)])


def _waiting(report: Tabulated) -> list[str]:
    waited = report.scores.waited[~np.isnan(report.scores.waited)]
    if not waited.size or waited.max() < 0.01:
        return []
    return [f"the others wait for the last to arrive: up to {100 * waited.max():.0f} % of their time"]


def _groups(report: Tabulated) -> list[str]:
    window = report.scores.against_peers
    return [
        f"section {report.row_name(name)!r}: the ranks fall into {count} groups, the slowest {100 * apart:.0f} % "
        "over the fastest, as pipeline stages do; set peer_group to compare each rank with its like"
        for name, count, apart in (() if window is None else window.groups)
    ]


def _nodes(slow: list[Verdict]) -> list[str]:
    by_node = collections.Counter(v.node for v in slow if v.node)
    many = [(node, count) for node, count in by_node.most_common(3) if count > 1]
    return [f"node {node}: {count} of the slow ranks" for node, count in many]


def _sections(report: Tabulated) -> list[str]:
    window = report.scores.against_peers
    if window is None:
        return []
    found = []
    for row, number in enumerate(window.names.tolist()):
        slow = np.flatnonzero(window.state[row] == SLOW)
        if len(slow):
            worst = slow[int(np.argmax(window.excess[row, slow]))]
            found.append(
                (
                    float(window.excess[row, worst]),
                    f"section {report.row_name(number)!r}: SLOW on {len(slow)} ranks, "
                    f"worst {100 * window.excess[row, worst]:.1f} % on rank {worst}",
                )
            )
    return [line for _, line in sorted(found, reverse=True)[:3]]


def _unknown(unknown: list[Verdict]) -> list[str]:
    by_reason: dict[str, list[int]] = {}
    for verdict in unknown:
        by_reason.setdefault(verdict.because, []).append(verdict.rank)
    lines = []
    for reason, ranks in by_reason.items():
        named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        lines.append(f"UNKNOWN {len(ranks)} ranks ({named}): {reason}")
    return lines
