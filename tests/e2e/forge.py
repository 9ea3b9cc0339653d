"""Starts launchers for the tests from one process that has imported torch already.

A launcher spends most of its life in ``import torch``; a hundred of them would spend two minutes there. The forge
imports what ``ft_launcher`` imports, once, and forks one real launcher per request: a session of its own, with its
own working folder, environment and output, that runs the same entry point. It never runs a launcher itself.

Protocol: one connection per launcher on the listening unix socket given as first argument; the request is one line
of JSON, the answers are the launcher's pid and, when it has ended, its exit code, one line each.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

MARK = "FT_TEST_JOB"


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    import launcher.agent.job  # noqa: F401
    import torch_resilience  # noqa: F401

    # What is frozen is never walked by a collector, so its pages stay shared with every launcher, rank and zygote.
    gc.collect()
    gc.freeze()
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ, None)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                pid, connection = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                waiting.unregister(key.fd)
                os.close(key.fd)
                try:
                    connection.sendall(f"{status}\n".encode())
                except BrokenPipeError:  # a failed test did not wait
                    pass
                connection.close()
                continue
            connection, _ = listener.accept()
            request = json.loads(connection.makefile().readline())
            if request is None:
                return
            pid = os.fork()
            if pid == 0:
                waiting.close()
                listener.close()
                connection.close()
                become_launcher(request)
                return  # only a warm worker comes here, having run to its end
            connection.sendall(f"{pid}\n".encode())
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def become_launcher(request: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    leave_mark(request["env"][MARK])
    os.environ.clear()
    os.environ.update(request["env"])
    for descriptor, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import tempfile

    tempfile.tempdir = None  # torch's import has settled it for the forge's own environment
    sys.argv = ["ft_launcher", *request["arguments"]]
    sys.path[0] = request["cwd"]
    sys.path[1:1] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    import torch_resilience

    torch_resilience.main()


def leave_mark(mark: str) -> None:
    """Write the mark where /proc/PID/environ shows it: of a fork that is what its ancestor was executed with."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(MARK.encode())
    assert ctypes.string_at(place, len(mark) + 1)[len(mark)] == 0, "the forge was started with a mark of another length"
    ctypes.memmove(place, mark.encode(), len(mark))


if __name__ == "__main__":
    main()
