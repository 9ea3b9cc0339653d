"""Record the signatures of cupti-python and nvidia-ml-py, as far as this repository uses them.

Run it with the Python of an environment in which the packages are installed; no GPU and no driver are needed::

    python tests/straggler/probes/record_gpu_packages.py

It replaces what ``recorded_gpu_packages.json``, beside it, holds of these two versions. It needs nothing but them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import re
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_name("recorded_gpu_packages.json")

CUPTI_FUNCTIONS = (
    "activity_disable",
    "activity_enable",
    "activity_flush_all",
    "activity_get_num_dropped_records",
    "activity_register_callbacks",
    "get_timestamp",
)
RECORD_FIELDS = ("end", "kind", "name", "start")
NVML_NAMES = (
    "NVMLError",
    "NVML_CLOCK_SM",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
    "NVML_SUCCESS",
    "NVML_TEMPERATURE_GPU",
    "NVML_VOLATILE_ECC",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetUtilizationRates",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
)


def cython_arguments(function: Any) -> list[str]:
    """Return the arguments of a compiled function, which tells them in the first line of its docstring only.

    Both ways of writing them occur: ``f(intptr_t context, uint32_t id)`` and ``f(context: int, id: int)``.
    """
    found = re.match(r"\w+\((.*?)\)", function.__doc__ or "")
    if found is None:
        raise ValueError(
            f"the docstring of {function.__name__} does not begin with its arguments: {function.__doc__!r}"
        )
    pieces = [piece.split("=")[0].split(":")[0].split() for piece in found[1].split(",")]
    return [words[-1] for words in pieces if words]


def required(function: Any) -> list[str]:
    """Return the arguments of a function of Python's; those that have a default are followed by ``=``."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name if p.default is inspect.Parameter.empty else f"{p.name}=" for p in parameters]


def of_cupti() -> dict[str, Any]:
    """Return what the installed cupti-python has of what we use."""
    cupti = importlib.import_module("cupti.cupti")
    kernels = [name for name in dir(cupti) if re.fullmatch(r"ActivityKernel\d+", name)]
    return {
        "functions": {name: cython_arguments(getattr(cupti, name)) for name in CUPTI_FUNCTIONS if hasattr(cupti, name)},
        "values": {"ActivityKind.CONCURRENT_KERNEL": int(cupti.ActivityKind.CONCURRENT_KERNEL)},
        "records": {name: [f for f in RECORD_FIELDS if hasattr(getattr(cupti, name), f)] for name in kernels},
    }


def of_nvml() -> dict[str, Any]:
    """Return what the installed nvidia-ml-py has of what we use."""
    nvml = importlib.import_module("pynvml")
    there = {name: getattr(nvml, name) for name in NVML_NAMES if hasattr(nvml, name)}
    return {
        "functions": {name: required(value) for name, value in there.items() if inspect.isfunction(value)},
        "values": {name: value for name, value in there.items() if isinstance(value, int)},
        "exceptions": [name for name, value in there.items() if inspect.isclass(value)],
    }


READERS = {"cupti-python": of_cupti, "nvidia-ml-py": of_nvml}


def main() -> None:
    """Add the installed versions to the recording."""
    recording = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
    for package, read in READERS.items():
        recording.setdefault(package, {})[importlib.metadata.version(package)] = read()
    RECORDING.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
