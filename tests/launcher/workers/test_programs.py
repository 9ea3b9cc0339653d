"""A program that cannot be started: the message names the file, the reason and the fix. Real files, real exec."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from launcher.processes.shortages import shortage
from launcher.workers.programs import CannotStartError, cannot_start, problem_with
from launcher.workers.spawn import Launch, spawn_worker


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        ("echo hello\n", "it has no '#!' line", "begin the file with '#!/bin/bash'"),
        ("", "it has no '#!' line", "--no-python bash"),
        ("#!/no/such/interpreter -x\n", "its interpreter '/no/such/interpreter'", "correct the '#!' line"),
        ("#!/bin/sh\r\necho hello\r\n", "its interpreter '/bin/sh", "line ends of Windows"),
    ],
)
def test_a_script_that_the_kernel_refuses(tmp_path: Path, text: str, reason: str, fix: str) -> None:
    program = script(tmp_path / "train.sh", text)
    assert problem_with(program) is None

    with pytest.raises(CannotStartError) as raised:
        spawn_worker(Launch(command=(program,), environment={}))

    assert str(raised.value).startswith(f"cannot start '{program}': {reason}")
    assert fix in str(raised.value)


def test_a_script_that_was_removed_or_locked_since_the_start(tmp_path: Path) -> None:
    for program, fix in (
        (str(tmp_path / "gone.sh"), "No such file"),
        (script(tmp_path / "locked.sh", "#!/bin/sh\n", 0o644), "chmod +x"),
    ):
        with pytest.raises(CannotStartError, match=f"cannot start '{program}'.*{fix.replace('+', '.')}"):
            spawn_worker(Launch(command=(program,), environment={}))


def test_what_can_be_told_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "train.sh", "#!/bin/sh\n", 0o644)
    (tmp_path / "folder").mkdir()

    assert problem_with("/bin/true") is None
    assert problem_with("true") is None
    assert problem_with("./train.sh") == "'./train.sh' is not executable: chmod +x ./train.sh"
    assert problem_with("train.sh") == (
        "'train.sh' is looked up in PATH, and is not there; for the one in this folder write ./train.sh"
    )
    assert "is a folder" in (problem_with("./folder") or "")
    assert "does not exist in PATH" in (problem_with("no-such-program") or "")
    assert problem_with("./gone.sh") == f"the program './gone.sh' does not exist (working folder {os.getcwd()})"


def test_a_lack_of_memory_or_processes_is_no_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    assert cannot_start(refused, "/bin/true") is None
    assert shortage(refused) is not None

    def fork(*_: object, **__: object) -> None:
        raise refused

    monkeypatch.setattr(subprocess, "Popen", fork)
    with pytest.raises(BlockingIOError):
        spawn_worker(Launch(command=("/bin/true",), environment={}))
