"""Mistakes of reports in waits for a rank that has failed, and in which figures are marked as about right only."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WAITS_IN_LEDGERS"]

_LIMITS = ("tests/launcher/reports/test_limits.py",)
_WAITING = ("tests/launcher/reports/test_waiting.py",)

MUTANTS_OF_WAITS_IN_LEDGERS = (
    Mutant(
        "a wait that ended before its rank was seen to have ended counts under a limit",
        "launcher/reports/let_go.py",
        "    known += [error.at_ns for error in errors if error.is_consequence]\n",
        "",
        _LIMITS,
    ),
)
