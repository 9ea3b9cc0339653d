"""The finished flag: a plain file, and never one that the end of a training waits for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience_core import ConfigError, EventBus, RunContext
from resilience_core.plugins.finished_flag import FinishedFlag


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(path))
    return path


def train(bus: EventBus) -> None:
    bus.setup(context=RunContext())
    bus.step_end(iteration=0)


@pytest.mark.parametrize(
    ("make", "what"),
    [(os.mkfifo, "a pipe"), (make_socket, "a socket"), (os.mkdir, "a folder")],
    ids=["pipe", "socket", "folder"],
)
def test_what_is_no_plain_file_is_refused_at_the_start(flag: Path, make: Callable[[Path], None], what: str) -> None:
    make(flag)
    with pytest.raises(ConfigError) as caught:
        FinishedFlag()
    assert str(caught.value) == (
        f"FAULT_TOL_FINISHED_FLAG_FILE is '{flag}', which is {what}, not a plain file; remove it, or name another file"
    )


@pytest.mark.parametrize("has_reader", [False, True])
@pytest.mark.timeout(60)
def test_a_pipe_that_has_come_meanwhile_is_not_waited_for(
    flag: Path, has_reader: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus()
    bus.register(FinishedFlag())
    train(bus)
    os.mkfifo(flag)
    reader = os.open(flag, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    try:
        bus.teardown(reason="completed")
    finally:
        if reader is not None:
            os.close(reader)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"training is complete, but {flag} cannot be made (it is a pipe, not a plain file): it will be started again"
    )


def test_a_file_that_is_there_already_is_left_as_it_is(flag: Path, caplog: pytest.LogCaptureFixture) -> None:
    flag.write_text("mine")
    bus = EventBus()
    bus.register(FinishedFlag())
    train(bus)
    bus.teardown(reason="completed")
    assert flag.read_text() == "mine"
    assert caplog.records == []


def test_a_link_to_nothing_is_followed(flag: Path, tmp_path: Path) -> None:
    flag.symlink_to(tmp_path / "elsewhere")
    bus = EventBus()
    bus.register(FinishedFlag())
    train(bus)
    bus.teardown(reason="completed")
    assert (tmp_path / "elsewhere").exists()
