"""Whether each GPU answers, and what NVML knows of damaged memory and of resets that are due.

Through ``pynvml`` (distribution ``nvidia-ml-py``, extra ``gpu``), imported at the first look. Source: NVIDIA's "NVML
API Reference" and "GPU Memory Error Management". Looked at are, per GPU, as far as device and driver know them:

* the device and its memory answer;
* rows of memory that could not be replaced (row remapper, since Ampere), or pages waiting to be retired (before);
* rows that wait for a reset to be replaced;
* uncorrected ECC errors since the last reset;
* the recovery action that the driver asks for (since R570).

XIDs that happened before are not seen: NVML has them as events only, for whoever waits while one happens. They are in
the kernel's log, which most containers may not read. What the worst of them ask for shows as a recovery action or a
lost GPU.

NVML is closed after each look, since an open device cannot be reset.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.health.check import Context, Machine

__all__ = ["NvmlCheck", "find_bindings", "has_bindings", "has_gpus", "shut_down", "uncorrected_errors"]

_RESET = "drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot"
_REPLACE = "take the node out and have the GPU replaced"
_ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "an end of peer-to-peer traffic",
    4: "that it is drained, and reset",
    5: "a recovery of the IMEX domain",
    6: "a reset of its bus",
    7: "a reboot of the system",
}
"""``nvmlDeviceGpuRecoveryAction_t``; 0 is none."""


def has_bindings() -> bool:
    """Return whether NVML can be asked from Python."""
    return find_bindings() is not None


def find_bindings() -> str | None:
    """Return the file of the module pynvml, which is not imported; None where there is none."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def has_gpus(machine: Machine) -> bool:
    """Return whether there are devices of NVIDIA's driver."""
    return any(re.fullmatch(r"nvidia\d+", os.path.basename(p)) for p in glob.glob(os.path.join(machine.dev, "nvidia*")))


class NvmlCheck:
    """The GPUs of this node, or those that ``CUDA_VISIBLE_DEVICES`` names.

    Args:
        bound_seconds: How long an answer may take.
        environ: Where that variable is looked up.
    """

    name = "nvml"

    def __init__(self, bound_seconds: float, environ: Mapping[str, str] = os.environ) -> None:
        self.bound_seconds, self._environ = bound_seconds, environ

    def check(self, context: Context) -> str | None:
        """Return the first that is wrong with one of the GPUs."""
        context.tell("importing pynvml")
        nvml = importlib.import_module("pynvml")
        place = "NVML"
        context.tell("nvmlInit")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"NVML does not start: {error}; see the driver ('nvidia-smi', dmesg)"
        try:
            for place, handle in _devices(nvml, self._environ.get("CUDA_VISIBLE_DEVICES")):
                context.tell(place)
                if handle is None:
                    return f"{place}, which CUDA_VISIBLE_DEVICES names, is not there; see dmesg for a lost GPU"
                if (bad := _device(nvml, handle)) is not None:
                    return f"{place} {bad}"
        except nvml.NVMLError as error:
            return f"{getattr(error, 'place', place)} does not answer: {error}; {_RESET}"
        finally:
            context.tell("nvmlShutdown")
            shut_down(nvml)
        return None


def shut_down(nvml: Any) -> None:
    """Close NVML after a look."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:  # nothing is open
        pass


def _devices(nvml: Any, visible: str | None) -> Iterator[tuple[str, Any]]:
    """Yield what each device is called, and its handle; None where it is not there."""
    count = nvml.nvmlDeviceGetCount()
    if visible is None:
        for index in range(count):
            yield f"GPU {index}", _handle(nvml, index)
        return
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit():
            yield f"GPU {name}", _handle(nvml, int(name)) if int(name) < count else None
        elif name.startswith("MIG-"):
            handle = nvml.nvmlDeviceGetHandleByUUID(name)
            yield f"the GPU of {name}", nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        elif name.startswith("GPU-"):  # CUDA takes a beginning that is unique
            yield name, _of_uuid(nvml, name, count)
        else:  # as CUDA reads it: nothing after an invalid one, such as -1
            return


def _of_uuid(nvml: Any, beginning: str, count: int) -> Any:
    for index in range(count):
        handle = _handle(nvml, index)
        if str(nvml.nvmlDeviceGetUUID(handle)).startswith(beginning):
            return handle
    return None


def _handle(nvml: Any, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        error.place = f"GPU {index}"
        raise


def _device(nvml: Any, handle: Any) -> str | None:
    nvml.nvmlDeviceGetUUID(handle)
    nvml.nvmlDeviceGetMemoryInfo(handle)
    _, _, is_pending, has_failed = _known(nvml, "nvmlDeviceGetRemappedRows", handle) or (0, 0, 0, 0)
    if has_failed:
        return f"has memory that could not be replaced (row remapper failure); {_REPLACE}"
    if is_pending:
        return f"waits for a reset to replace damaged memory (row remapping pending); {_RESET}"
    if _known(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle):
        return f"waits for a reset to retire damaged memory (page retirement pending); {_RESET}"
    call, *which = uncorrected_errors(nvml)
    if errors := _known(nvml, call, handle, *which):
        return f"has had {errors} uncorrected ECC errors since its last reset; {_RESET}"
    action = _recovery_action(nvml, handle)
    if action:
        wanted = _ACTIONS.get(action, f"recovery action {action}")
        return f"is in a state in which its driver asks for {wanted}; {_RESET}"
    return None


def uncorrected_errors(nvml: Any) -> tuple[str, Any, Any]:
    """Return the function that counts uncorrected ECC errors since the last reset, and what it takes after a handle."""
    return "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC


def _recovery_action(nvml: Any, handle: Any) -> int:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = None if field is None else _known(nvml, "nvmlDeviceGetFieldValues", handle, [field])
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return 0
    return int(values[0].value.uiVal)


def _known(nvml: Any, call: str, *arguments: Any) -> Any:
    """Call a function; None where the device, the driver or the bindings do not have it.

    Raises:
        NVMLError: The device should have answered.
    """
    function = getattr(nvml, call, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value in (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
        ):
            return None
        raise
