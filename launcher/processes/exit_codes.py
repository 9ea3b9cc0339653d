"""Name the exit codes of ``ft_launcher`` and ``ft_autoresume``, which scripts decide by, and of what they start.

To add one of the former: a constant and its line of :data:`EXPLANATION` here, then ``docs/failures.md``.
"""

from __future__ import annotations

__all__ = [
    "EXPLANATION",
    "FAILED",
    "FORKED",
    "FORK_REFUSED",
    "HAS_USED_A_DEVICE",
    "LOST_PARENT",
    "MAY_BE_FORKED",
    "NO_LONGER_NEEDED",
    "NO_RESTART",
    "NO_SCRIPT",
    "REFUSED",
    "REPLACED",
    "SUCCEEDED",
    "UNCAUGHT_EXCEPTION",
    "UNREADABLE_ORDER",
    "by_signal",
]

SUCCEEDED = 0
FAILED = 1
REFUSED = 2
"""Not started because of how it was asked for; argparse ends with the same code."""
NO_RESTART = 93
"""The default of ``no_restart_exit_code``; ``resilience_core.config`` has it, and a test holds the two together."""

EXPLANATION = f"""\
exit codes:
  {SUCCEEDED}   every worker ended with 0
  {FAILED}   the job failed, or was ended by a signal before every worker had ended with 0
  {REFUSED}   it was not started because of how it was asked for: options, files, versions
  {NO_RESTART}  given up: no progress, or an error in its configuration (--ft-no-restart-exit-code)
  128 + N  ended by signal N before a worker was started
"""
"""As ``ft_launcher --help`` shows it."""


def by_signal(number: int) -> int:
    """Return the code of a process that a signal has ended, as shells report it."""
    return 128 + number


# ---- of processes that the launcher starts --------------------------------------------------------------

MAY_BE_FORKED = 0
"""Of the throw-away fork of a zygote: no device was used before the fork."""
HAS_USED_A_DEVICE = 3
"""Of that fork: the preloaded modules have used a device, which no forked process can use then."""
NO_LONGER_NEEDED = 0
"""Of a zygote or a parked worker whose launcher has closed its end of the link."""
FORKED = 0
"""Of the process between zygote and worker: it has forked the worker."""
FORK_REFUSED = 1
"""Of that process where the system refused and gave no errno; otherwise it exits with the errno."""
LOST_PARENT = 1
"""Of a zygote or a worker that started after its launcher had died."""
REPLACED = 1
"""Of a warm worker that was late: the launcher has started another one in its place."""
UNREADABLE_ORDER = 1
"""Of a parked worker whose order is of another version of torch-resilience."""
UNCAUGHT_EXCEPTION = 1
"""Of a warm worker whose script raised; the interpreter ends with the same code."""
NO_SCRIPT = 2
"""Of a warm worker whose script cannot be opened; the interpreter ends with the same code."""
