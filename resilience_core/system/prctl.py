"""prctl(2): what the kernel is told about this process. glibc wraps it; Python does not."""

from __future__ import annotations

from typing import Any

__all__ = ["allow_tracer", "become_subreaper", "die_with_parent", "load", "set_process_name"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61

_libc: Any = None


def load() -> Any:
    """Load the C library now, and return it; a child between fork and exec must not do it."""
    global _libc
    import ctypes  # a rank that needs none of this is spared the import

    _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def die_with_parent(number: int) -> None:
    """Have the kernel send a signal to this process when the thread that started it ends.

    A parent that has ended before the call is not noticed: compare ``os.getppid()`` afterwards.
    """
    _call(_PR_SET_PDEATHSIG, int(number))


def set_process_name(name: str) -> None:
    """Set what ps(1) and ``/proc/PID/comm`` show of this process; the kernel keeps 15 bytes."""
    _call(_PR_SET_NAME, name.encode())


def become_subreaper() -> None:
    """Become the parent of whatever our descendants leave behind."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def allow_tracer(pid: int) -> None:
    """Let a process and its descendants trace this one, where Yama restricts ptrace(2) to descendants."""
    import ctypes

    _call(_PR_SET_PTRACER, ctypes.c_ulong(pid))


def _call(option: int, argument: Any) -> None:
    libc = load() if _libc is None else _libc
    libc.prctl(option, argument, 0, 0, 0)
