"""The process that warm workers are forked from: it has imported torch, touched no device, and waits.

Sketched, measured and chosen:

* *Spawn* (fork and exec, import torch): about a second per generation, all of it import.
* *Zygote, fork on demand*: two forks per worker (see below) on the path between a death and the next step.
* *Parked workers*: the zygote forks the next generation's workers while the present one trains; each is already
  the leader of its session and a child of the launcher, and blocks in one read. A restart then costs one message
  per worker. Idle, a parked worker owns one to two megabytes. This is what is built; on demand is the same code
  asked late.

The zygote is forked from the launcher itself, right after the launcher's own import of torch, before it has a
thread, a socket or a signal handler. So torch is imported once, which is why the first generation is early, too.
Should the zygote die, nothing that runs is touched (its descendants belong to the launcher, see below) and a new
one is made by exec, since a launcher that supervises has threads by then.

Workers become children of the launcher: the launcher is a child subreaper, the zygote forks twice and lets the
process in the middle exit. Only then does the worker arm ``PR_SET_PDEATHSIG``, which fires when the *thread* that
is the parent ends, and looks again whether the launcher is still there.

What the user's modules would import beyond torch is not guessed: importing them here would run code of unknown
side effects in the wrong process, with the wrong arguments. ``--ft-preload`` names what is known to be harmless,
and what it leaves behind is checked (threads, CUDA) before the first fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence

from launcher.become import become, name_process, survey
from launcher.zygote_protocol import WorkerOrder, read_at_import, receive_frame, send_frame

__all__ = ["serve", "thread_count"]

_PR_SET_PDEATHSIG = 1


def thread_count() -> int:
    """Threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def serve(channel: socket.socket, launcher_pid: int, preload: Sequence[str], harmless_threads: int) -> WorkerOrder:
    """Be the zygote: fork parked workers whenever the launcher asks for some.

    Args:
        channel: To the launcher; its end is the zygote's end.
        launcher_pid: Who becomes the workers' parent.
        preload: Modules to import first.
        harmless_threads: How many threads this process may have: its own, and OpenBLAS's pool, which survives a
            fork by its own handlers.

    Returns:
        Only in a worker: what it is to become.
    """
    _follow_to_death(launcher_pid)
    name_process("ft_zygote")
    before = dict(os.environ)
    problem = _import_all(preload) or _unsafe_to_fork(harmless_threads)
    try:
        send_frame(channel, {"unsafe": problem, "import_time": read_at_import(before)})
    except OSError:  # the launcher has refused the job meanwhile
        os._exit(0)
    survey(before)
    # What is frozen is never walked by the collector, so its pages stay shared with every worker.
    gc.collect()
    gc.freeze()
    while True:
        request = receive_frame(channel)
        if request is None:
            os._exit(0)
        for _ in range(request["park"]):
            order = _park_one(channel, launcher_pid)
            if order is not None:
                return order


def _park_one(channel: socket.socket, launcher_pid: int) -> WorkerOrder | None:
    """Fork one parked worker and hand its end of a socket pair to the launcher. Returns in both processes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 counts OpenBLAS's threads, too
        middle = os.fork()
        if middle == 0:
            middle = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            channel.close()
            ours.close()
            return _wait_for_order(theirs, middle, launcher_pid)
    theirs.close()
    os.waitpid(middle, 0)
    with ours:
        try:
            socket.send_fds(channel, [b"parked"], [ours.fileno()])
        except OSError:  # the launcher has closed its end
            os._exit(0)
    return None


def _wait_for_order(link: socket.socket, middle: int, launcher_pid: int) -> WorkerOrder:
    os.setsid()
    name_process("ft_parked")
    while os.getppid() == middle:  # until the process in the middle has exited; no event tells
        time.sleep(0.0002)
    _follow_to_death(launcher_pid)
    try:
        send_frame(link, {"pid": os.getpid()})
        order = receive_frame(link)
    except OSError:  # the zygote died before it could hand the other end on
        order = None
    if order is None:
        os._exit(0)
    link.close()
    return WorkerOrder(**{**order, "argv": tuple(order["argv"])})


def _follow_to_death(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _import_all(modules: Sequence[str]) -> str | None:
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"--ft-preload: cannot import '{name}': {error}"
    return None


def _unsafe_to_fork(harmless_threads: int) -> str | None:
    if thread_count() > harmless_threads:
        return f"a preloaded module started {thread_count() - harmless_threads} thread(s)"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA"
    return None


def main() -> None:
    """Be a zygote of its own making: started by exec, where the launcher can no longer be forked."""
    settings = json.loads(sys.argv[1])
    channel = socket.socket(fileno=settings["channel"])
    import numpy  # noqa: F401 - so that its pool of threads is counted before anything else may start some

    harmless = thread_count()
    order = serve(channel, settings["launcher"], settings["preload"], harmless)
    become(order)
