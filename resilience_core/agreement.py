"""What all ranks of the job have seen, gathered without pickle and with whatever backend the group has.

``torch`` is never imported here: where the training has not imported it, there is no group to ask.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["gather_json", "is_distributed"]


def is_distributed() -> bool:
    """Whether this process is one of several in an initialised default process group."""
    distributed = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def gather_json(value: Any) -> list[Any]:
    """Every rank's value, in rank order, on every rank. A collective: all ranks must call it.

    Args:
        value: Anything that JSON can hold; floats are kept exactly.

    Returns:
        One value per rank; just this one where there is no process group.
    """
    if not is_distributed():
        return [value]
    torch = sys.modules["torch"]
    distributed = sys.modules["torch.distributed"]
    device = _device_of_the_group(torch, distributed)
    payload = torch.frombuffer(bytearray(json.dumps(value).encode("utf-8")), dtype=torch.uint8)

    longest = torch.tensor([payload.numel()], dtype=torch.int64, device=device)
    distributed.all_reduce(longest, op=distributed.ReduceOp.MAX)

    # JSON ends where the padding begins: spaces after a value are legal JSON.
    padded = torch.full((int(longest.item()),), ord(" "), dtype=torch.uint8)
    padded[: payload.numel()] = payload
    padded = padded.to(device)
    gathered = [torch.empty_like(padded) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, padded)
    return [json.loads(bytes(each.cpu().tolist())) for each in gathered]


def _device_of_the_group(torch: Any, distributed: Any) -> Any:
    """A device on which the default group can run a collective.

    A group made without naming a backend, or with ``cpu:gloo,cuda:nccl``, has one backend per device type; the
    CPU is preferred, since it is there in every state a GPU may be in.
    """
    backends = {
        device: backend
        for device, _, backend in (entry.rpartition(":") for entry in str(distributed.get_backend_config()).split(","))
    }
    if "" in backends:  # one name for everything, as older versions write it
        return torch.device("cpu") if backends[""] in ("gloo", "mpi") else _accelerator(torch)
    if backends.get("cpu") in ("gloo", "mpi"):
        return torch.device("cpu")
    return _accelerator(torch)


def _accelerator(torch: Any) -> Any:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
