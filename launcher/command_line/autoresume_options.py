"""The command line of ft_autoresume."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from launcher.processes.exit_codes import NO_RESTART, REFUSED
from resilience_core import __version__
from resilience_core.config import converters
from resilience_core.environment import FINISHED_FLAG_VARIABLE

__all__ = ["make_parser"]

T = TypeVar("T")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="ft_autoresume",
        usage="ft_autoresume [options] -- ft_launcher ...",
        description="Run ft_launcher again until training has made its finished flag.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--flag-file",
        metavar="PATH",
        help=f"the file that means complete (default: ${FINISHED_FLAG_VARIABLE}, else ./ft_finished)",
    )
    parser.add_argument(
        "--max-failures",
        type=_count,
        default=10,
        metavar="N",
        help="failed runs in a row after which to give up; 0: no limit (default 10)",
    )
    parser.add_argument(
        "--max-without-progress",
        type=_count,
        default=3,
        metavar="N",
        help="runs in a row without progress, judged as by --ft-max-no-progress-cycles, after which to give up; "
        "0: no limit (default 3)",
    )
    parser.add_argument("--version", action="version", version=f"ft_autoresume {__version__}")
    parser.add_argument(
        "--backoff", type=_seconds, default=1.0, metavar="SECONDS", help="wait after a failure; doubles (default 1)"
    )
    parser.add_argument(
        "--max-backoff", type=_seconds, default=300.0, metavar="SECONDS", help="the longest wait (default 300)"
    )
    parser.add_argument(
        "--final-exit-codes",
        type=_codes,
        default=(REFUSED, NO_RESTART),
        metavar="CODE,...",
        help="the launcher's codes after which another run is useless "
        f"(default {REFUSED},{NO_RESTART}: refused, no progress)",
    )
    return parser


def _count(text: str) -> int:
    return _converted(converters.count, text)


def _seconds(text: str) -> float:
    return _converted(converters.duration, text)


def _converted(convert: Callable[[str], T], text: str) -> T:
    try:
        return convert(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _codes(text: str) -> tuple[int, ...]:
    codes = [part.strip() for part in text.split(",") if part.strip()]
    for code in codes:
        if not (code.isascii() and code.isdigit() and int(code) < 256):
            raise argparse.ArgumentTypeError(f"{code!r} is no exit code; give numbers from 0 to 255, such as 2,93")
    return tuple(map(int, codes))
