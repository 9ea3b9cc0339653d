"""State and memory of a process, by one look."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from launcher.processes.usage import process_usage
from resilience_core.system.proc import process_start_time


def test_this_process() -> None:
    usage = process_usage(os.getpid())
    assert usage is not None
    assert usage.start_time == process_start_time(os.getpid())
    assert usage.resident_bytes is not None
    assert 1 << 20 < usage.resident_bytes < 1 << 40
    assert (usage.is_stopped, usage.has_ended) == (False, False)


def test_memory_that_is_taken_is_counted(spawn: Callable[..., Any]) -> None:
    program = "print('ready', flush=True); input(); taken = b'x' * (64 << 20); print('taken', flush=True); input()"
    child = spawn(program)
    before = process_usage(child.pid)
    child.stdin.write("\n")
    child.stdin.flush()
    child.stdout.readline()
    after = process_usage(child.pid)
    assert before is not None
    assert after is not None
    assert before.resident_bytes is not None
    assert after.resident_bytes is not None
    assert 60 << 20 < after.resident_bytes - before.resident_bytes < 100 << 20


def test_a_stopped_and_an_ended_process(spawn: Callable[..., Any]) -> None:
    child = spawn("print('ready', flush=True); input()")
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    usage = process_usage(child.pid)
    assert usage is not None
    assert usage.is_stopped
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    usage = process_usage(child.pid)
    assert usage is not None
    assert (usage.has_ended, usage.resident_bytes) == (True, None)
    child.wait()
    assert process_usage(child.pid) is None
