"""The second fence: a real process, a real lease, and a process that is marked as a rank is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.second_fence import SecondFence
from launcher.nodes.fence import LeaseWord
from launcher.processes.handles import wait_for_exit
from resilience_core.environment import CONFIG_VARIABLE

S = 1_000_000_000
PATIENCE = 180.0


@pytest.fixture
def word(tmp_path: Path) -> Iterator[LeaseWord]:
    made = LeaseWord(str(tmp_path / "lease"))
    yield made
    made.close()


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, CONFIG_VARIABLE: str(tmp_path / "run" / "ft_config.json")}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    yield process
    process.kill()
    process.communicate()


def test_it_kills_what_is_marked_when_the_lease_has_run_out_and_nobody_else(
    word: LeaseWord, marked: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    word.grant(time.monotonic_ns() + 3600 * S)
    fence = SecondFence(word, lambda: [str(tmp_path / "run")])
    try:
        assert fence.pid is not None
        assert marked.poll() is None
        word.grant(time.monotonic_ns())
        assert marked.wait(PATIENCE) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        fence.close()
        bystander.kill()
        bystander.communicate()


def test_it_is_started_again_and_ends_when_it_is_closed(word: LeaseWord, tmp_path: Path) -> None:
    fence = SecondFence(word, lambda: [str(tmp_path / "run")])
    first = fence.pid
    assert first is not None
    fence.ensure()
    assert fence.pid == first
    pidfd = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    assert wait_for_exit([pidfd], PATIENCE)
    os.close(pidfd)
    fence.ensure()
    assert fence.pid not in (None, first)
    fence.close()
    assert not Path(f"/proc/{fence.pid}").exists()


def test_it_is_started_anew_when_ranks_have_another_mark(
    word: LeaseWord, marked: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The run folder was lost, and ranks were started from another one."""
    word.grant(time.monotonic_ns() + 3600 * S)
    folders = [str(tmp_path / "lost")]
    fence = SecondFence(word, lambda: folders)
    try:
        first = fence.pid
        folders.append(str(tmp_path / "run"))
        fence.ensure()
        assert fence.pid not in (None, first)
        assert not Path(f"/proc/{first}").exists()
        word.grant(time.monotonic_ns())
        assert marked.wait(PATIENCE) == -signal.SIGKILL
    finally:
        fence.close()


def test_a_system_that_refuses_the_process_is_told_once_and_the_job_goes_on(
    word: LeaseWord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    fence = SecondFence(word, lambda: [str(tmp_path / "run")])
    fence.ensure()
    assert fence.pid is None
    assert capfd.readouterr().err.count("the second fence of this node cannot be started") == 1
    fence.close()
