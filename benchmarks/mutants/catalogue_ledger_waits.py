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
    Mutant(
        "a wait in a save for a rank that has failed counts as work",
        "launcher/reports/last_signs.py",
        "error.section in (None, SETUP):",
        "error.section in (None, SETUP, CHECKPOINTING):",
        _WAITING,
    ),
    Mutant(
        "a wait in a save beside the steps is told from its begin",
        "launcher/reports/last_signs.py",
        "        if error.section == CHECKPOINTING and life.beside_ns:\n",
        "        if False:\n",
        _WAITING,
    ),
    Mutant(
        "a save in which a rank has waited for one that had failed is checkpointing",
        "launcher/reports/rank_lives.py",
        "            all_ns -= wait.until_ns - wait.since_ns\n",
        "            pass\n",
        _WAITING,
    ),
    Mutant(
        "the length of a run is exact though last lines of one of its nodes are missing",
        "launcher/reports/completeness.py",
        "    is_mean_about = is_doubtful(story) and",
        "    is_mean_about = bool(story.runs_about) and",
        ("tests/launcher/reports/test_lost_nodes.py",),
    ),
    Mutant(
        "lost work is exact though some of it was interpolated to nothing",
        "launcher/reports/ledger.py",
        '                is_unsure |= key == "lost_work" and found[index].kept is Kept.ITERATION\n',
        "",
        ("tests/launcher/reports/test_ledger.py",),
    ),
    Mutant(
        "the bar of a ledger shows an estimate as exact",
        "launcher/reports/page_tables.py",
        '        about = "~" if entry.is_about else ""\n        text = ',
        '        about = ""\n        text = ',
        ("tests/launcher/reports/test_page.py",),
    ),
    Mutant(
        "what is typical is the middle between two powers of two",
        "launcher/reports/spread.py",
        "for mean_ns in (least_ns / number, most_ns / number)]",
        "for mean_ns in (low_ns, high_ns)]",
        ("tests/launcher/reports/test_spread.py",),
    ),
    Mutant(
        "what is typical is shown as exact",
        "launcher/reports/limits.py",
        "        is_typical_about=typical_ns is not None,\n",
        "",
        ("tests/launcher/reports/test_spread.py",),
    ),
    Mutant(
        "a section that is open to the end was closed by the failure",
        "launcher/reports/let_go.py",
        " and life.open.get(error.section, error.at_ns + 1) > error.at_ns:",
        ":",
        ("tests/launcher/reports/test_waiting.py",),
    ),
)
