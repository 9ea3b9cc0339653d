"""The deliberate mistakes: in the parts that decide, kill and restart. Each must be found by a test.

``old`` must stand in its file exactly once: a mistake that can no longer be made there is an error, and is to be put
where that decision is taken now.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What should find it: pytest's arguments, the quick ones first."""


MUTANTS = (
    # ---- the nine that the tests of the first version did not find, as far as they are named ----
    Mutant(
        "a stuck monitor is never replaced",
        "launcher/monitor_process.py",
        "        elif now_ns - self._alive[0] > _STUCK_NS:\n",
        "        elif False:\n",
        ("tests/launcher", "tests/e2e/test_monitor_process.py"),
    ),
    Mutant(
        "the keeper does not check its own oversleep",
        "launcher/monitor_process.py",
        "            overslept = now_ns - last_look_ns > 2 * int(_LOOK_SECONDS * 1e9)\n",
        "            overslept = False\n",
        ("tests/launcher", "tests/e2e/test_monitor_process.py"),
    ),
    Mutant(
        "overdue ranks are asked, and waited for, when a generation ends",
        "launcher/generation.py",
        "            at_once=self.condemned | self._overdue(),\n",
        "            at_once=self.condemned,\n",
        ("tests/launcher", "tests/e2e/test_hangs.py", "tests/e2e/test_launcher_end.py"),
    ),
    Mutant(
        "the zygote does not ask about CUDA",
        "launcher/preloading.py",
        "if ask is not None and ask():",
        "if False:",
        ("tests/launcher", "tests/e2e/test_warm_workers.py"),
    ),
    Mutant(
        "orphans that the launcher has adopted are not reaped",
        "launcher/agent.py",
        "            current.reap_orphans()\n",
        "",
        ("tests/e2e/test_failures.py::test_orphans_that_have_ended_are_collected_while_training_goes_on",),
    ),
    Mutant(
        "the zygote is not renewed when variables that are read at import change",
        "launcher/warm_starter.py",
        "            if zygote.has_reported and not zygote.finds(self._environment):\n",
        "            if False:\n",
        ("tests/launcher", "tests/e2e/test_warm_workers.py"),
    ),
    Mutant(
        "the second look is not taken",
        "launcher/monitor.py",
        "r.verdict(v := r.view(), later_ns) == first_look[r] and not r.is_gone(v)",
        "True",
        ("tests/launcher",),
    ),
    # ---- more in the parts that decide ----
    Mutant(
        "lost time is not given back",
        "launcher/monitor.py",
        "                    rank.give_back(now_ns - looked_ns)\n",
        "                    pass\n",
        ("tests/launcher", "tests/e2e/test_monitor_process.py"),
    ),
    Mutant(
        "a fresh monitor believes old deadlines at once",
        "launcher/watch.py",
        "FRESH_MONITOR_DOUBT_NS = 1_000_000_000\n",
        "FRESH_MONITOR_DOUBT_NS = 0\n",
        ("tests/launcher",),
    ),
    Mutant(
        "a deadline is late only after it has passed",
        "launcher/verdict.py",
        "now_ns >= deadline.at_ns + given_back_ns(deadline)",
        "now_ns > deadline.at_ns + given_back_ns(deadline)",
        ("tests/launcher/test_verdict.py",),
    ),
    Mutant(
        "out-of-section time is limited inside sections",
        "launcher/verdict.py",
        "    if not view.sections and _runs(view.out_of_section_ns):\n",
        "    if _runs(view.out_of_section_ns):\n",
        ("tests/launcher/test_verdict.py", "tests/launcher/test_rules.py"),
    ),
    Mutant(
        "only the first rank whose deadline passed is condemned",
        "launcher/monitor.py",
        "            and rank.next_deadline_ns(view := rank.view()) <= now_ns + DUE_TOGETHER_NS\n",
        "            and rank.next_deadline_ns(view := rank.view()) <= now_ns\n",
        ("tests/launcher", "tests/e2e/test_hangs.py"),
    ),
    Mutant(
        "the rank that is ahead is blamed",
        "launcher/blame.py",
        "        behind = [s for s in suspects if s.iteration == min(iterations)]\n",
        "        behind = [s for s in suspects if s.iteration == max(iterations)]\n",
        ("tests/launcher/test_blame.py",),
    ),
    # ---- in the parts that kill and restart ----
    Mutant(
        "a condemned rank that survives its signal is not killed",
        "launcher/monitor.py",
        "                    send_signal(pidfd, signal.SIGKILL)\n",
        "                    pass\n",
        ("tests/launcher", "tests/e2e/test_hangs.py"),
    ),
    Mutant(
        "a stopped rank is not continued, so that it takes no signal but SIGKILL",
        "launcher/condemn.py",
        "            send_signal(pidfd, signal.SIGCONT)  # a stopped process takes the pending signal on waking\n",
        "",
        ("tests/launcher", "tests/e2e/test_hangs.py"),
    ),
    Mutant(
        "what a worker started outlives it",
        "launcher/workers.py",
        "        if self._were_asked or not spares_leftovers:\n",
        "        if False:\n",
        ("tests/launcher", "tests/e2e/test_failures.py"),
    ),
)
