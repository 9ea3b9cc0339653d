"""How long a process may live on after its rank has shut monitoring down: in injected time, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.agent import after_shutdown
from launcher.agent.after_shutdown import AfterShutdown, Leaving
from launcher.incidents.frames import Frame, Thread
from launcher.monitor.lost_time import Freeze
from launcher.processes.evidence import ProcessLook
from resilience_core import FaultToleranceConfig

S = 1_000_000_000
WAITS = "print('ready', flush=True); import signal; signal.pause()"


class Made:
    """A rank that has shut down, until somebody says otherwise, and its process."""

    def __init__(self, process: subprocess.Popen[str], **configured: Any) -> None:
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.leaving = {1: Leaving(5, process.pid, self.pidfd)}
        self.freezes: list[Freeze] = []
        config = FaultToleranceConfig(**{"capture_stacks": False, **configured})
        self.clock = AfterShutdown(config, lambda: self.leaving, lambda _: self.freezes)

    def look(self, seconds: float) -> list[str]:
        """Look at so many seconds."""
        return self.clock.look(int(seconds * S))

    def ended_by(self) -> int:
        """The signal that ended it."""
        return -self.process.wait(60)


@pytest.fixture
def make(spawn: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., Made]]:
    made: list[Made] = []

    def make(**configured: Any) -> Made:
        made.append(Made(spawn(WAITS), **configured))
        return made[-1]

    yield make
    for each in made:
        os.close(each.pidfd)


def test_it_is_killed_when_its_time_is_up_and_not_before(make: Callable[..., Made]) -> None:
    made = make(rank_exit_timeout=600)
    assert made.clock.due_seconds == after_shutdown.LOOK_SECONDS
    assert [made.look(at) for at in (1000, 1001, 1599)] == [[], [], []]
    assert made.process.poll() is None

    (said,) = made.look(1600)

    assert said.startswith(f"rank 5 (pid {made.process.pid}) has shut monitoring down")
    assert "limit 600 s (configured: --ft-rank-exit-timeout)" in said
    assert made.ended_by() == signal.SIGKILL
    assert made.look(1700) == []


def test_by_default_nobody_is_killed_and_it_is_said_once_that_nobody_watches(make: Callable[..., Made]) -> None:
    made = make()
    assert made.clock.due_seconds is None
    assert [made.look(at) for at in (1000, 1299, 10**6)] == [[], [], []]
    assert made.clock.unlimited(1299 * S) is None
    assert "rank 5 has shut monitoring down 300 s ago" in (made.clock.unlimited(1300 * S) or "")
    assert made.process.poll() is None

    silent = make(unmonitored_notice_after=None)
    silent.look(1000)
    assert silent.clock.unlimited(10**6 * S) is None


def test_one_that_monitors_again_begins_anew(make: Callable[..., Made]) -> None:
    made = make(rank_exit_timeout=600)
    made.look(1000)
    leaving, made.leaving = made.leaving, {}
    made.look(1500)
    made.leaving = leaving
    assert [made.look(at) for at in (1510, 2109)] == [[], []]
    assert made.process.poll() is None
    assert made.look(2111)


def test_lost_time_is_given_back(make: Callable[..., Made]) -> None:
    made = make(rank_exit_timeout=600)
    made.look(1000)
    made.freezes = [Freeze(1100 * S, 1500 * S)]
    assert [made.look(at) for at in (1600, 1999)] == [[], []]
    assert made.process.poll() is None
    assert made.look(2001)


def test_who_begins_to_monitor_while_its_stack_is_taken_is_spared(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(rank_exit_timeout=600, capture_stacks=True)
    frame = Frame("_shutdown", "threading.py", 1590, "python")

    def take_stacks(pids: dict[int, int], **_: Any) -> dict[int, tuple[Thread, ...]]:
        if is_back:
            made.leaving = {}
        return {0: (Thread("MainThread", True, False, (frame,)),)}

    monkeypatch.setattr(after_shutdown, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(after_shutdown, "take_stacks", take_stacks)
    made.look(1000)
    leaving, is_back = made.leaving, True
    assert made.look(1600) == []
    assert made.process.poll() is None

    made.leaving, is_back = leaving, False
    assert made.look(1602)[-1:] == ["  stack   _shutdown (threading.py:1590)"]
    assert made.ended_by() == signal.SIGKILL


def test_one_that_has_ended_is_not_said_to_be_killed(make: Callable[..., Made]) -> None:
    made = make(rank_exit_timeout=600)
    made.look(1000)
    made.process.kill()
    os.waitid(os.P_PID, made.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie still takes signals
    assert made.look(1600) == []


def test_one_that_is_ending_already_is_neither_signalled_nor_said_to_be(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is decided, and a signal would not change it."""
    made = make(rank_exit_timeout=10)
    made.look(0)
    monkeypatch.setattr(after_shutdown, "look_at", lambda pid: ProcessLook("R", is_exiting=True))

    assert made.look(20) == []
    assert made.clock.killed == {}
    assert made.process.poll() is None


def test_one_that_does_not_go_is_told_once(make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """In an uninterruptible wait, say."""
    made = make(rank_exit_timeout=600)
    monkeypatch.setattr(after_shutdown, "send_signal", lambda *_: True)
    assert [len(made.look(at)) for at in (1000, 1600, 1602, 1700)] == [0, 1, 0, 0]
