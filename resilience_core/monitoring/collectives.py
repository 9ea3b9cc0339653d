"""Maxima and unions over all ranks, by all-reduces of fixed size with whatever backend the group has.

The messages do not grow with the number of ranks. ``torch`` is never imported here: where the training has not imported
it, there is no group to ask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["is_distributed", "maxima", "union_of_names"]

_TEXT = ("utf-8", "surrogatepass")
"""How names travel: any string, also what Python makes of a file name that is not valid text."""


def is_distributed() -> bool:
    """Return whether this process is one of several in an initialised default process group."""
    distributed = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def maxima(values: Sequence[int]) -> list[int]:
    """Return the maximum of each number over all ranks, on every rank. A collective: all ranks must call it.

    Args:
        values: As many on every rank; each fits into 64 bits.

    Returns:
        One number for each; the numbers themselves where there is no process group.
    """
    if not values or not is_distributed():
        return list(values)
    torch = sys.modules["torch"]
    distributed = sys.modules["torch.distributed"]
    tensor = torch.tensor(list(values), dtype=torch.int64, device=_device_of_the_group(torch, distributed))
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    return [int(value) for value in tensor.cpu().tolist()]


def union_of_names(names: Iterable[str]) -> list[str]:
    """Every name that any rank has, sorted, the same on every rank. A collective: all ranks must call it.

    Where all ranks have the same names, as they nearly always do, one all-reduce of three words finds that out. Each
    name that not all of them have costs two more.
    """
    own = {_number(name): name for name in names}
    if not is_distributed():
        return sorted(own.values())
    digest = _number("".join(f"{name}\0" for name in sorted(own.values())))
    largest, negative_of_smallest, longest = maxima(
        [digest, -digest, max((len(name.encode(*_TEXT)) for name in own.values()), default=0)]
    )
    if largest == -negative_of_smallest:
        return sorted(own.values())
    union: dict[int, str] = {}
    while True:
        # Each rank proposes one of its own; the largest number wins, and whoever has that name spells it out.
        (number,) = maxima([max((number for number in own if number not in union), default=0)])
        if number == 0:
            return sorted(union.values())
        raw = own.get(number, "").encode(*_TEXT)
        spelt = bytes(maxima([*raw, *([0] * (longest - len(raw)))]))
        union[number] = spelt.rstrip(b"\0").decode(*_TEXT)


def _number(text: str) -> int:
    """62 bits that stand for a text, never 0; that two texts have the same number is practically impossible."""
    import hashlib

    return (int.from_bytes(hashlib.blake2b(text.encode(*_TEXT), digest_size=8).digest(), "big") >> 2) + 1


def _device_of_the_group(torch: Any, distributed: Any) -> Any:
    """Return a device on which the default group can run a collective.

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
