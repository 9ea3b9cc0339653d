"""What /proc says of processes, by their numbers in the PID namespace of the caller."""

from __future__ import annotations

import contextlib
import os

__all__ = ["all_pids", "children", "is_running", "number_inside", "pid_namespace"]


def children(pid: int) -> list[int]:
    """The living children of a process."""
    return [child for child in all_pids() if _parent(child) == pid]


def number_inside(pid: int) -> int | None:
    """Return the number that a process has in its own PID namespace; None if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def all_pids() -> list[int]:
    """All processes that the caller's PID namespace has, those of namespaces inside it included."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def pid_namespace(pid: int) -> str | None:
    """Return what identifies a process's PID namespace; None if the process is gone or a zombie."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def _state_and_parent(pid: int) -> tuple[str, int] | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        state, parent = file.read().rpartition(")")[2].split()[:2]
        return state, int(parent)
    return None


def _parent(pid: int) -> int | None:
    found = _state_and_parent(pid)
    return None if found is None or found[0] == "Z" else found[1]


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    found = _state_and_parent(pid)
    return found is not None and found[0] not in "ZX"
