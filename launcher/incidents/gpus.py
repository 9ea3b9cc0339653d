"""What NVML tells of the GPUs of ranks when one has failed: clocks, what slows them down, errors, heat, memory.

NVML is asked in a thread of its own, since a driver may never answer, and closed after each look, since an open device
cannot be reset. One look takes some milliseconds. What device, driver or bindings do not know is left out.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.health.check import Machine
from launcher.health.nvml import find_bindings, has_gpus, shut_down, uncorrected_errors
from launcher.processes.background import Background
from launcher.processes.evidence import uses_a_gpu

__all__ = ["GpuEvidence", "GpuLine", "gpu_lines"]

_MOST_GPUS = 16
_SLOWED_BY = {
    0x2: "the clocks that were set for applications",
    0x4: "its power limit",
    0x8: "hardware (heat or power)",
    0x10: "the slowest GPU of its group",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "the power supply (hardware)",
    0x100: "the clocks that were set for its display",
}
"""``nvmlClocksEventReasons``; 0x1 is an idle GPU, which is nothing that slows it down."""
_TROUBLE = 0x8 | 0x40 | 0x80


class GpuLine(NamedTuple):
    """What is said of one GPU."""

    text: str
    is_trouble: bool
    """Whether it may well explain a failure: errors of its memory, or its hardware slows it down."""


class GpuEvidence:
    """Asks NVML at a failure.

    Args:
        bindings: The file of the module pynvml, for a process that does not find it by its name, as the monitor.
    """

    def __init__(self, bindings: str | None = None) -> None:
        self._bindings = bindings
        self._background = Background("ft_gpus", 1)
        if has_gpus(Machine()):  # to import the bindings takes as long as a look may
            self._background.start()
            self._background.submit(lambda: _imported(self._bindings or find_bindings()), 0)  # leaves room for a look

    def begin(self, ranks: Mapping[int, str], timeout_seconds: float, *, were_used: bool) -> GpuLook:
        """Look at the GPUs of ranks, without waiting for that.

        Args:
            ranks: Process to what people call it.
            timeout_seconds: Until when, from now, the answer is waited for where it is asked for.
            were_used: Some of those that have ended had a GPU open; of those that have not, it is looked up.
        """
        look = GpuLook(time.monotonic() + timeout_seconds)

        def read() -> None:
            try:
                if were_used or any(map(uses_a_gpu, ranks)):
                    nvml = _imported(self._bindings or find_bindings())
                    look.lines = () if nvml is None else tuple(gpu_lines(nvml, ranks))
            finally:
                look.is_done.set()

        if ranks:
            self._background.start()
        # Without a thread it would be asked here, without a bound. No room: the last look hangs.
        if not ranks or not self._background.is_started or not self._background.submit(read):
            look.is_done.set()
        return look


def _imported(file: str | None) -> Any:
    """Return the module pynvml; None where there is none."""
    if file is None:
        return None
    if (known := sys.modules.get("pynvml")) is not None:
        return known
    spec = importlib.util.spec_from_file_location("pynvml", file)
    if spec is None or spec.loader is None:
        return None
    module = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)  # first: it looks itself up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["pynvml"]
        raise
    return module


class GpuLook:
    """A look that may still be going on.

    Args:
        end: Until when it is waited for, on ``time.monotonic()``.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self.is_done = threading.Event()
        self.lines: tuple[GpuLine, ...] = ()

    def told(self) -> list[str]:
        """Return the lines, those of GPUs in trouble last; none where they have not come in time."""
        self.is_done.wait(max(0.0, self._end - time.monotonic()))
        return [line.text for line in sorted(self.lines, key=lambda line: line.is_trouble)]


def gpu_lines(nvml: Any, ranks: Mapping[int, str]) -> Iterator[GpuLine]:
    """Yield a line for each GPU of ranks, or for every GPU where NVML does not tell whose processes use them.

    In a container it knows processes by other numbers.

    Args:
        nvml: The bindings.
        ranks: Process to what people call it.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield GpuLine(f"NVML does not start: {error}", is_trouble=True)
        return
    try:
        handles = {index: _handle(nvml, index) for index in range(min(nvml.nvmlDeviceGetCount(), _MOST_GPUS))}
        owners = {index: _owners(nvml, handle, ranks) for index, handle in handles.items()}
        is_known = any(owners.values())
        for index, handle in handles.items():
            if owners[index] or not is_known:
                yield _line(nvml, index, handle, owners[index])
    except nvml.NVMLError as error:
        yield GpuLine(f"NVML does not answer: {error}", is_trouble=True)
    finally:
        shut_down(nvml)


def _handle(nvml: Any, index: int) -> Any:
    """Return the handle of a GPU, or the error that there is instead, as for one that has fallen off its bus."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return error


def _owners(nvml: Any, handle: Any, ranks: Mapping[int, str]) -> list[str]:
    found = _known(nvml, handle, "nvmlDeviceGetComputeRunningProcesses") or []
    return [ranks[process.pid] for process in found if process.pid in ranks]


def _line(nvml: Any, index: int, handle: Any, owners: list[str]) -> GpuLine:
    whose = f" ({', '.join(owners)})" if owners else ""
    if isinstance(handle, nvml.NVMLError):
        return GpuLine(f"GPU {index} does not answer: {handle}", is_trouble=True)
    errors = _known(nvml, handle, *uncorrected_errors(nvml))
    reasons = _reasons(nvml, handle)
    facts = [
        *_clock(nvml, handle, reasons),
        *_temperature(nvml, handle),
        *_memory(nvml, handle),
        *([f"{errors} uncorrected ECC errors since its last reset"] if errors is not None else []),
    ]
    text = ", ".join(facts) if facts else "nothing is known"
    return GpuLine(f"GPU {index}{whose}: {text}", is_trouble=bool(errors) or bool(reasons & _TROUBLE))


def _reasons(nvml: Any, handle: Any) -> int:
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if (reasons := _known(nvml, handle, name)) is not None:
            return int(reasons)
    return 0


def _clock(nvml: Any, handle: Any, reasons: int) -> Iterator[str]:
    now = _known(nvml, handle, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
    most = _known(nvml, handle, "nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
    slowed = [words for bit, words in _SLOWED_BY.items() if reasons & bit]
    unknown = reasons & ~sum(_SLOWED_BY) & ~0x1
    slowed += [f"reason {unknown:#x}"] if unknown else []
    if now is not None:
        of = f" of {most}" if most is not None else ""
        by = f", slowed down by {' and '.join(slowed)}" if slowed else ", idle" if reasons == 0x1 else ""
        yield f"SM clock {now}{of} MHz{by}"


def _temperature(nvml: Any, handle: Any) -> Iterator[str]:
    if (degrees := _known(nvml, handle, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)) is not None:
        yield f"{degrees} degrees C"


def _memory(nvml: Any, handle: Any) -> Iterator[str]:
    if (memory := _known(nvml, handle, "nvmlDeviceGetMemoryInfo")) is not None:
        yield f"{memory.used >> 20} of {memory.total >> 20} MiB used"
    if (busy := _known(nvml, handle, "nvmlDeviceGetUtilizationRates")) is not None:
        yield f"{busy.gpu} % busy"


def _known(nvml: Any, handle: Any, call: str, *arguments: Any) -> Any:
    """Call a function; None where it does not tell: whatever it is, the rest of the line is worth having."""
    function = getattr(nvml, call, None)
    if function is None or isinstance(handle, nvml.NVMLError):
        return None
    try:
        return function(handle, *arguments)
    except nvml.NVMLError:
        return None
