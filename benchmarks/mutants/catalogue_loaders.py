"""Mistakes in what is told of waits for workers of data loaders, and in who is named for them."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_LOADERS"]

_TESTS = ("tests/straggler/measurement/test_loaders.py",)
_SCORES = ("tests/straggler/scoring/test_processor_waits.py",)
_LOADERS = "straggler/measurement/loaders.py"
_WAITS = "straggler/measurement/waits.py"
_OWN = "straggler/probes/own_work.py"
_BUSY = "straggler/scoring/processor_waits.py"
_VERDICTS = "straggler/reporting/rank_verdicts.py"

MUTANTS_OF_LOADERS = (
    Mutant(
        "a wait for workers is one for other ranks",
        _WAITS,
        "    return _telling(WaitClock.add_loader, original)\n",
        "    return _telling(WaitClock.add, original)\n",
        _TESTS,
    ),
    Mutant(
        "a wait for a core while workers are waited for counts twice",
        _WAITS,
        "        self.loader_ns += nanoseconds - (0 if core_ns is None or now is None else now - core_ns)\n",
        "        self.loader_ns += nanoseconds\n",
        _TESTS,
    ),
    Mutant(
        "own work holds the waits for workers",
        _WAITS,
        "        return waited + self.loader_ns - before[1]\n",
        "        return waited\n",
        _TESTS,
    ),
    Mutant(
        "batches of a loader without workers count as made by workers",
        _LOADERS,
        "        if worker is None:\n            return original(*args, **kwargs)\n",
        "",
        _TESTS,
    ),
    Mutant(
        "two workers count as slow as one",
        _LOADERS,
        "made.add(took // worker.num_workers, ",
        "made.add(took, ",
        _TESTS,
    ),
    Mutant(
        "the mean of all batches so far hides a change of the workers",
        _OWN,
        "self._loaded.since(before)",
        "self._loaded",
        _TESTS,
    ),
    Mutant(
        "the share of waits for workers is that since the start",
        _OWN,
        "(self._cut[1] - waited)",
        "self._cut[1]",
        _TESTS,
    ),
    Mutant(
        "what workers waited for a core is a part of what a batch takes",
        _OWN,
        "made.took_ns - made.waited_ns",
        "made.took_ns",
        _TESTS,
    ),
    Mutant(
        "waits for workers hide those of the workers for a core",
        _BUSY,
        "            loads = np.zeros_like(loads)  # it is",
        "            pass  # it is",
        _SCORES,
    ),
    Mutant(
        "a wait for workers that lasts is a straggler",
        _BUSY,
        "np.nan_to_num(np.maximum(self._waits[-1] - self._loads[-1], 0.0))",
        "np.nan_to_num(self._waits[-1])",
        _SCORES,
    ),
    Mutant(
        "a wait for workers excuses what is slow without it",
        _BUSY,
        "        waits = np.where(np.isnan(of_row), waits, all_waits - loads)\n",
        "        waits = np.where(np.isnan(of_row), waits, all_waits)\n",
        _SCORES,
    ),
    Mutant(
        "caches are cold after a wait for workers on an idle machine",
        _BUSY,
        "np.where(self._is_busy(known), all_waits, all_waits - loads)",
        "all_waits",
        _SCORES,
    ),
    Mutant(
        "a busy machine does not use the caches of a thread that sleeps",
        _BUSY,
        "np.where(self._is_busy(known), all_waits, all_waits - loads)",
        "all_waits - loads",
        _SCORES,
    ),
    Mutant(
        "workers of which nothing is known are called as fast as others",
        _VERDICTS,
        "        if slower < MATERIAL_SHARE:\n",
        "        if True:\n",
        _SCORES,
    ),
    Mutant(
        "a wait for workers is called one for a core",
        _VERDICTS,
        "        is_of_workers = loading > 0.5 * waited\n",
        "        is_of_workers = False\n",
        _SCORES,
    ),
)
