"""``--numa-binding`` for workers that are started by exec, in every version of torch that has the option.

torch has no public function for it, and has renamed the parameter that says which device a worker uses.
"""

from __future__ import annotations

import inspect
from typing import Any

from resilience_core.errors import ResilienceError

__all__ = ["bound_to_numa_node"]

_WRAP = "_maybe_wrap_command_args_with_numa_binding"


def bound_to_numa_node(command: tuple[str, ...], local_rank: int, options: Any) -> tuple[str, ...]:
    """Return the command, behind ``numactl`` where the options ask for it.

    Args:
        command: Program and arguments.
        local_rank: Also the number of the device that the worker uses.
        options: torch's ``NumaOptions``, or None.

    Raises:
        ResilienceError: This version of torch, or this machine, cannot bind a command.
    """
    if options is None:
        return command
    from torch.numa import binding

    wrap = getattr(binding, _WRAP, None)
    indices = [name for name in inspect.signature(wrap).parameters if name.endswith("_index")] if wrap else []
    if wrap is None or len(indices) != 1:
        if options.should_fall_back_if_binding_fails:
            return command
        raise ResilienceError("--numa-binding: this version of torch cannot bind a command; leave the option out")
    try:
        wrapped: tuple[str, ...] = wrap(command, numa_options=options, **{indices[0]: local_rank})
    except (AssertionError, RuntimeError, ValueError) as error:  # a torch without CUDA, a machine without nodes
        raise ResilienceError(f"--numa-binding: torch cannot bind: {error}; leave the option out") from error
    return wrapped
