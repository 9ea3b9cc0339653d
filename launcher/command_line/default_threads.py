"""torchrun's default of one thread per worker, applied before torch is imported rather than after.

The zygote reads OMP_NUM_THREADS when it imports torch. torchrun's own code sets it later, when it knows how many
workers there are; a zygote that was made without it would have to be made anew, with another import of torch. The
real parser comes with torch, so this is a look at the command line without it. Where it finds too few workers,
torchrun's code and a new zygote correct it; where it finds too many, :func:`retract` does.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from launcher.records.console import INFO, announce

__all__ = ["FLAGS", "set_default", "settle"]

_NAME = "OMP_NUM_THREADS"
FLAGS = frozenset(
    {
        *("-h", "--help", "--version", "--standalone", "-m", "--module", "--no-python", "--run-path"),
        *("--virtual-local-rank", "--ignore-missing-fault-tol-cfg", "--ft-ignore-missing-cfg"),
    }
)
"""Options that take no value, with hyphens (a test compares them with the parser)."""

_was_set_here = False


def set_default(arguments: Sequence[str]) -> None:
    """Set OMP_NUM_THREADS to 1 when there will be several workers on this node and the user has not set it.

    Args:
        arguments: The launcher's command line, without the program's name.
    """
    global _was_set_here
    if _NAME in os.environ or _workers(_wanted(arguments)) < 2:
        return
    os.environ[_NAME] = "1"
    _was_set_here = True


def settle(workers: int) -> None:
    """Say that the default was set, or take it back where there is only one worker, which torchrun leaves alone.

    Args:
        workers: How many there are on this node, as torch has it.
    """
    global _was_set_here
    if _was_set_here and workers < 2:
        os.environ.pop(_NAME, None)
    elif _was_set_here:
        said = f"{_NAME} is not set; each worker gets 1 thread, as with torchrun, unless the script sets it"
        announce(said, level=INFO, event="worker_threads")
    _was_set_here = False


def _wanted(arguments: Sequence[str]) -> str:
    """Return the value of ``--nproc-per-node``; options after the script's name are the script's own."""
    wanted = os.environ.get("PET_NPROC_PER_NODE", "1")
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "--":
            break
        name, equals, attached = argument.replace("_", "-").partition("=")
        is_whole = bool(equals) or _is_flag(name) or (not name.startswith("--") and len(name) > 2)
        value = attached if is_whole else next(rest, "")
        if name.startswith("--np") and "--nproc-per-node".startswith(name):  # argparse lets it be abbreviated
            wanted = value
    return wanted


def _is_flag(name: str) -> bool:
    return name in FLAGS or (len(name) > 3 and any(flag.startswith(name) for flag in FLAGS))


def _workers(wanted: str) -> int:
    """Return how many that will be; a guess for ``gpu`` and ``auto``, since counting devices takes torch."""
    if wanted == "gpu":
        return _devices()
    if wanted == "auto":
        return _devices() or os.cpu_count() or 1
    if wanted == "cpu":
        return os.cpu_count() or 1
    return int(wanted) if wanted.isdigit() else 1


def _devices() -> int:
    for variable in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return len([device for device in os.environ[variable].split(",") if device.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*")) or len(glob.glob("/dev/dri/renderD*"))
