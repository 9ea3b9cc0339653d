"""The exit codes of ``ft_launcher`` and ``ft_autoresume``; a scheduler's script decides by them.

To add one: a constant and its line of :data:`EXPLANATION` here, then ``docs/failures.md``.
"""

from __future__ import annotations

__all__ = ["EXPLANATION", "FAILED", "NO_RESTART", "REFUSED", "SUCCEEDED", "by_signal"]

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
