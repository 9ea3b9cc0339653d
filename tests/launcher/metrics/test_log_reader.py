"""The log folder is read by a thread, and no scrape waits for it for long."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.metrics import log_reader
from launcher.metrics.log_reader import LogReader
from launcher.records.tail import Tail

PATIENCE = 60.0


def test_what_has_come_is_there_after_a_refresh(tmp_path: Path) -> None:
    taken: list[str] = []
    path = tmp_path / "events.jsonl"
    reader = LogReader({"event": (Tail(str(path)), taken.append)})
    reader.start()
    reader.refresh(PATIENCE)
    assert taken == []
    path.write_text("one\ntwo\n")
    reader.refresh(PATIENCE)
    assert taken == ["one", "two"]


def test_a_damaged_line_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    taken: list[int] = []
    (tmp_path / "events.jsonl").write_text("1\nnone\n3\n")
    (tmp_path / "figures.jsonl").write_text("{\n")
    reader = LogReader(
        {
            "event": (Tail(str(tmp_path / "events.jsonl")), lambda line: taken.append(int(line))),
            "figures_line": (Tail(str(tmp_path / "figures.jsonl")), lambda line: {}[line]),
        }
    )
    reader.read_all()
    assert taken == [1, 3]
    assert reader.damaged == {"event": 1, "figures_line": 1}


class Stuck(Tail):
    """A file on a file system that does not answer."""

    def __init__(self) -> None:
        super().__init__("")
        self.is_read, self.answers = threading.Event(), threading.Event()

    def read(self) -> list[str]:
        self.is_read.set()
        assert self.answers.wait(PATIENCE)
        return ["late"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the reader, which this list holds."""
    made = [0.0]
    monkeypatch.setattr(log_reader, "time", SimpleNamespace(monotonic=lambda: made[0]))
    return made


def test_a_file_system_that_hangs_is_waited_for_once_and_then_not_at_all(now: list[float]) -> None:
    stuck, taken = Stuck(), list[str]()
    reader = LogReader({"event": (stuck, taken.append)})
    reader.start()
    reader.refresh(0.01)
    assert stuck.is_read.wait(PATIENCE)
    for _ in range(5):
        reader.refresh(threading.TIMEOUT_MAX)  # returns at once, or this test does not end
    with reader.quiet():
        assert taken == []
    now[0] = 100.0
    assert reader.age_seconds == 100.0
    stuck.answers.set()
    while not taken:
        reader.refresh(0.01)
    reader.refresh(PATIENCE)  # what had not come to its end has now
    assert reader.age_seconds == 0.0


def test_a_file_that_cannot_be_read_makes_the_metrics_old(tmp_path: Path, now: list[float]) -> None:
    (tmp_path / "events.jsonl").mkdir()
    other: list[Any] = []
    (tmp_path / "figures.jsonl").write_text("one\n")
    reader = LogReader(
        {
            "event": (Tail(str(tmp_path / "events.jsonl")), print),
            "figures_line": (Tail(str(tmp_path / "figures.jsonl")), other.append),
        }
    )
    now[0] = 7.0
    reader.read_all()
    assert reader.age_seconds == 7.0
    assert other == ["one"]
    (tmp_path / "events.jsonl").rmdir()
    reader.read_all()
    assert reader.age_seconds == 0.0
