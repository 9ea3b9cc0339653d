"""ft_launcher's command line: torchrun's own parser plus one group of options; parse, then run.

Exit codes: 0 when every worker ended with 0; 1 when the job failed; 2 when it was not started because of how it
was asked for; ``--ft-no-restart-exit-code`` (93) when it was given up for lack of progress.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, and return the exit code.

    Args:
        argv: Arguments without the program's name; those of the process when None.
    """
    problem = _platform_problem()
    if problem is not None:
        return _refuse(problem)
    from resilience_core.errors import ResilienceError

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except (ResilienceError, argparse.ArgumentTypeError) as error:
        return _refuse(str(error))


def console_main() -> None:
    """Entry point of the process: run, and leave at once.

    Everything of ours is flushed and closed by then. Tearing down an interpreter that has imported torch takes a
    quarter of a second in which a finished job would still hold its machines.
    """
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:
    from launcher.options import parse
    from launcher.run import run

    return run(parse(arguments))


def _platform_problem() -> str | None:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return f"this system ({sys.platform}) has no pidfd; ft_launcher needs Linux 5.4 or newer"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return (
            f"this kernel ({os.uname().release}) has no pidfd ({error.strerror}); ft_launcher needs Linux 5.4 or newer"
        )
    return None


def _refuse(why: str) -> int:
    print(f"ft_launcher: error: {why}", file=sys.stderr)
    return USAGE_ERROR
