"""What the ranks of one run wrote down, and what is right: needs no torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

RIGHT, WRONG, SILENT, BROKEN = "right", "wrong", "silent", "broken"
_REALLY_SLOWER = 0.1
"""How much slower than the others a healthy rank must have been for a naming to be of a rank that was slow then."""


def write(folder: Path, rank: int, word: dict[str, Any]) -> None:
    """Write a rank's word, whole or not at all."""
    new = folder / f"word-{rank}.new"
    new.write_text(json.dumps(word))
    new.rename(folder / f"word-{rank}.json")


class Run(NamedTuple):
    """One run of a job."""

    slow_rank: int | None
    """Who was slow; None: nobody."""
    words: Sequence[dict[str, Any]]
    """Of each rank: ``owns``, the time and the length of its own work of each step in seconds; empty: it broke."""
    reports: Sequence[dict[str, Any]]
    """The lines of the log that rank 0 appends its reports to."""
    errors: str = ""
    """What the ranks wrote to stderr."""


def read(folder: Path, world_size: int, slow_rank: int | None) -> Run:
    """Read the words and the log of a run that has ended."""
    words = [folder / f"word-{rank}.json" for rank in range(world_size)]
    log = folder / "reports.jsonl"
    said = sorted(folder.glob("stderr-*"))
    return Run(
        slow_rank,
        [json.loads(word.read_text()) for word in words] if all(word.exists() for word in words) else [],
        [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [],
        "\n".join(text for file in said if (text := file.read_text(errors="replace").strip())),
    )


def named(report: dict[str, Any]) -> set[int]:
    """Return the ranks that a report calls slow."""
    return {verdict["rank"] for verdict in report["verdicts"] if verdict["state"] == "SLOW"}


def judge(run: Run) -> str:
    """Return RIGHT if the last report names the slow rank and no report another one, or nobody where nobody is slow.

    WRONG where any report names another rank, else SILENT; BROKEN where a rank did not come to its end.
    """
    if not run.words:
        return BROKEN
    meant = set() if run.slow_rank is None else {run.slow_rank}
    if any(named(report) - meant for report in run.reports):
        return WRONG
    if not run.reports:
        return SILENT
    return RIGHT if named(run.reports[-1]) == meant else SILENT


def slowness(run: Run, peers: Sequence[Sequence[int]] = ()) -> float | None:
    """Return how much longer than its slowest peer's the slow rank's own work took: 1.0 for twice as long.

    Args:
        run: With words. Where nobody is slow, it is that of the slowest rank to the fastest.
        peers: The groups of ranks that do the same work; empty: all do.
    """
    if not run.words:
        return None
    means = [statistics.fmean(own for _, own in word["owns"][word["slow_from"] :]) for word in run.words]
    if run.slow_rank is None:
        return max(means) / min(means) - 1.0
    group = next((group for group in peers if run.slow_rank in group), range(len(means)))
    return means[run.slow_rank] / max(means[rank] for rank in group if rank != run.slow_rank) - 1.0


def slower_before(run: Run, report: dict[str, Any], rank: int, seconds: float) -> float:
    """Return how much longer than the median of the others' a rank's own work took in the seconds before a report."""
    means = []
    for word in run.words:
        lately = [own for at, own in word["owns"] if report["time"] - seconds <= at <= report["time"]]
        means.append(statistics.fmean(lately) if lately else float("nan"))
    return means[rank] / statistics.median(mean for of, mean in enumerate(means) if of != rank) - 1.0


def explanation(run: Run, seconds: float = 2.0) -> str:
    """Return what was said in a run that is not right, in one line.

    Args:
        run: The run.
        seconds: How far back to look for whether a healthy rank that was named had been slower in truth.
    """
    if not run.words:
        return f"a rank broke: {(run.errors.splitlines() or ['nothing on stderr'])[-1]}"
    if not run.reports:
        return f"no report; stderr: {' / '.join(run.errors.splitlines()[-2:]) or 'nothing'}"
    said, in_truth = list[str](), 0
    for report in run.reports:
        for rank in sorted(named(report) - {run.slow_rank}):
            truth = slower_before(run, report, rank, seconds)
            in_truth += truth > _REALLY_SLOWER
            verdict = next(one for one in report["verdicts"] if one["rank"] == rank)
            said.append(
                f"report {report['sequence']} of {len(run.reports)} names rank {rank}"
                f" ({100 * verdict['slowdown']:.0f} % slower in '{verdict['section']}';"
                f" in truth {100 * truth:.0f} %)"
            )
    if said:
        really = f"in {in_truth} of {len(said)} it was more than {100 * _REALLY_SLOWER:.0f} % slower then"
        return "; ".join([*said[:2], really])
    last = run.reports[-1]
    often = sum(named(report) == {run.slow_rank} for report in run.reports)
    parts = [f"{len(run.reports)} reports, the last of rows {sorted(last['sections']) or 'none'}"]
    parts += dict.fromkeys(f"{one['state']}: {one['because']}" for one in last["verdicts"])
    parts += [f"note: {note}" for note in dict.fromkeys(note for report in run.reports for note in report["notes"])]
    if often:
        parts.append(f"named in {often} of them, not in the last")
    if tables := run.words[0]["tables"]:
        parts.append("table: " + " / ".join(line.strip() for line in tables[-1].splitlines() if "UNKNOWN" not in line))
    if 0 < (returned := run.words[0]["returned"]) < len(run.reports):
        parts.append(f"only {returned} of the reports were returned")
    return "; ".join(parts)
