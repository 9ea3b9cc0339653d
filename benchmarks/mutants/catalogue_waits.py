"""Mistakes in what counts as waiting for other ranks, and in who is named by the own work of an iteration."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WAITS"]

_WAITS_TESTS = ("tests/straggler/measurement/test_waits.py",)
_FIRST_CALLS = ("tests/straggler/test_first_calls.py",)
_KEPT_PAST = ("tests/straggler/reporting/test_kept_past.py",)
_REPORTS = ("tests/straggler/reporting/test_report.py",)
_WAITS = "straggler/measurement/waits.py"
_OWN = "straggler/probes/own_work.py"
_SCORER = "straggler/scoring/scorer.py"

MUTANTS_OF_WAITS = (
    Mutant(
        "own work holds what the thread waits for a core in a collective",
        _WAITS,
        "            self._within_ns += now - core_ns\n",
        "            pass\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "an iteration on a core holds the waits for one",
        _OWN,
        "own - self._waits.apart_since(self._apart)",
        "own",
        _WAITS_TESTS,
    ),
    Mutant(
        "a section on a core holds the waits for one",
        "straggler/measurement/section.py",
        "self._on_core.append(own - apart)",
        "self._on_core.append(own)",
        _WAITS_TESTS,
    ),
    Mutant(
        "waits for a core are never looked at",
        _WAITS,
        "now - before >= _LEAST_CORE_SHARE * elapsed",
        "False",
        _WAITS_TESTS,
    ),
    Mutant(
        "what another thread waits for counts",
        _WAITS,
        "for clock in _clocks if clock.thread == thread]",
        "for clock in _clocks]",
        _WAITS_TESTS,
    ),
    Mutant(
        "the wait at the end of a backward pass is not seen",
        _WAITS,
        "        waited = perf_counter_ns() - began\n        for clock, core_ns in watching:\n",
        "        waited = perf_counter_ns() - began\n        for clock, core_ns in ():\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "a backward pass is followed where no gradients are exchanged",
        _WAITS,
        'and getattr(self, "require_backward_grad_sync", False)',
        "and True",
        _WAITS_TESTS,
    ),
    Mutant(
        "what was replaced is not put back",
        _WAITS,
        "        if getattr(owner, name, None) is made:\n",
        "        if False:\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "what somebody else has replaced since is overwritten",
        _WAITS,
        "        if getattr(owner, name, None) is made:\n",
        "        if True:\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "the first clock that stops ends the watching of all",
        _WAITS,
        "            if not _clocks:\n                while _undo",
        "            if True:\n                while _undo",
        _WAITS_TESTS,
    ),
    Mutant(
        "the own work of an iteration holds its waits",
        _OWN,
        "own = now - self._began - waited + self._waited",
        "own = now - self._began",
        _WAITS_TESTS,
    ),
    Mutant(
        "an iteration with a checkpoint is not left out",
        _OWN,
        "        self._is_left_out = True\n",
        "        pass\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "collectives that are not seen are not said",
        _OWN,
        "is_unseen=begun > 0 and seen == 0",
        "is_unseen=False",
        _WAITS_TESTS,
    ),
    Mutant(
        "an arrival holds the waits before it",
        "straggler/measurement/section.py",
        "self.arrivals.append(start - clock.last_release_ns - waited + clock.waited_at_release_ns)",
        "self.arrivals.append(start - clock.last_release_ns)",
        _WAITS_TESTS,
    ),
    Mutant(
        "what a section does beside its collective is noise that is told",
        "straggler/probes/cpu_wall.py",
        "if is_synchronous and seconds.sum() >= _LEAST_SHARE * elapsed:",
        "if is_synchronous:",
        _WAITS_TESTS,
    ),
    Mutant(
        "only the collectives of the default group count",
        "straggler/measurement/collectives.py",
        "        for group in list(groups):\n",
        "        for group in list(groups)[:1]:\n",
        _WAITS_TESTS,
    ),
    Mutant(
        "ranks whose detector was made before the process group are never compared",
        "straggler/measuring.py",
        "        self._is_same_group = same_group()\n        self._is_early",
        "        return\n        self._is_early",
        ("tests/straggler/test_late_group.py",),
    ),
    Mutant(
        "sections of before the process group never find out that they contain a collective",
        "straggler/measurement/section.py",
        "            self._check_at = self.entries + -self.entries % self._interval\n",
        "            self._check_at = self._check_at\n",
        (*_WAITS_TESTS, "tests/straggler/test_late_group.py"),
    ),
    Mutant(
        "the own work of iterations is not scored",
        _SCORER,
        "            (own.names, *_statistics(own)),\n",
        "",
        _REPORTS,
    ),
    Mutant(
        "of two ranks the one that waits is blamed for it",
        "straggler/scoring/pairs.py",
        "        if (waiting := _who_waits(window, first, second)) is not None:\n",
        "        if (waiting := None) is not None:\n",
        _REPORTS,
    ),
    Mutant(
        "the iteration is named where a section explains it",
        "straggler/reporting/rank_verdicts.py",
        "_SHARE_EXPLAINED = 0.7",
        "_SHARE_EXPLAINED = 1.0",
        _REPORTS,
    ),
    Mutant(
        "a rank is compared with the past of another machine",
        "straggler/reporting/kept_past.py",
        '        ("nodes", "ranks are on other hosts"),\n',
        "",
        _KEPT_PAST,
    ),
    Mutant(
        "a new job is compared with the past of another one",
        "straggler/reporting/kept_past.py",
        "if self._is_first and self._generation > 0:",
        "if self._is_first:",
        _KEPT_PAST,
    ),
    Mutant(
        "what all ranks evaluate with shares a row with training",
        "straggler/section_registry.py",
        "self.now = self._evaluation if is_evaluation else self._training",
        "self.now = self._training",
        ("tests/straggler/test_detector.py",),
    ),
    Mutant(
        "a store that has gone with its group is still called",
        "straggler/exchange/bounded_calls.py",
        "if not self.can_call or not self._presence.is_expected():",
        "if not self.can_call:",
        ("tests/straggler/exchange/test_exchange.py",),
    ),
    Mutant(
        "the first iteration with a process group imports what it needs",
        "straggler/first_calls.py",
        "        watched_modules()\n",
        "        pass\n",
        _FIRST_CALLS,
    ),
    Mutant(
        "the first report imports what it needs",
        "straggler/first_calls.py",
        '    import_module("numpy.ma")\n',
        "",
        _FIRST_CALLS,
    ),
    Mutant(
        "an iteration waits for the connection to the store of a new process group",
        "straggler/exchange/store.py",
        'self._helper.begin("connecting to the store", lambda: self._connect(store))',
        "self._connect(store)",
        ("tests/straggler/exchange/test_exchange.py",),
    ),
    Mutant(
        "an iteration waits until the reports of a process group that has gone are closed",
        "straggler/scheduled_reports.py",
        "        self._thread.do(close)\n",
        "        close()\n",
        ("tests/straggler/test_scheduled_reports.py",),
    ),
)
