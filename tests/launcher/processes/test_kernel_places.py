"""In which system call a process sleeps, by its name, and within a bound."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.processes import kernel_places, system_calls
from launcher.processes.evidence import look_at
from launcher.processes.kernel_places import SystemCallReader
from launcher.processes.proc import system_call_of
from launcher.processes.system_calls import call_name

WAITS = {
    "import sys; print('ready', flush=True); sys.stdin.read()": {"read"},
    "import time; print('ready', flush=True); time.sleep(600)": {"nanosleep", "clock_nanosleep"},
    "import threading; print('ready', flush=True); threading.Lock().acquire() and threading.Event().wait()": {"futex"},
    "import select; e = select.epoll(); print('ready', flush=True); e.poll()": {"epoll_wait", "epoll_pwait"},
    "import signal; print('ready', flush=True); signal.pause()": {"pause", "ppoll"},
    "import socket; a, b = socket.socketpair(); print('ready', flush=True); a.recv(1)": {"recvfrom"},
    "import ctypes, os, signal\n"
    "child = os.fork()\n"
    "if child == 0: ctypes.CDLL(None).prctl(1, 9); signal.pause()  # ends with its parent\n"
    "print('ready', flush=True); os.waitpid(child, 0)": {"wait4"},
}


def until_asleep(pid: int) -> None:
    end = time.monotonic() + 60
    while (look := look_at(pid)) is not None and look.state != "S":
        assert time.monotonic() < end, f"process {pid} is still in state {look.state}"
        threading.Event().wait(0.001)


@pytest.mark.parametrize(("script", "names"), WAITS.items(), ids=[min(names) for names in WAITS.values()])
def test_where_a_process_waits_is_known_by_the_name_of_its_call(
    script: str, names: set[str], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    pid = spawn(script).pid
    until_asleep(pid)
    found = SystemCallReader().calls([pid, 2**22 + 1], 60)
    assert set(found) == {pid}
    assert found[pid] in names


def test_who_runs_or_is_gone_is_in_no_call(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("print('ready', flush=True)\nwhile True: pass")
    assert SystemCallReader().calls([process.pid], 60) == {}
    process.kill()
    process.wait()
    assert system_call_of(process.pid) is None


def test_a_number_that_no_table_has_is_shown_as_it_is() -> None:
    assert call_name(99999, "x86_64") == "system call 99999"
    assert call_name(202, "armv7l") == "system call 202"  # other numbers there
    assert (call_name(202, "x86_64"), call_name(98, "aarch64")) == ("futex", "futex")


def numbers_in(path: Path) -> dict[int, str]:
    """The numbers of a header of the kernel, without those that only 32-bit programs have."""
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
    return {int(number): name for name, number in found if not name.endswith("_time64")}


@pytest.mark.parametrize(
    ("header", "machine"),
    [("x86_64-linux-gnu/asm/unistd_64.h", "x86_64"), ("asm-generic/unistd.h", "aarch64")],
)
def test_the_numbers_are_those_of_the_kernels_headers(header: str, machine: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"no {path}")
    there = {number: {name, name.replace("new", ""), f"new{name}"} for number, name in numbers_in(path).items()}
    table = system_calls._TABLES[machine]
    assert {number: name for number, name in table.items() if number in there and name not in there[number]} == {}
    assert len(table.keys() & there.keys()) > 60


def test_one_that_keeps_its_reader_waiting_costs_the_bound_and_what_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = threading.Event()
    asked: list[int] = []

    def read(pid: int) -> int:
        asked.append(pid)
        if pid == 2:
            stuck.wait(60)
        return 0

    monkeypatch.setattr(kernel_places, "system_call_of", read)
    reader = SystemCallReader()
    assert reader.calls([1, 2, 3], 0.2) == {1: call_name(0)}
    assert reader.calls([4], 0.01) == {}  # the thread is still busy
    assert asked == [1, 2]
    stuck.set()
    assert reader.calls([5], 60) == {5: call_name(0)}


def test_without_a_thread_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.processes.background.Background.start", lambda self: None)
    assert SystemCallReader().calls([os.getpid()], 60) == {}
