"""The kinds of simulated faults, and what each does to the process that it strikes.

A new kind is a function here and an entry in ``EFFECTS``. Nothing here returns unless it says so.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable

from resilience_core.errors import ConfigError

__all__ = ["EFFECTS", "SimulatedFault", "missing_collective"]

_FOREVER_SECONDS = 10 * 365 * 86400.0


class SimulatedFault(BaseException):
    """The exception of the fault ``exception``.

    Not an ``Exception``: the event bus guards training against plugins that raise one, and this one is meant
    for the training.
    """


def _exception(_: float | None, __: int) -> None:
    raise SimulatedFault("simulated fault: an exception in the training code")


def _exit(_: float | None, code: int) -> None:
    os._exit(code)


def _sigkill(_: float | None, __: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sigstop(_: float | None, __: int) -> None:
    """Stop; go on when somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _segfault(_: float | None, __: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a rank's core file may be tens of gigabytes
    ctypes.string_at(0)


def _deadlock(seconds: float | None, _: int) -> None:
    """Two threads, two locks, opposite order. Returns after ``seconds``, if there are any."""
    ours, theirs, helper_holds_theirs = threading.Lock(), threading.Lock(), threading.Event()
    longest = _at_most(seconds)

    def helper() -> None:
        with theirs:
            helper_holds_theirs.set()
            ours.acquire(timeout=longest)

    ours.acquire()
    threading.Thread(target=helper, name="simulated-deadlock", daemon=True).start()
    helper_holds_theirs.wait()
    theirs.acquire(timeout=longest)


def _gil(seconds: float | None, _: int) -> None:
    """Keep the GIL in a C call, so that no other thread runs; for ``seconds``, if there are any."""
    libc = ctypes.PyDLL(None)
    deadline = time.monotonic() + (seconds or _FOREVER_SECONDS)
    while (left := deadline - time.monotonic()) > 0:
        # Twice, since a signal ends a sleep early: in whole seconds, then the rest.
        libc.sleep(ctypes.c_uint(int(min(left, 1e6))))
        libc.usleep(ctypes.c_uint(int(max(0.0, min(deadline - time.monotonic(), 0.999)) * 1e6)))


def _busy_loop(seconds: float | None, _: int) -> None:
    """Python that never comes to an end. Returns after ``seconds``, if there are any."""
    deadline = time.monotonic() + (seconds or _FOREVER_SECONDS)
    while time.monotonic() < deadline:
        pass


def _slow_step(seconds: float | None, _: int) -> None:
    """Sleep for ``seconds``."""
    time.sleep(seconds or 0.0)


def missing_collective(takes_part: bool) -> None:
    """Enter a collective that one rank skips: the others wait in it for a rank that has gone on.

    Must be called on every rank; returns only on the one that skips. The group is one of its own, so that no
    collective of the training pairs with this one by chance, and its timeout is long, so that it is the
    monitor that finds the hang.

    Args:
        takes_part: False on the rank that skips.

    Raises:
        ConfigError: There is no process group of two ranks or more.
    """
    torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not distributed.is_initialized():
        raise ConfigError("simulated fault missing_collective needs an initialised process group")
    if distributed.get_world_size() < 2:
        raise ConfigError("simulated fault missing_collective needs two ranks or more")
    group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(days=1))
    if takes_part:
        distributed.all_reduce(torch.zeros(1), group=group)


def _at_most(seconds: float | None) -> float:
    return min(seconds or _FOREVER_SECONDS, threading.TIMEOUT_MAX)


EFFECTS: dict[str, Callable[[float | None, int], None]] = {
    "exception": _exception,
    "exit": _exit,
    "sigkill": _sigkill,
    "sigstop": _sigstop,
    "segfault": _segfault,
    "deadlock": _deadlock,
    "gil": _gil,
    "busy_loop": _busy_loop,
    "slow_step": _slow_step,
}
"""Kind to effect; the arguments are the fault's seconds and its exit code."""
