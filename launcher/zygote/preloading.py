"""Import modules in the zygote, watch what they do meanwhile, and tell whether forking is still safe.

Three things that an import leaves behind do not survive a fork as they should:

* Threads: a pool that a module has started is gone in the child, and the first parallel operation waits for it for
  ever. OpenBLAS's own pool is no such case: its handlers end it before every fork. So threads are counted after a
  throw-away fork, when one thread is all that may be left.
* A device: once anything has asked the CUDA driver (``torch.cuda.is_available()`` without
  ``PYTORCH_NVML_BASED_CUDA_CHECK`` does), no forked child may use it. Torch knows, but only in a child: the
  throw-away fork is asked.
* What was read from the environment. A variable that every worker has of its own (``RANK``) must not have been read
  by a module that all of them share: the module is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from launcher.processes.exit_codes import HAS_USED_A_DEVICE, MAY_BE_FORKED
from launcher.processes.handles import wait_for_exit
from launcher.processes.proc import thread_ids
from launcher.zygote.protocol import ZygoteReport
from resilience_core.environment import CELL_VARIABLE, RESTART_COUNT_VARIABLE

__all__ = ["PER_WORKER", "Preloading"]

PER_WORKER = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", RESTART_COUNT_VARIABLE, CELL_VARIABLE),
    }
)
"""Variables whose values are not known before a generation starts."""

_LONGEST_PROBE_SECONDS = 3.0
_LONGEST_KILL_SECONDS = 1.0
_ALWAYS = ("torch", "resilience_core")
_MAPPINGS = ("os", "_collections_abc", "collections.abc")


class Preloading:
    """What is known about the imports of a zygote."""

    def __init__(self) -> None:
        self.unsafe: str | None = None
        """Why this process must not be forked; None when it may be."""
        self.left_out: dict[str, str] = {}
        """Modules that must not be preloaded, and why."""
        self.reads: set[str] = set()
        """Variables that were looked up in ``os.environ``."""
        self.chosen: list[str] = []
        """Modules that were named by the user and are imported."""

    def report(self, import_time: dict[str, str]) -> ZygoteReport:
        """Return what the launcher is told.

        Args:
            import_time: Variables that are read at import, as they were found.
        """
        return ZygoteReport(self.unsafe, self.left_out, tuple(sorted(self.reads)), import_time)

    def import_all(self, modules: Sequence[str]) -> None:
        """Import the modules in this order, then look at what they have left behind."""
        for name in modules:
            readers: dict[str, str] = {}
            problem = _import(name, readers)
            is_ours = name.partition(".")[0] in _ALWAYS
            if problem is not None:
                self.unsafe = f"--ft-preload: cannot import '{name}': {problem}"
                return
            self.reads |= readers.keys()
            if own := sorted(PER_WORKER & readers.keys()):
                why = f"{readers[own[0]]} reads {own[0]} while it is imported, and each worker has its own"
                if is_ours:
                    self.unsafe = why
                    return
                self.left_out[name] = why
            elif not is_ours:
                self.chosen.append(name)
        self.unsafe = _why_not_to_fork()


def _import(name: str, readers: dict[str, str]) -> str | None:
    try:
        with _readers_noted(readers):
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a foreign module may raise anything while it is imported
        return f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else str(error)
    return None


@contextlib.contextmanager
def _readers_noted(readers: dict[str, str]) -> Iterator[None]:
    """Note who looks up what in ``os.environ`` inside the block; walks over all of it do not count."""

    class Noting(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: bytes) -> Any:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__") in _MAPPINGS:
                if frame.f_code.co_name == "__iter__":
                    return dict.__getitem__(self, key)
                frame = frame.f_back
            who = "?" if frame is None else str(frame.f_globals.get("__name__"))
            readers.setdefault(os.fsdecode(key), who)
            return dict.__getitem__(self, key)

    views: tuple[Any, Any] = (os.environ, os.environb)
    plain = os.environ._data  # type: ignore[attr-defined]
    noting = Noting(plain)
    for view in views:
        view._data = noting
    try:
        yield
    finally:
        plain.clear()
        plain.update(noting)
        for view in views:
            view._data = plain


def _why_not_to_fork() -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the very threads that are being counted
        probe = os.fork()
    if probe == 0:
        os._exit(HAS_USED_A_DEVICE if _has_used_a_device() else MAY_BE_FORKED)
    left = len(thread_ids()) - 1
    pidfd = os.pidfd_open(probe)
    has_ended = bool(wait_for_exit([pidfd], _LONGEST_PROBE_SECONDS))
    if not has_ended:
        os.kill(probe, signal.SIGKILL)
        wait_for_exit([pidfd], _LONGEST_KILL_SECONDS)
    os.close(pidfd)
    # Does not wait: one that was killed and sleeps uninterruptibly is nobody's to collect, and this zygote is not used.
    status = os.waitstatus_to_exitcode(os.waitpid(probe, os.WNOHANG)[1])
    if not has_ended:
        return "a forked process does not get through the fork handlers of the preloaded modules (os.register_at_fork)"
    if left > 0:
        return f"a preloaded module started {left} thread(s)"
    if status == HAS_USED_A_DEVICE:
        return "a preloaded module has used a device (CUDA or another), which forked workers then could not"
    return None


def _has_used_a_device() -> bool:
    """Return whether torch says, in a forked child, that a device cannot be used here."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu", "mtia"):
        device = getattr(torch, name, None)
        for question in ("_is_in_bad_fork", "is_initialized"):
            ask = getattr(device, question, None)
            if ask is not None and ask():
                return True
    return False
