"""The part of CUPTI that the kernels' probe uses, and the real one through ``cupti-python`` (extra ``gpu``).

**The unit of time stamps.** CUPTI stamps records in nanoseconds unless the process has registered a clock of its own
with it, which cannot be undone. ``torch.profiler`` does: after its first session the stamps are ticks of the
processor's time stamp counter (seen with torch 2.11 and CUPTI 13.0 on an H200: every kernel looked 2.09 times as long,
at a counter of 2.1 GHz). ``cuptiGetTimestamp`` reads the clock that records are stamped with. Comparing it with the
monotonic clock gives the length of a tick: once when callbacks are registered, over ``CALIBRATION_NS``, and again over
all the time since then at every flush. Source: NVIDIA's "CUPTI API Reference",
``cuptiActivityRegisterTimestampCallback`` and ``cuptiGetTimestamp``.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

__all__ = ["CALIBRATION_NS", "CuptiBackend", "CuptiError", "CuptiPython", "KernelRecord"]

KernelRecord = tuple[str, int, int]
"""Name, start and end in nanoseconds."""

CALIBRATION_NS = 1_000_000
_NEAR = 0.01
"""A ratio this near to one is one; one that differs by more from the calibrated one is of another clock."""


class CuptiError(Exception):
    """CUPTI refused, in its own words. Never leaves the probe."""


class CuptiBackend(Protocol):
    """The part of CUPTI that is used. Every method may raise :class:`CuptiError`."""

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        ...

    def register(self, deliver: Callable[[Iterable[KernelRecord]], None]) -> None:
        """Register what is called with each buffer of kernel records."""

    def enable(self) -> None:
        """Begin to record kernels."""

    def disable(self) -> None:
        """Cease to record kernels."""

    def flush(self) -> None:
        """Deliver all records so far."""

    def dropped(self) -> int:
        """Return the number of records lost since the last call."""
        ...


class CuptiPython:
    """CUPTI through cupti-python, imported when first needed: the wheel exists for Linux on x86-64 only.

    Args:
        cupti: Instead of the module ``cupti.cupti``.
        monotonic_ns: Instead of the monotonic clock.
    """

    def __init__(self, cupti: Any = None, *, monotonic_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._cupti = cupti
        self._monotonic_ns = monotonic_ns
        self._ns_per_tick = 1.0
        self._registered_at = (0, 0)
        self._unreadable: Exception | None = None

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        import torch

        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        try:
            self._cupti = importlib.import_module("cupti.cupti")
        except ImportError:
            return "cupti-python is not installed; it is part of the extra 'gpu'"
        return ""

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._cupti, name)(*arguments)
        except Exception as error:
            raise CuptiError(f"{name}: {error}") from error

    def register(self, deliver: Callable[[Iterable[KernelRecord]], None]) -> None:
        """Register what is called with each buffer of kernel records, and measure the clock that stamps them."""
        kind = self._cupti.ActivityKind.CONCURRENT_KERNEL

        def requested() -> tuple[int, int]:
            return 8 * 1024 * 1024, 0

        def completed(activities: Iterable[Any]) -> None:
            tick = self._ns_per_tick
            try:
                if tick == 1.0:
                    records = [(str(a.name), int(a.start), int(a.end)) for a in activities if a.kind == kind]
                else:
                    records = [
                        (str(a.name), int(a.start * tick), int(a.end * tick)) for a in activities if a.kind == kind
                    ]
            except Exception as error:  # noqa: BLE001 - CUPTI's thread would only print it: flush() raises it
                self._unreadable = error
            else:
                deliver(records)

        self._call("activity_register_callbacks", requested, completed)
        self._registered_at = self._both_clocks()
        while self._both_clocks()[1] - self._registered_at[1] < CALIBRATION_NS:
            pass
        self._ns_per_tick = self._ratio()

    def _both_clocks(self) -> tuple[int, int]:
        return int(self._call("get_timestamp")), self._monotonic_ns()

    def _ratio(self) -> float:
        ticks, nanoseconds = self._both_clocks()
        elapsed = ticks - self._registered_at[0]
        ratio = (nanoseconds - self._registered_at[1]) / elapsed if elapsed > 0 else 1.0
        return 1.0 if abs(ratio - 1.0) < _NEAR else ratio

    def enable(self) -> None:
        """Begin to record kernels."""
        self._call("activity_enable", self._cupti.ActivityKind.CONCURRENT_KERNEL)

    def disable(self) -> None:
        """Cease to record kernels."""
        self._call("activity_disable", self._cupti.ActivityKind.CONCURRENT_KERNEL)

    def flush(self) -> None:
        """Deliver all records so far."""
        ratio = self._ratio()
        if abs(ratio / self._ns_per_tick - 1.0) < _NEAR:
            self._ns_per_tick = ratio
        self._call("activity_flush_all", 0)
        error, self._unreadable = self._unreadable, None
        if error is not None:
            raise CuptiError(f"a kernel's record cannot be read: {type(error).__name__}: {error}") from error

    def dropped(self) -> int:
        """Return the number of records lost since the last call."""
        lost = ctypes.c_size_t()  # the binding takes the address at which CUPTI writes the number
        self._call("activity_get_num_dropped_records", 0, 0, ctypes.addressof(lost))
        return lost.value
