"""What proc(5) says, also where it says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilience_core.system import proc


def test_a_process_is_listed_until_its_parent_has_waited_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.is_listed(child.pid)
    assert not proc.is_running(child.pid, proc.process_start_time(child.pid) or 0)
    child.wait()
    assert not proc.is_listed(child.pid)
    assert proc.is_listed(os.getpid())


@pytest.mark.parametrize(("text", "expected"), [(b"1\n", True), (b"0\n", False), (b"2\n", False)])
def test_ptrace_is_restricted_where_yama_says_so(monkeypatch: pytest.MonkeyPatch, text: bytes, expected: bool) -> None:
    monkeypatch.setattr(proc, "read_proc", lambda path: text)
    assert proc.restricts_ptrace() is expected


def test_without_yama_ptrace_is_not_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(proc, "read_proc", refuse)
    assert proc.restricts_ptrace() is False


def test_the_core_reads_proc_at_one_place() -> None:
    core = Path(proc.__file__).parents[1]
    found = {path.name for path in core.rglob("*.py") if '"/proc' in path.read_text(encoding="utf-8")}
    assert found == {"proc.py"}
