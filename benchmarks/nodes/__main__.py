"""Losses of nodes, launchers, ranks and links in jobs over several nodes, which are namespaces of this machine.

    python -m benchmarks.nodes                                    ft_launcher, every fault once
    python -m benchmarks.nodes --launcher torchrun --faults kill-rank,power-off
    python -m benchmarks.nodes --faults cut:2,cut:20 --tries 5 --json nodes.json
    python -m benchmarks.nodes -- --nnodes 2:4 --rdzv-conf last_call_timeout=1

Each try is a job of its own: a small deterministic training (CPU, gloo, two ranks on each node) that must come to its
end with weights bitwise equal to those of an undisturbed one. The table has the seconds from the fault to the first
all_reduce of the group that went on. Ends with 1 if a try was not completed, had other weights, or had two groups at a
time; with 2 if nothing can run here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nodes.faults import FAULTS, find
from benchmarks.nodes.job import LAUNCHERS
from benchmarks.nodes.namespaces import why_impossible
from benchmarks.nodes.training import undisturbed_digest
from benchmarks.nodes.tries import NO_FAULT, Order, Result, run_try


def main() -> int:
    """Run the tries, print what came of them, and return the exit code."""
    options = parse_options()
    problem = why_impossible()
    if problem is not None:
        print(f"skipped: {problem}", file=sys.stderr)
        return 2
    expected = undisturbed_digest(options.steps)
    scratch = Path(tempfile.mkdtemp(prefix="nodes-"))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; files in {scratch}", flush=True)
    results: list[Result] = []
    for number, name in enumerate(name for name in options.faults for _ in range(options.tries)):
        order = Order(
            options.launcher, name, options.nnodes, options.spares, tuple(options.extra), options.steps, options.bound
        )
        results.append(run_try(order, scratch / f"{number}-{name.replace(':', '-')}", expected))
        print(line_of_try(results[-1]), flush=True)
    print("\n".join(["", *table(results)]))
    if options.json:
        Path(options.json).write_text(json.dumps([result._asdict() for result in results], indent=1))
    is_clean = all(result.is_equal and not result.overlaps for result in results)
    if is_clean and not options.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        print(f"outputs, logs and journals: {scratch}")
    return 0 if is_clean else 1


def line_of_try(result: Result) -> str:
    """One line about a try."""
    codes = ", ".join(f"{node} {'-' if code is None else code}" for node, code in result.exit_codes.items())
    said = "; ".join([*result.notes, *(f"TWO GROUPS AT A TIME: {sentence}" for sentence in result.overlaps)])
    return (
        f"{result.launcher} {result.fault}: {'completed' if result.is_completed else 'LOST'}, "
        f"{'bitwise equal' if result.is_equal else 'not equal'}, {_seconds(result.seconds)}, {result.groups} group(s), "
        f"exit codes {codes}, load {result.load:.1f}{'; ' if said else ''}{said}"
    )


def table(results: Sequence[Result]) -> list[str]:
    """A row for each launcher and fault, in Markdown."""
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.launcher, result.fault), []).append(result)
    lines = [
        "| launcher | fault | tries | completed | bitwise equal | two groups at a time | median s | max s | notes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (launcher, fault), own in rows.items():
        seconds = [result.seconds for result in own if result.seconds is not None]
        notes = dict.fromkeys(note for result in own for note in result.notes)
        cells = (
            *(launcher, fault, len(own), sum(result.is_completed for result in own)),
            *(sum(result.is_equal for result in own), sum(bool(result.overlaps) for result in own)),
            f"{statistics.median(seconds):.2f}" if seconds else "-",
            f"{max(seconds):.2f}" if seconds else "-",
            "; ".join(notes),
        )
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return lines


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; what follows ``--`` is the launcher's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    extra: list[str] = []
    if "--" in words:
        extra, words = words[words.index("--") + 1 :], words[: words.index("--")]
    listed = "\n".join(f"  {name:<26}{fault.what}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nodes",
        description=__doc__,
        epilog=f"faults, as NAME or NAME:SECONDS, or {NO_FAULT}:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--launcher", choices=tuple(LAUNCHERS), default="ft", help="whose job it is (ft)")
    parser.add_argument("--faults", type=_faults, default=tuple(FAULTS), metavar="NAME,...", help="only these")
    parser.add_argument("--tries", type=int, default=1, metavar="N", help="of each fault (1)")
    parser.add_argument("--nnodes", type=int, default=3, metavar="N", help="nodes that the job begins with (3)")
    parser.add_argument("--spares", type=int, default=1, metavar="N", help="nodes that wait (1)")
    parser.add_argument("--steps", type=int, default=1000, help="of the training (1000)")
    parser.add_argument(
        "--bound", type=float, default=120.0, metavar="SECONDS", help="from the fault to the end of the training (120)"
    )
    parser.add_argument("--json", metavar="FILE", help="keep every figure")
    parser.add_argument("--keep", action="store_true", help="keep outputs and journals of clean runs, too")
    options = parser.parse_args(words)
    options.extra = extra
    return options


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        try:
            if name != NO_FAULT:
                find(name)
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"no fault {name}; there are {', '.join(FAULTS)}") from None
    return names


def _seconds(seconds: float | None) -> str:
    return "no next group" if seconds is None else f"{seconds:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
