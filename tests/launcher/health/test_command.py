"""The user's command: what its end says, and that nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from launcher.health import command as module
from launcher.health.check import Context
from launcher.health.command import CommandCheck
from launcher.processes.proc import session_members
from tests.launcher.health.conftest import asked

PATIENCE = 60.0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exit 0", None),
        ("echo all is well", None),
        ("exit 3", "'exit 3' has ended with 3; it has written nothing"),
        ("echo one; echo two; exit 1", "'echo one; echo two; exit 1' has ended with 1; its last line: two"),
        ("echo bad >&2; echo; exit 1", "'echo bad >&2; echo; exit 1' has ended with 1; its last line: bad"),
        ("printf 'a\\033[1mb\\377'; exit 1", "its last line: a [1mb\ufffd"),
        ("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end; exit 1", "its last line: end"),
        ("kill -SEGV $$", "'kill -SEGV $$' was ended by SIGSEGV; it has written nothing"),
        ("/nowhere/check-node", "has ended with 127 (there is no such command); its last line: "),
        ("/etc/passwd", "has ended with 126 (it cannot be executed); its last line: "),
    ],
)
def test_its_end_and_its_last_line_are_the_answer(command: str, expected: str | None):
    answer = asked(CommandCheck(command, PATIENCE))
    if expected is None:
        assert answer is None
    else:
        assert answer is not None
        assert expected in answer


def test_it_has_no_input_and_gets_variables_on_top_of_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FT_TEST_OURS", "ours")
    context = Context(environment=lambda: {"FT_TEST_MORE": "more"})
    check = CommandCheck('echo "$FT_TEST_OURS $FT_TEST_MORE"; cat; exit 1', PATIENCE)
    ours, theirs = os.pipe()
    os.write(theirs, b"what somebody types\n")
    os.close(theirs)
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        answer = asked(check, context)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(ours)
    assert answer is not None
    assert answer.endswith("its last line: ours more")


def test_one_that_does_not_end_is_killed_with_all_that_it_has_started(tmp_path: Path):
    pids = tmp_path / "pids"
    command = f"(trap '' TERM; echo $$ >{pids}; echo waiting; sleep 1000) & sleep 1000 & wait"
    answer = asked(CommandCheck(command, 2))
    assert answer is not None
    assert "has not ended within 2 s and was killed; its last line: waiting" in answer
    assert "raise health_check_timeout" in answer
    session = int(pids.read_text())
    assert session_members([session]) == []


def test_what_it_leaves_behind_is_killed_and_not_waited_for(tmp_path: Path):
    """The child holds the other end of the output, too."""
    pids = tmp_path / "pids"
    assert asked(CommandCheck(f"echo $$ >{pids}; sleep 1000 & exit 0", PATIENCE)) is None
    assert session_members([int(pids.read_text())]) == []


def test_one_that_waits_for_a_fifo_or_writes_without_end_is_killed(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for command in (f"cat {tmp_path}/fifo", "yes"):
        answer = asked(CommandCheck(command, 0.5))
        assert answer is not None
        assert "has not ended within 0.5 s and was killed" in answer


def test_one_that_closes_its_output_is_waited_for():
    answer = asked(CommandCheck("exec >&- 2>&-; sleep 0.3; exit 4", PATIENCE))
    assert answer is not None
    assert "has ended with 4" in answer


def test_it_ends_early_when_nobody_waits_any_more():
    is_cancelled = threading.Event()
    seen: list[str] = []

    def tell(step: str) -> None:
        seen.append(step)
        if "runs as process" in step:
            is_cancelled.set()

    context = Context(tell=tell, is_cancelled=is_cancelled.is_set)
    assert asked(CommandCheck("sleep 1000", 1e6), context) is not None
    session = int(seen[1].rpartition(" ")[2])
    assert session_members([session]) == []


def test_with_a_fake_kill_one_that_cannot_be_killed_is_not_started_again(tmp_path: Path, monkeypatch):
    """Nothing here can be put into uninterruptible sleep, so the fake kills nobody."""
    starts = tmp_path / "starts"
    monkeypatch.setattr(module, "_KILL_SECONDS", 0.1)
    monkeypatch.setattr(module, "end_sessions", lambda sessions, seconds: set(session_members(sessions)))
    check = CommandCheck(f"echo $$ >>{starts}; test -e {tmp_path}/well || sleep 1000", 1)
    assert asked(check) is not None
    (session,) = map(int, starts.read_text().split())
    answer = asked(check)
    assert answer is not None
    assert f"has not ended (session {session})" in answer
    assert len(starts.read_text().split()) == 1

    monkeypatch.undo()
    (tmp_path / "well").touch()
    for pid in session_members([session]):
        subprocess.run(["kill", "-KILL", str(pid)], check=True, timeout=PATIENCE)
    os.waitid(os.P_PID, session, os.WEXITED | os.WNOWAIT)
    while session_members([session]):
        threading.Event().wait(0.01)
    assert asked(check) is None
    assert len(starts.read_text().split()) == 2


def test_no_descriptor_stays_open():
    check = CommandCheck("exit 0", PATIENCE)
    assert asked(check) is None
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert asked(check) is None
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_shell_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **more: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    answer = asked(CommandCheck("true", PATIENCE))
    assert answer is not None
    assert "cannot be started: Resource temporarily unavailable" in answer
