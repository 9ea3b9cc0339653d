"""The first GPU, asked through NVML without a CUDA context."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Device", "NoGpuError", "machine"]


class NoGpuError(Exception):
    """Nothing can be measured here; the text says why."""


def machine() -> str:
    """Return the GPU, its driver and torch, to print beside figures.

    Raises:
        NoGpuError: There is none, or no CUDA build of torch, or no binding of NVML.
    """
    try:
        import pynvml
        import torch
    except ImportError as error:
        raise NoGpuError(str(error)) from error
    if not torch.cuda.is_available():
        raise NoGpuError("torch sees no CUDA device")
    try:
        return f"{Device().name()}, torch {torch.__version__}"
    except pynvml.NVMLError as error:
        raise NoGpuError(f"NVML: {error}") from error


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
