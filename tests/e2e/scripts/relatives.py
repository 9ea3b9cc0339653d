"""Processes that a rank may start, all deaf to SIGTERM: each in another place of the process tree."""

import os
import signal
import subprocess
import sys
from typing import Any

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def started(**arguments: Any) -> int:
    """The pid of a program that is ready."""
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, **arguments)
    assert child.stdout is not None
    child.stdout.readline()
    return child.pid


def forked(is_in_a_session_of_its_own: bool) -> int:
    """The pid of a fork that runs no program of its own."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        if is_in_a_session_of_its_own:
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, b"!")
        while True:
            signal.pause()
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return pid


def orphaned(**arguments: Any) -> int:
    """The pid of a daemon: a program in a session of its own whose parent has ended."""
    reader, writer = os.pipe()
    if (middle := os.fork()) == 0:
        os.write(writer, str(started(start_new_session=True, **arguments)).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pid = int(os.read(reader, 20))
    os.close(reader)
    os.close(writer)
    return pid


def start_relatives() -> list[int]:
    """One of each kind."""
    return [
        started(preexec_fn=os.setpgrp),
        forked(False),
        started(start_new_session=True),
        forked(True),
        orphaned(),
    ]


def start_washed_daemon() -> int:
    """What `env -i setsid program &` in a shell leaves: of the rank's environment it has nothing."""
    return orphaned(env={})
