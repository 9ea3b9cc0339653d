"""What is left when the launcher was killed, and when other nodes may be told that nothing is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.monitor import last_duties
from launcher.monitor.last_duties import clean_up
from launcher.nodes.farewell import Farewell, LastMessage
from launcher.processes.handles import has_exited, wait_for_exit

MESSAGE = LastMessage((("127.0.0.1", 1),), "run", b"secret", "node", b"payload")
WAITS = "print('ready', flush=True); input()"


class Job:
    """Two run folders of a launcher that has died, the last one in use, and a rank that it has left."""

    def __init__(self, folder: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
        self.folders = [str(folder / "run-1"), str(folder / "run-2")]
        for each in self.folders:
            os.mkdir(each)
        self.farewell = Farewell(lambda: self.folders[-1])
        self.rank = spawn(WAITS, session=True)
        self.pidfd = os.pidfd_open(self.rank.pid)
        self.sent: list[tuple[LastMessage, bool]] = []
        """Each message, and whether the rank was gone when it was sent."""

    def clean_up(self) -> list[tuple[LastMessage, bool]]:
        clean_up([self.pidfd], {self.rank.pid}, self.folders)
        return self.sent


@pytest.fixture
def job(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(tmp_path, spawn)
    monkeypatch.setattr(LastMessage, "send", lambda self, _: made.sent.append((self, has_exited(made.pidfd))))
    yield made
    os.close(made.pidfd)


def test_the_message_is_sent_when_the_rank_is_gone_and_the_folders_are_removed(job: Job) -> None:
    job.farewell.write(*MESSAGE)
    assert job.clean_up() == [(MESSAGE, True)]
    assert job.rank.wait(0) == -signal.SIGKILL
    assert [os.path.exists(folder) for folder in job.folders] == [False, False]


def test_without_a_message_the_rank_ends_all_the_same(job: Job) -> None:
    assert job.clean_up() == []
    assert job.rank.wait(0) == -signal.SIGKILL


def test_a_message_that_a_former_run_folder_holds_counts_where_the_last_one_holds_none(job: Job) -> None:
    Farewell(lambda: job.folders[0]).write(*MESSAGE)
    assert job.clean_up() == [(MESSAGE, True)]


def test_a_damaged_message_is_said_and_not_sent(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.farewell.write(*MESSAGE)
    os.truncate(os.path.join(job.folders[-1], "farewell"), 30)
    assert job.clean_up() == []
    assert job.rank.wait(0) == -signal.SIGKILL
    assert (
        "ft_launcher: other nodes are not told that this one has ended, and wait for its lease"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "witness"),
    [
        ("session_members", lambda sessions: [*sessions]),
        ("end_marked", lambda marks, timeout_seconds: {1}),
        ("wait_for_exit", lambda pidfds, seconds: set()),
    ],
    ids=["of its session", "by its mark", "by its pidfd"],
)
def test_while_anybody_is_seen_nothing_is_sent(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    witness: Callable[..., Any],
) -> None:
    """In uninterruptible sleep, say: it may write on when it wakes."""
    monkeypatch.setattr(last_duties, name, witness)
    monkeypatch.setattr(last_duties, "_SLOWEST_EXIT_SECONDS", 0.0)
    job.farewell.write(*MESSAGE)
    assert job.clean_up() == []
    assert "not all of its ranks are gone: other nodes wait for the end of the lease" in capfd.readouterr().err


def test_a_rank_that_takes_a_moment_to_end_is_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[set[int]] = [set()]

    def look(pidfds: Any, seconds: float) -> set[int]:
        return looks.pop() if looks else wait_for_exit(pidfds, seconds)

    monkeypatch.setattr(last_duties, "wait_for_exit", look)
    job.farewell.write(*MESSAGE)
    assert job.clean_up() == [(MESSAGE, True)]
