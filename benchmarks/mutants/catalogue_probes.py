"""Mistakes in what probes of the straggler detector measure, and in what becomes of their errors."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_PROBES"]

_PACKAGES = ("tests/straggler/probes/test_recorded_packages.py",)
_GUARDED = ("tests/straggler/probes/test_guarded.py",)
_PROBES = ("tests/straggler/test_probes.py",)
_ROWS = ("tests/straggler/scoring/test_gpu_rows.py",)
_BACKEND = "straggler/probes/cupti_backend.py"
_CUPTI = "straggler/probes/cupti.py"
_EVENTS = "straggler/probes/cuda_events.py"
_GUARD = "straggler/probes/guarded.py"
_SCORER = "straggler/scoring/scorer.py"

MUTANTS_OF_PROBES = (
    Mutant(
        "the count of lost records is asked for with two arguments",
        _BACKEND,
        '"activity_get_num_dropped_records", 0, 0, ctypes.addressof(lost))',
        '"activity_get_num_dropped_records", 0, 0)',
        _PACKAGES,
    ),
    Mutant(
        "NVML is asked for the power with an argument too many",
        "straggler/probes/nvml.py",
        '"nvmlDeviceGetPowerUsage", handle)',
        '"nvmlDeviceGetPowerUsage", handle, 0)',
        _PACKAGES,
    ),
    Mutant(
        "a record that cannot be read is lost unsaid",
        _BACKEND,
        "                self._unreadable = error\n",
        "                pass\n",
        _GUARDED,
    ),
    Mutant(
        "probes are used without a guard",
        "straggler/probes/standard_probes.py",
        "chosen.append(guarded)",
        "chosen.append(probe)",
        _GUARDED,
    ),
    Mutant(
        "the timers of a section are not guarded",
        _GUARD,
        "(_GuardedTimer(timer, self) for timer in section.timers[len(before) :])",
        "(timer for timer in section.timers[len(before) :])",
        _GUARDED,
    ),
    Mutant(
        "a probe that fails is never given up",
        _GUARD,
        "is_last = self._failures >= MAX_FAILURES and not self.lost_because",
        "is_last = False",
        _GUARDED,
    ),
    Mutant(
        "a rank other than 0 does not say which probe it lost",
        "straggler/reporter.py",
        '                logger.warning("straggler: %s", note)\n',
        "                pass\n",
        _GUARDED,
    ),
    Mutant(
        "kernels switched off are said again at each later error",
        _CUPTI,
        "            if self._off_because:\n                return False\n            if ",
        "            if ",
        _PROBES,
    ),
    Mutant(
        "an event that cannot be read takes the others with it",
        _EVENTS,
        "if errors and not taken:",
        "if errors:",
        _PROBES,
    ),
    Mutant(
        "a second thread ends the entry of the first",
        _EVENTS,
        "self._open is None or self._opened_by != get_ident()",
        "self._open is None",
        _PROBES,
    ),
    Mutant(
        "callbacks that are taken before the first kernel are not registered again",
        _CUPTI,
        "            self._is_displaced = True\n            self._empty_entries += sampled\n",
        "            self._is_displaced = self._has_delivered\n            self._empty_entries += sampled\n",
        _PROBES,
    ),
    Mutant(
        "callbacks are registered again only once every section is left",
        _CUPTI,
        "if (self._open == 1 or self._is_displaced) and",
        "if self._open == 1 and",
        _PROBES,
    ),
    Mutant(
        "CUDA events and sampled kernels are rows of one family",
        _EVENTS,
        "measured(Family.GPU_SECTION, ",
        "measured(Family.KERNEL, ",
        _PROBES,
    ),
    Mutant(
        "a GPU is scored by sections although its kernels are known",
        _SCORER,
        "_GPU_FAMILIES = (Family.KERNEL, Family.GPU_SECTION)",
        "_GPU_FAMILIES = (Family.GPU_SECTION, Family.KERNEL)",
        _ROWS,
    ),
    Mutant(
        "kernels that no peer has hide slow sections",
        _SCORER,
        "(has & (has.sum(axis=1, keepdims=True) > 1)).any(axis=0)",
        "has.any(axis=0)",
        _ROWS,
    ),
)
