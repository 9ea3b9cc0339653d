"""What proc(5) says: each state letter means the same to everybody, and what is read is what the kernel shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.processes import proc
from launcher.processes.evidence import ProcessLook
from launcher.processes.proc import ProcessStatus
from resilience_core.system import proc as core_proc


@pytest.mark.parametrize(
    ("state", "is_stopped", "is_traced", "has_ended"),
    [
        *((letter, False, False, False) for letter in "RSDI"),
        ("T", True, False, False),
        ("t", True, True, False),
        *((letter, False, False, True) for letter in "ZX"),
    ],
)
def test_a_state_means_the_same_to_everybody(
    state: str, is_stopped: bool, is_traced: bool, has_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, look = ProcessStatus(state, 1, 0, 0), ProcessLook(state)
    assert (status.is_stopped, status.is_traced, status.has_ended) == (is_stopped, is_traced, has_ended)
    assert (look.is_stopped, look.exit_code is not None) == (is_stopped, has_ended)
    monkeypatch.setattr(core_proc, "stat_fields", lambda pid: [state.encode(), *[b"0"] * 18, b"7"])
    assert core_proc.is_running(1, 7) is not has_ended


def test_what_this_process_is_and_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert proc.link_to_working_folder() == str(tmp_path.resolve())
    assert proc.runs_our_program(os.getpid())
    assert b"[stack]" in proc.memory_map(os.getpid())
    assert all(b"=" in entry for entry in proc.environment_entries(os.getpid()) if entry)
    with open(os.devnull) as file:
        assert file.fileno() in proc.descriptors()
    assert (proc.largest_pid() or 0) >= os.getpid()


def test_who_is_not_there_has_nothing_to_read() -> None:
    nobody = 2**22 + 1
    for read in (proc.environment_entries, proc.memory_map, proc.runs_our_program):
        with pytest.raises(OSError, match=str(nobody)):
            read(nobody)
    assert proc.wait_channel(nobody) is None
