"""The first GPU, asked through NVML without a CUDA context."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Device"]


class Device:
    """The first GPU of this machine.

    Raises:
        pynvml.NVMLError: There is none, or no driver.
    """

    def __init__(self) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)

    def name(self) -> str:
        """Return its name and the driver's version."""
        name = self._nvml.nvmlDeviceGetName(self._handle)
        return f"{name}, driver {self._nvml.nvmlSystemGetDriverVersion()}"

    def used(self) -> int:
        """Return the bytes in use."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
