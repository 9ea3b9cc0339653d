"""``python -m straggler``: draw a log of reports, or evaluate the scoring on simulated jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from resilience_core.errors import ResilienceError

__all__ = ["main"]

Number = TypeVar("Number", int, float)

_BESIDE = "default: beside the log, unless another file is there"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m straggler", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    plot = commands.add_parser("plot", help="draw reports.jsonl as PNG and as one HTML file", allow_abbrev=False)
    plot.add_argument("log", help="what Detector.initialize(log_path=...) wrote")
    plot.add_argument("--png", metavar="FILE", help=_BESIDE)
    plot.add_argument("--html", metavar="FILE", help=_BESIDE)
    plot.add_argument("--only", choices=["png", "html"], help="make one of the two")
    run = commands.add_parser("simulate", help="score a simulated job against its truth", allow_abbrev=False)
    run.add_argument("--ranks", type=int, default=512, metavar="N", help="default %(default)s")
    run.add_argument("--share", type=_share, default=0.01, metavar="SHARE", help="slow ranks, default %(default)s")
    run.add_argument("--slowdown", type=float, default=0.1, metavar="RATIO", help="default %(default)s (10 %%)")
    run.add_argument("--onset", type=_count, default=10, metavar="REPORT", help="when they slow, default %(default)s")
    run.add_argument("--jobs", type=_at_least_one, default=10, metavar="N", help="seeds, default %(default)s")
    run.add_argument("--spread-shape", choices=["normal", "uniform"], default="normal", help="default %(default)s")
    run.add_argument("--log", metavar="FILE", help="also write the first job's reports, to be plotted")
    return top


def _number(text: str, kind: type[Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if kind is int else ''}number") from None


def _share(text: str) -> float:
    value = _number(text, float)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 (nobody) to 1 (all ranks)")
    return value


def _count(text: str) -> int:
    value = _number(text, int)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _at_least_one(text: str) -> int:
    value = _number(text, int)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    top = parser()
    options = top.parse_args(arguments)
    if options.command == "plot" and options.only and getattr(options, "png" if options.only == "html" else "html"):
        top.error(f"--only {options.only} makes no other picture: leave out --only, or the file of the other one")
    command = f"python -m straggler {options.command}"
    try:
        said = _plot(options) if options.command == "plot" else _simulate(options)
    except ResilienceError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    try:
        print(*said, sep="\n", flush=True)
    except BrokenPipeError:  # whoever read it has seen enough
        sys.stdout = None
    except OSError as error:
        sys.stdout = None  # it would be written once more when the interpreter ends
        print(f"{command}: the output cannot be written: {error.strerror}; what it made is there", file=sys.stderr)
        return 1
    return 0


def _plot(options: argparse.Namespace) -> list[str]:
    """Draw, and return which files were written."""
    from straggler.reporting.heatmap_html import write_html
    from straggler.reporting.heatmap_png import write_png
    from straggler.reporting.picture import picture_of
    from straggler.reporting.picture_files import check_apart
    from straggler.reporting.report_log import records

    picture = picture_of(records(options.log))
    wanted = [options.only] if options.only else ["png", "html"]
    files = {kind: _file_for(kind, options) for kind in wanted}  # all are looked at before one is written
    check_apart(options.log, files)
    write = {"png": write_png, "html": write_html}
    return [str(write[kind](picture, file)) for kind, file in files.items()]


def _file_for(kind: str, options: argparse.Namespace) -> Path:
    """Return where a picture goes: the file that was named, or the one beside the log, if it may be replaced."""
    from straggler.reporting.picture_files import check_default

    named: str | None = getattr(options, kind)
    if named:
        return Path(named)
    beside = Path(options.log).with_suffix(f".{kind}")
    check_default(beside, f"--{kind}")
    return beside


def _simulate(options: argparse.Namespace) -> list[str]:
    """Score the jobs, and return what to say of that."""
    from straggler.simulation.evaluation import Confusion, evaluate, with_stragglers
    from straggler.simulation.reports import write_log
    from straggler.simulation.simulator import SimulatedJob

    marks = Confusion(0, 0, 0)
    for seed in range(options.jobs):
        plain = SimulatedJob(ranks=options.ranks, seed=seed, spread_shape=options.spread_shape)
        job = with_stragglers(plain, options.share, options.slowdown, options.onset)
        marks += evaluate(job)
        if seed == 0 and options.log:
            write_log(job, options.log)
    if not options.share:
        return [
            f"{options.jobs} jobs of {options.ranks} ranks, nobody slowed, {options.onset + 3} reports each: "
            f"{marks.fp} healthy ranks named"
        ]
    return [
        f"{options.jobs} jobs of {options.ranks} ranks, {100 * options.slowdown:g} % slowdowns from report "
        f"{options.onset}, three reports later: F1 {marks.f1:.4f} "
        f"({marks.tp} found, {marks.fn} missed, {marks.fp} healthy ranks named)"
    ]


if __name__ == "__main__":
    sys.exit(main())
