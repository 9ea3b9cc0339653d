"""Threads of this process that wait in the kernel for a file system which does not answer.

What touches the log folder is done by threads, so that nothing else has to wait. But the end of a process waits for
all of its threads, and one in uninterruptible sleep (proc(5): D) does not take the signal that ends it. With a wait
that can be broken off, as for NFS, the process goes at once; on a file system that is frozen, or whose block device
is gone, it stays until that answers, and so does whoever waits for it. Three ways to end in time were compared:

* *A process of its own that writes*, left behind in the end. Its price is two switches of processes for each line and
  folder on the way to a restart, and it would be half the truth: torch makes folders and reads what it copies
  (``--tee``) in threads of this process as well.
* *A thin process around the launcher* that can go before it does. It covers everything, but it would be what the shell
  and the scheduler know as the launcher: each signal, stop and priority would have to be handed on.
* *Saying so*: what the job's outcome is, why the process stays, and giving back what others wait for (ports, pipes).
  This is what is built; no file system can tell ahead of a write that it will hang.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time

from launcher.processes.background import place_of
from launcher.processes.proc import open_files, state_of_thread, thread_ids

__all__ = ["let_go_of_others", "notice", "stuck_threads"]

_LOOK_SECONDS = 0.05


def stuck_threads(patience_seconds: float) -> list[int]:
    """Return the threads that are in uninterruptible sleep now, and stay there for as long as this."""
    end = time.monotonic() + patience_seconds
    try:
        stuck = set(thread_ids())
    except OSError:  # no descriptor is left to look with
        return []
    while (stuck := {thread for thread in stuck if state_of_thread(thread) == "D"}) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return sorted(stuck)


def notice(stuck: list[int], exit_code: int) -> list[str]:
    """Return what to say about them at the end; nothing where there are none."""
    if not stuck:
        return []
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    places = sorted({place for thread in stuck if (place := place_of(thread)) is not None})
    who = ", ".join(sorted(names.get(thread) or f"thread {thread}" for thread in stuck))
    where = f"the file system of the log folder {places[0]}" if places else "a file system"
    return [
        f"{where} does not answer, and this process (pid {os.getpid()}) may not go before it does: {who} waits for it "
        "in the kernel, where no signal reaches it (uninterruptible sleep)",
        f"  the job is over, with exit code {exit_code}; whoever waits for this process learns that when the file "
        "system answers again",
    ]


def let_go_of_others() -> None:
    """Close sockets and pipes, which a process keeps until its last thread has ended; files stay as they are.

    A port would be taken for the next job, and whoever reads our output would wait for its end. Closing a file may
    wait for the file system.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        files = list(open_files())
    except OSError:  # no descriptor is left
        return
    for descriptor, name in files:
        with contextlib.suppress(OSError):  # closed meanwhile
            if _has_another_end(descriptor, name):
                os.dup2(null, descriptor)


def _has_another_end(descriptor: int, name: str) -> bool:
    """Return whether it is a socket, a pipe or a FIFO, without a look at any file system, as fstat(2) may take one.

    Raises:
        OSError: It is closed.
    """
    if name.startswith("socket:"):
        return True
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:
        return False
    return True
