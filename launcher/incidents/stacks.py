"""Where the Python of a stuck process stands, taken from outside, in parallel and within a bound.

``py-spy`` reads another process's memory: it works while the GIL is held in C, and with ``--nonblocking`` on a
process that is stopped. Where it is not installed, or may not look, the rank's own ``faulthandler`` is asked.

Its signal restarts most system calls (SA_RESTART) and Python repeats the rest, but a C library may take the
interruption for an error. The launcher therefore has every rank asked, since it ends all of them in any case once
one is condemned; a monitor whose ranks are not its own asks the condemned alone.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping

from launcher.incidents.frames import Thread, frame_of, of_the_worker, thread_name
from launcher.incidents.stacks_from_inside import from_inside
from launcher.processes.handles import send_signal, wait_for_exit
from launcher.processes.proc import process_status
from launcher.records.console import announce

__all__ = ["take_stacks"]

_LONGEST_END_SECONDS = 0.5


def take_stacks(
    pids: Mapping[int, int],
    *,
    py_spy: str | None,
    timeout_seconds: float,
    fallback_files: Mapping[int, str] | None = None,
    fallback_signal: int = 0,
    reasons: dict[int, str] | None = None,
) -> dict[int, tuple[Thread, ...]]:
    """Take the stacks of several processes at once.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path, None where it is not installed.
        timeout_seconds: The bound on all of it together.
        fallback_files: Key to the file that the process's own faulthandler writes to, for those that may be asked.
        fallback_signal: The signal that makes it write.
        reasons: Gets, for each key without a stack, why there is none.

    Returns:
        Key to threads; a key is missing where nothing could be had.
    """
    end = time.monotonic() + timeout_seconds
    why = dict.fromkeys(pids, "it was not asked" if py_spy else "there is no py-spy, and it was not asked")
    found = _from_outside(pids, py_spy, end) if py_spy else {}
    silent = {
        key: (pids[key], file) for key, file in (fallback_files or {}).items() if key in pids and key not in found
    }
    if silent and fallback_signal:
        found.update(from_inside(silent, fallback_signal, max(end, time.monotonic() + 0.05), why))
    if reasons is not None:
        outside = "py-spy told nothing, and " if py_spy else ""
        reasons.update((key, outside + reason) for key, reason in why.items() if key not in found)
    return found


def _from_outside(pids: Mapping[int, int], py_spy: str, end: float) -> dict[int, tuple[Thread, ...]]:
    running = {}
    for key, pid in pids.items():
        try:
            # Closed by whoever reads it; without a name, so that no folder can be full or gone.
            output = open(os.memfd_create("ft_stack"), "rb")  # noqa: SIM115
        except OSError as error:
            announce(f"no memory for what {py_spy} writes: {error.strerror}; no stacks from outside")
            break
        try:
            child = _start_py_spy(py_spy, pid, output.fileno())
        except OSError as error:  # no memory for a process, or the program was removed: the kill goes on without
            output.close()
            announce(f"cannot run {py_spy}: {error.strerror}; no stacks from outside")
            break
        running[key] = (child, os.pidfd_open(child), output)
    found = {}
    try:
        pending = {pidfd for _, pidfd, _ in running.values()}
        while pending and (left := end - time.monotonic()) > 0:
            pending -= wait_for_exit(pending, left)
    finally:
        for key, (child, pidfd, output) in running.items():
            send_signal(pidfd, signal.SIGKILL)
            # One that reads a process which is stuck in the kernel may be stuck as well; it is left behind.
            has_ended = bool(wait_for_exit([pidfd], _LONGEST_END_SECONDS))
            os.close(pidfd)
            with output:
                if has_ended and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
                    output.seek(0)
                    threads = _parse_json(output.read())
                    if threads:
                        found[key] = threads
    return found


def _start_py_spy(py_spy: str, pid: int, output: int) -> int:
    status = process_status(pid)
    mode = ["--nonblocking"] if status is not None and status.state in "Tt" else []
    return os.posix_spawn(
        py_spy,
        [py_spy, "dump", "--json", "--pid", str(pid), *mode],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )


def _parse_json(raw: bytes) -> tuple[Thread, ...]:
    try:
        threads = json.loads(raw.decode("utf-8", errors="replace"))
    except ValueError:
        return ()
    return tuple(
        Thread(
            name=thread_name(thread),
            is_active=bool(thread.get("active")),
            holds_gil=bool(thread.get("owns_gil")),
            frames=of_the_worker(
                frame_of(str(frame.get("name")), str(frame.get("filename")), int(frame["line"]))
                for frame in thread.get("frames", ())
            ),
        )
        for thread in threads
    )
