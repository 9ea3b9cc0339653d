"""Table for people: the slowest ranks, sections and nodes, with a verdict each. Empty when all is well.

A node of which most ranks are slow is one line: eight lines that say the same hide the other slow ranks.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.reporting.rank_lists import mostly, ranges
from straggler.reporting.verdict import MATERIAL_SHARE, State, Verdict
from straggler.reporting.waiting import waiting
from straggler.scoring.scorer import GPU_ROW, Scores

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
    def ranks(self) -> Sequence[int]:
        """The ranks that the report is about."""
        ...

    @property
    def coverage(self) -> float:
        """Share of the ranks that answered in time."""
        ...

    @property
    def gathered(self) -> GatheredWindows:
        """What the ranks sent."""
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

    def slow_cells(self) -> npt.NDArray[np.bool_]:
        """Return where a rank is SLOW in something that matters, shape ``(rows, ranks)``."""
        ...

    def row_name(self, number: int) -> str:
        """Return the name of a row."""
        ...


def render(report: Tabulated, rows: int = 10) -> str:
    """Render what is wrong.

    Args:
        report: Any report.
        rows: At most so many lines that name slow ranks; the ranks of further lines are listed in one.

    Returns:
        Lines for a log, or ``""`` when every rank is OK and nothing else needs saying.
    """
    wrong = report.verdicts()
    slow = [v for v in wrong if v.state is State.SLOW]
    unknown = [v for v in wrong if v.state is State.UNKNOWN]
    sizes = collections.Counter(node for node in report.gathered.nodes if node)
    entries = _entries(slow, sizes)
    lines = [_entry(entry, sizes) for entry in entries[:rows]]
    further = [v.rank for entry in entries[rows:] for v in entry]
    if further:
        lines.append(f"... and {len(further)} more slow ranks: {ranges(further)}")
    if slow:
        lines += _waiting(report, slow)
    lines += _nodes([entry[0] for entry in entries if len(entry) == 1], sizes)
    lines += _sections(report, [v.rank for v in slow])
    lines += _unknown(unknown)
    lines += [f"job: most ranks became slower together in {report.row_name(n)!r}" for n in report.scores.job_wide]
    lines += _groups(report)
    lines += list(report.notes)
    if not lines:
        return ""
    head = f"straggler report {report.sequence}: {len(slow)} slow of {report.world_size} ranks"
    if len(report.ranks) < report.world_size:
        head = f"straggler report {report.sequence} of rank {ranges(report.ranks)} alone, of {report.world_size} ranks"
    if report.coverage < 1.0:
        head += f", coverage {100 * report.coverage:.1f} %"
    return "\n".join([head, *("  " + line for line in lines)])


def _entries(slow: list[Verdict], sizes: Mapping[str, int]) -> list[list[Verdict]]:
    """Return the verdicts of each line, in the order of the slowest in it."""
    whole = mostly((v.rank for v in slow), {v.rank: v.node for v in slow}, sizes)
    together: dict[str, list[Verdict]] = {}
    for verdict in slow:
        together.setdefault(verdict.node if verdict.node in whole else f"/rank {verdict.rank}", []).append(verdict)
    return list(together.values())


def _entry(verdicts: list[Verdict], sizes: Mapping[str, int]) -> str:
    if len(verdicts) == 1:
        return str(verdicts[0])
    node, size = verdicts[0].node, sizes[verdicts[0].node]
    shares = sorted(round(100 * v.slowdown) for v in verdicts)
    much = f"{shares[0]} to {shares[-1]} %" if shares[0] < shares[-1] else f"{shares[0]} %"
    section, count = collections.Counter(v.section for v in verdicts).most_common(1)[0]
    first = min(verdicts, key=lambda v: v.since_report)
    reasons = list(dict.fromkeys(v.because for v in verdicts if v.because))
    why = f", because: {'; '.join(reasons[:2])}" if reasons else ""
    return (
        f"node {node}: {len(verdicts)} of its {size} ranks SLOW ({ranges(v.rank for v in verdicts)}), {much} slower "
        f"{'' if count == len(verdicts) else 'mostly '}in {section!r} for {first.since_seconds:.0f} s "
        f"(since report {first.since_report}){why}"
    )


def _waiting(report: Tabulated, slow: list[Verdict]) -> list[str]:
    lost = waiting(report.scores, report.gathered, [v.rank for v in slow])
    if lost is None or lost.most < 0.01:
        return []
    least = "at least " if lost.is_least else ""
    return [
        f"the others wait for the last to arrive: {least}{100 * lost.median:.0f} % of their time (median), "
        f"{100 * lost.most:.0f} % at most"
    ]


def _groups(report: Tabulated) -> list[str]:
    window, scores = report.scores.against_peers, report.scores
    if window is None:
        return []
    matters = (scores.seconds >= MATERIAL_SHARE * scores.measured).any(axis=1) | (window.names == np.uint64(GPU_ROW))
    return [
        f"section {report.row_name(name)!r}: the ranks fall into {count} groups, the slowest {100 * apart:.0f} % "
        "over the fastest, as pipeline stages do; set peer_group to compare each rank with its like"
        for name, count, apart in window.groups
        if name in window.names[matters]
    ]


def _nodes(single: list[Verdict], sizes: Mapping[str, int]) -> list[str]:
    by_node = collections.Counter(v.node for v in single if v.node)
    many = [(node, count) for node, count in by_node.most_common(3) if count > 1]
    return [f"node {node}: {count} of its {sizes[node]} ranks are slow" for node, count in many]


def _sections(report: Tabulated, ranks: list[int]) -> list[str]:
    window = report.scores.against_peers
    if window is None or not ranks:
        return []
    found, cells, named = [], report.slow_cells(), np.zeros(report.world_size, dtype=bool)
    named[ranks] = True
    for row, number in enumerate(window.names.tolist()):
        slow = np.flatnonzero(cells[row] & named)
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
        lines.append(f"UNKNOWN {len(ranks)} ranks ({ranges(ranks)}): {reason}")
    return lines
