"""ft_report: what a run has cost, who failed and why, and what to set, from its log folder.

    ft_report ft_logs/latest
    ft_report ft_logs/latest --html report.html
    ft_report ft_logs/latest --html - > report.html
    ft_report --json - /logs/node-a/run /logs/node-b/run

It only reads files, those of a run that is going on, too, and needs neither torch nor any other package. Exit codes:
0; 2 when there is nothing to report on, or a file cannot be written, or would take the place of one of the run.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Callable, Sequence

from launcher.processes.exit_codes import REFUSED, SUCCEEDED
from launcher.records.readable import readable
from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.folders import NoRunError, run_folders
from launcher.reports.model import Report
from launcher.reports.targets import why_not_into
from launcher.reports.terminal import lines

__all__ = ["main", "make_parser"]

_STANDARD_OUTPUT = "-"
_FIXES = {
    errno.ENOENT: "make its folder first, or name a file in another one",
    errno.ENOTDIR: "name a file in a folder",
    errno.EISDIR: "name a file in it",
    errno.EACCES: "name a file that you may write",
    errno.EROFS: "name a file that you may write",
}
"""What to do where a file cannot be written, by the error's number."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``ft_report``."""
    parser = argparse.ArgumentParser(
        prog="ft_report",
        description="Tell what a run has cost, who failed and why, and what to set; also while it is going on.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="LOG_DIR",
        help="a run's log folder, or the folder of log folders for its newest run; several: the nodes of one run, the "
        "runs of one training, or both",
    )
    parser.add_argument(
        "--html",
        type=_target,
        metavar="FILE",
        help="write one self-contained page, too; '-' for standard output alone",
    )
    parser.add_argument(
        "--json",
        type=_target,
        metavar="FILE",
        help="write the report for programs; '-' for standard output alone",
    )
    parser.add_argument(
        "--straggler-log",
        metavar="FILE",
        action="append",
        default=[],
        help="what Detector.initialize(log_path=...) wrote, unless it lies in the log folder",
    )
    return parser


def _target(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no file; name one, or '-' for standard output")
    return text


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two names of files lead to one, by whatever links; neither needs to be there yet."""
    if _STANDARD_OUTPUT in (one, other):
        return False
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _why_not_into(path: str | None, folders: Sequence[str], logs: Sequence[str]) -> str | None:
    return None if path in (None, _STANDARD_OUTPUT) else why_not_into(path or "", folders, logs)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, report, and return the exit code.

    Args:
        argv: Arguments without the program's name; those of the process when None.
    """
    options = make_parser().parse_args(argv)
    if options.html == options.json == _STANDARD_OUTPUT:
        return _refused("--html - and --json - are two documents in one; name a file for one of them")
    if options.html is not None and options.json is not None and _is_same_file(options.html, options.json):
        return _refused(
            f"--html {options.html} and --json {options.json} name the same file, and only one of the two would be "
            "left in it; name another for one of them"
        )
    if sys.stdout is None:  # closed by whoever started this
        return _refused("standard output is closed, and there is nowhere to report to; lead it to a file or /dev/null")
    try:
        folders = run_folders(options.folders)
        for option, path in (("--html", options.html), ("--json", options.json)):
            why = _why_not_into(path, (*options.folders, *folders), options.straggler_log)
            if why is not None:
                return _refused(
                    f"{option} {path}: {why}, and would be lost; name a file that is not there yet, or one with an "
                    "earlier report"
                )
        report = make_report(folders, options.straggler_log)
    except NoRunError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error.filename or 'a file of the run cannot be read'}: {error.strerror or error}")
    try:
        _write(report, options)
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _refused(f"{error.filename or 'standard output'}: {error.strerror or error}")
    return SUCCEEDED


def _write(report: Report, options: argparse.Namespace) -> None:
    documents: list[tuple[str | None, Callable[[Report], str]]] = [(options.json, as_json)]
    if options.html is not None:
        from launcher.reports.page import page  # a page is asked for seldom

        documents.append((options.html, page))
    for path, made in documents:
        if path == _STANDARD_OUTPUT:
            sys.stdout.buffer.write(made(report).encode())
        elif path is not None:
            _write_file(path, made(report))
    paths = [path for path, _ in documents if path is not None]
    if _STANDARD_OUTPUT not in paths:
        is_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else 80
        is_styled = is_terminal and "NO_COLOR" not in os.environ
        print(_printable("\n".join(lines(report, width, bar=_bar(), is_styled=is_styled))))
    sys.stdout.flush()
    for path in paths:
        if path != _STANDARD_OUTPUT:
            _say(f"written: {path}")


def _write_file(path: str, text: str) -> None:
    """Write a file.

    Raises:
        OSError: It cannot be written; unlike that of ``write``, it knows which file that is.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fix = _FIXES.get(error.errno or 0)
        raise OSError(error.errno, f"{error.strerror}{f'; {fix}' if fix else ''}", path) from error


def _printable(text: str) -> str:
    """Return a text without characters that the output's encoding has not: they are escaped."""
    encoding = sys.stdout.encoding or "utf-8"  # None where it is a buffer of text
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode("ascii")


def _say(text: str) -> None:
    if sys.stderr is not None:  # as it is where the descriptor is closed; print would take standard output then
        # The name of a folder may hold anything: it must neither control a terminal nor begin a message of its own.
        line = readable(text).replace("\n", " ")
        print(f"ft_report: {line}", file=sys.stderr)


def _bar() -> str:
    """Return what bars are made of: a block where the output can show it."""
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _refused(why: str) -> int:
    _say(f"error: {why}")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
