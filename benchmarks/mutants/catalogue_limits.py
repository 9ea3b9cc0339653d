"""Deliberate mistakes in how limits are learned, which of them is in force, and when a start counts as too slow."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_LIMITS"]

MUTANTS_OF_LIMITS = (
    # ---- which limit is in force ----
    Mutant(
        "learned limits are in force although they were switched off",
        "resilience_core/learned_limits.py",
        "        learned = self._learned_seconds() if self._is_used else {}\n",
        "        learned = self._learned_seconds()\n",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "a default that nobody chose is taken for a person's word",
        "resilience_core/learned_limits.py",
        'config.is_given("rank_heartbeat_timeout"))',
        "True)",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "a later run forgets the first heartbeat that an earlier one has timed",
        "resilience_core/learned_limits.py",
        "(first.longest_ns == 0 and not self._heartbeat.were_calculated)",
        "first.longest_ns == 0",
        ("tests/resilience_core/test_learned_limits.py", "tests/resilience_core/test_client.py"),
    ),
    Mutant(
        "a second calculation forgets how long the first heartbeat took",
        "resilience_core/timeouts.py",
        "initial=in_force.initial if first_ns == 0 else learn(",
        "initial=learn(",
        ("tests/resilience_core/test_timeouts.py", "tests/resilience_core/test_client.py"),
    ),
    Mutant(
        "a section that no rank has been in is learned",
        "resilience_core/learned_limits.py",
        "        missing = [name for name, seen in sections.items() if not seen.longest_ns]\n",
        "        missing: list[str] = []\n",
        ("tests/resilience_core/test_learned_limits.py", "tests/resilience_core/test_client.py"),
    ),
    Mutant(
        "only what this process has seen last counts as its own evidence",
        "resilience_core/learned_limits.py",
        "self._own_intervals.get(kind, 0) + seen.intervals",
        "seen.intervals",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "verdicts of long ago make a limit endless",
        "resilience_core/learned_limits.py",
        "{kind: min(count, 10) for kind",
        "{kind: count for kind",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "thin evidence ends a job that no restart could save",
        "resilience_core/learned_limits.py",
        "        if is_thin and self._is_last and seconds <",
        "        if False and seconds <",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "plenty of evidence does not count where no restart is left",
        "resilience_core/learned_limits.py",
        "        if is_thin and self._is_last and seconds <",
        "        if is_relax and self._is_last and seconds <",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "a limit is the longer one though restarts are left",
        "resilience_core/learned_limits.py",
        """int(environment["TORCHELASTIC_RESTART_COUNT"]) >= int(""",
        """int(environment["TORCHELASTIC_RESTART_COUNT"]) >= 0 * int(""",
        ("tests/resilience_core/test_learned_limits.py",),
    ),
    Mutant(
        "a rank is not told that no restart is left",
        "resilience_core/client.py",
        "is_last=no_restart_is_left(os.environ)",
        "is_last=False",
        ("tests/resilience_core/test_learning.py",),
    ),
    Mutant(
        "a limit that was withheld is said to have led to a verdict",
        "launcher/condemn.py",
        "limit_learned=report.limit_learned if rank in late else None,",
        "limit_learned=report.limit_learned,",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "it is not said why a limit that has passed was no verdict",
        "launcher/rounds.py",
        "is_late=False, held=sighting.held))",
        "is_late=False))",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "a limit learned between sections does not count for the interval that is open",
        "resilience_core/client.py",
        "        if words[OUT_OF_SECTION] == NO_LIMIT:\n",
        "        if False:\n",
        ("tests/resilience_core/test_client.py",),
    ),
    Mutant(
        "a limit that is learned cuts a configured one short that is running",
        "resilience_core/client.py",
        "        if words[OUT_OF_SECTION] == NO_LIMIT:\n",
        "        if words[OUT_OF_SECTION] != CLOSED:\n",
        ("tests/resilience_core/test_client.py",),
    ),
    Mutant(
        "a limit learned between heartbeats does not count for the interval that is open",
        "resilience_core/client.py",
        "        if words[HEARTBEAT] == NO_LIMIT and self._has_sent_heartbeat:\n",
        "        if False:\n",
        ("tests/resilience_core/test_client.py",),
    ),
    # ---- what may be learned when ----
    Mutant(
        "ranks learn together after one of them has failed",
        "resilience_core/learning.py",
        "        if not self.calculate_timeouts or history.has_failed:\n",
        "        if not self.calculate_timeouts:\n",
        ("tests/resilience_core/test_learning.py",),
    ),
    Mutant(
        "a file that is not ours is overwritten with what was learned",
        "resilience_core/learning.py",
        "            self._may_write = False\n",
        "            pass\n",
        ("tests/resilience_core/test_learning.py",),
    ),
    Mutant(
        "all ranks write the state file",
        "resilience_core/learning.py",
        "        if self._context.rank != 0:\n            return\n",
        "",
        ("tests/resilience_core/test_learning.py",),
    ),
    Mutant(
        "time out of sections is learned in a run that has never saved",
        "resilience_core/learning.py",
        "self.was_loaded_persistent and self.has_enough_steps and self.saves > 0",
        "self.was_loaded_persistent and self.has_enough_steps",
        ("tests/resilience_core/test_learning.py",),
    ),
    Mutant(
        "each rank learns from itself alone where there is no group",
        "resilience_core/learning.py",
        "        if self._context.world_size > 1 and not is_distributed():\n",
        "        if False:\n",
        ("tests/resilience_core/test_learning.py",),
    ),
    # ---- how long a start may take ----
    Mutant(
        "a configured startup limit kills a job that never uses the client",
        "launcher/job_limits.py",
        "            if not (uses_client or self._initialised):\n                return None\n",
        "",
        ("tests/launcher/test_job_limits.py",),
    ),
    Mutant(
        "the last start counts, and not the longest",
        "launcher/job_limits.py",
        "max(self._longest_start_ns, at_ns - started_ns)",
        "at_ns - started_ns",
        ("tests/launcher/test_job_limits.py",),
    ),
    Mutant(
        "a rank that never used the client is held to the start of another",
        "launcher/job_limits.py",
        "        if local_rank not in self._initialised or config",
        "        if not self._initialised or config",
        ("tests/launcher/test_job_limits.py",),
    ),
    Mutant(
        "a startup limit that led to a verdict stays as it is",
        "launcher/job_limits.py",
        "config.thin_evidence_floor, 1.0) * RELAXATION**relaxed\n",
        "config.thin_evidence_floor, 1.0)\n",
        ("tests/launcher/test_job_limits.py",),
    ),
    Mutant(
        "a verdict on a learned limit is forgotten in the generation after the next",
        "launcher/job_limits.py",
        "            self._relaxed[kind] = self._relaxed.get(kind, 0) + 1\n",
        "            self._relaxed = {kind: 1}\n",
        ("tests/launcher/test_job_limits.py",),
    ),
)
