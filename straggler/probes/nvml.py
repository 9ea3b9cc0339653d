"""NVML: the state of the device, read once per report, so that a verdict can give a reason.

Through ``pynvml`` (distribution ``nvidia-ml-py``, extra ``gpu``). A field that this device or driver does not
know is NaN. Uncorrected ECC errors are counted from the start of the probe: older ones explain nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from straggler.measurement.measured import STATE_FIELDS
from straggler.measurement.section import Section
from straggler.probes.probe import Collected

__all__ = ["NvmlBackend", "NvmlProbe"]


class NvmlBackend(Protocol):
    """Reads the state of a device."""

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        ...

    def read(self) -> dict[str, float]:
        """Return the fields of ``STATE_FIELDS`` that are known now; raise when none can be read."""
        ...

    def close(self) -> None:
        """End the connection to the driver."""


class _PyNvml:
    """The real one, for the CUDA device that torch uses in this process."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None

    def unavailable_because(self) -> str:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return "nvidia-ml-py is not installed; it is part of the extra 'gpu'"
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"NVML: {error}"
        try:
            self._handle = self._own_device(nvml)
        except (nvml.NVMLError, ValueError, IndexError) as error:
            return f"NVML cannot tell which device is this rank's: {error}"
        self._nvml = nvml
        return ""

    def _own_device(self, nvml: Any) -> Any:
        import torch

        if torch.cuda.is_available():
            uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
            if uuid is not None:
                return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        local = int(os.environ.get("LOCAL_RANK", "0") or 0)
        names = [name for name in visible.split(",") if name]
        chosen = names[local] if names else str(local)
        if chosen.startswith(("GPU-", "MIG-")):
            return nvml.nvmlDeviceGetHandleByUUID(chosen)
        return nvml.nvmlDeviceGetHandleByIndex(int(chosen))

    def read(self) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(nvml, reasons):
            reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
        asked: dict[str, tuple[Any, ...]] = {
            "sm_clock_mhz": ("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "max_sm_clock_mhz": ("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            "throttle_reasons": (reasons, handle),
            "temperature_c": ("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "ecc_uncorrected": (
                "nvmlDeviceGetTotalEccErrors",
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "max_pcie_width": ("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "power_w": ("nvmlDeviceGetPowerUsage", handle),
        }
        found: dict[str, float] = {}
        refused: Exception | None = None
        for field, (call, *arguments) in asked.items():
            try:
                value = float(getattr(nvml, call)(*arguments))
            except Exception as error:  # noqa: BLE001 - one field less, whatever the bindings make of it
                refused = error
                continue
            found[field] = value / 1000.0 if field == "power_w" else value
        if refused is not None and not found:
            raise refused  # the device is lost, or its driver: its guard says so
        return found

    def close(self) -> None:
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:  # nothing depends on it any more
                pass
            self._nvml = None


class NvmlProbe:
    """Reads the device's state at each report."""

    name = "NVML"

    def __init__(self, backend: NvmlBackend | None = None) -> None:
        self._backend: NvmlBackend = backend or _PyNvml()
        self._ecc_before = 0.0

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return self._backend.unavailable_because()

    def start(self) -> None:
        """Begin to measure."""
        self._ecc_before = self._backend.read().get("ecc_uncorrected", 0.0)

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a new section, where this probe has one."""
        return

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        found = self._backend.read()
        if "ecc_uncorrected" in found:
            found["ecc_uncorrected"] -= self._ecc_before
        state: npt.NDArray[np.float64] = np.array([found.get(field, np.nan) for field in STATE_FIELDS])
        return Collected(device=state)

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._backend.close()
