"""What a launcher has counted of its events is read elsewhere, whole, by whoever comes whenever."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import shared_history
from launcher.agent.history import CAUSES, HEARD, History
from launcher.agent.shared_history import HistoryReader, NoHistoryError, Shared, SharedHistory
from launcher.records.event_log import EventLog

S = 1_000_000_000
LATER = 10**18


@pytest.fixture
def history() -> Iterator[SharedHistory]:
    with SharedHistory.opened() as history:
        yield history


def hear(history: SharedHistory, name: str, at_ns: int, **facts: Any) -> None:
    history.heard(name, json.dumps({"event": name, "t_ns": at_ns, "time": "", **facts}).encode())


def read(history: SharedHistory, now_ns: int = LATER) -> Shared:
    return HistoryReader(history.reader).read(now_ns)


def restarts(history: SharedHistory, now_ns: int = LATER) -> dict[str, int]:
    return {cause: count for cause, count in read(history, now_ns).told.restarts.items() if count}


def start(history: SharedHistory, generation: int, at_ns: int, nodes: int = 1) -> None:
    hear(history, "rendezvous", at_ns, generation=generation, nodes=nodes)
    hear(history, "started", at_ns, generation=generation, pids={})


def test_before_any_event_nothing_has_happened(history: SharedHistory) -> None:
    found = read(history)
    assert found.told == History().told(0)
    assert found.told.restarts == dict.fromkeys(CAUSES, 0)
    assert (found.not_taken, found.lost) == (0, {"events": 0, "figures": 0})


def test_what_was_told_comes_through_whole(history: SharedHistory) -> None:
    alone = History()
    events: list[dict[str, Any]] = [
        {"event": "began", "t_ns": 1, "run_folder": "/dev/shm/ü" + "x" * 4000},
        {"event": "rendezvous", "t_ns": 2, "generation": 0, "nodes": 1},
        {"event": "started", "t_ns": 3, "generation": 0},
        {"event": "hang", "t_ns": 9, "generation": 0, "deadline_ns": 5, "seen_ns": 7, "condemned": [0]},
        {"event": "seen", "t_ns": 10, "generation": 0},
        {"event": "stopped", "t_ns": 11, "generation": 0},
        {"event": "started", "t_ns": 3 * S, "generation": 1},
        {"event": "phases", "t_ns": 5 * S, "generation": 1, "ranks": {"0": {"first_sign_ns": 4 * S}}},
        {"event": "near_miss", "t_ns": 6 * S, "generation": 1, "rank": 0},
        {"event": "monitor_lost", "t_ns": 7 * S},
        {"event": "fenced", "t_ns": 8 * S},
    ]
    for event in events:
        alone.take(event)
        history.heard(event["event"], json.dumps(event).encode())
    assert read(history).told == alone.told(LATER)
    assert read(history).told.restart_times.total == 1


def test_an_event_that_tells_nothing_here_is_not_even_looked_at(history: SharedHistory) -> None:
    assert "note" not in HEARD
    history.heard("note", b"{")
    assert read(history).not_taken == 0


def test_an_event_that_cannot_be_counted_costs_itself(history: SharedHistory) -> None:
    start(history, 0, 1)
    history.heard("started", b"{")
    hear(history, "started", 2, generation=0, pids=[])
    history.heard("started", b"\xff")
    start(history, 1, 3)
    assert read(history).not_taken == 2
    assert restarts(history) == {"unknown": 1}


def test_a_cause_that_is_awaited_is_counted_without_another_event_and_never_twice(history: SharedHistory) -> None:
    began_ns = time.monotonic_ns() - S
    start(history, 0, began_ns - S, nodes=2)
    hear(history, "failure", began_ns - S, generation=0)
    start(history, 1, began_ns, nodes=2)
    assert restarts(history, began_ns + 5 * S) == {}
    assert restarts(history, began_ns + 7 * S) == {"failure": 1}
    hear(history, "job_incident", began_ns, generation=0, kind="hang")  # in time
    assert restarts(history, began_ns) == restarts(history) == {"hang": 1}


def test_a_cause_that_comes_too_late_changes_nothing_that_was_counted(
    history: SharedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No counter may go down."""
    now = [0]
    monkeypatch.setattr(shared_history, "time", SimpleNamespace(monotonic_ns=lambda: now[0], sleep=time.sleep))
    start(history, 0, 0, nodes=2)
    hear(history, "failure", 0, generation=0)
    start(history, 1, 1, nodes=2)
    assert restarts(history, S) == {}
    assert restarts(history, 7 * S) == {"failure": 1}
    now[0] = 8 * S
    hear(history, "job_incident", 2, generation=0, kind="hang")
    assert restarts(history) == {"failure": 1}


def test_who_reads_cannot_write(history: SharedHistory) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(history.reader, b"x", 0)
    assert not os.get_inheritable(history.reader)


def test_its_size_does_not_depend_on_what_has_happened(history: SharedHistory) -> None:
    size = os.fstat(history.reader).st_size
    assert os.fstat(history.reader).st_blocks * 512 >= size  # no page is missing when there is no room left
    for number in range(300):
        start(history, number, number, nodes=1000)
        for _ in range(5):
            hear(history, "hang", number, generation=number, condemned=[*range(8)])
    status = os.fstat(history.reader)
    assert (status.st_size, read(history).told.generation) == (size, 299)


@pytest.mark.parametrize("place", [0, 1])
def test_a_place_that_is_being_written_leaves_the_other(history: SharedHistory, place: int) -> None:
    for generation in range(2):
        hear(history, "started", 1, generation=generation)
    at = shared_history._FIRST_PLACE + place * shared_history._PLACE_BYTES
    writer = os.open(f"/proc/self/fd/{history.reader}", os.O_RDWR)
    (number,) = shared_history._WORD.unpack(os.pread(writer, 8, at))
    os.pwrite(writer, b"\0\0\0", at + 40)
    os.close(writer)
    is_newest = number == 3  # the first one is that of the beginning
    assert read(history).told.generation == (0 if is_newest else 1)


def test_a_reader_never_finds_half_of_it(history: SharedHistory) -> None:
    ends = threading.Event()

    def write() -> None:
        number = 0
        while not ends.is_set():
            hear(history, "near_miss", number, generation=0)
            hear(history, "monitor_replaced", number)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        former = 0
        for _ in range(2000):
            told = read(history).told
            assert told.near_misses - told.monitors_replaced in (0, 1)
            assert told.near_misses >= former
            former = told.near_misses
    finally:
        ends.set()
        thread.join()
    assert former > 0


@pytest.mark.parametrize("raw", [b"", b"\0" * shared_history._SIZE, random.Random(1).randbytes(shared_history._SIZE)])
def test_anything_else_is_no_history(raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_history, "_PAUSE_SECONDS", 0.0)
    (tmp_path / "file").write_bytes(raw)
    with open(tmp_path / "file", "rb") as file, pytest.raises(NoHistoryError, match="nothing whole"):
        HistoryReader(file.fileno()).read(0)
    with pytest.raises(NoHistoryError, match="Bad file descriptor"):
        HistoryReader(-1).read(0)


@pytest.mark.parametrize("change", [{"other": 1}, {"awaited": [[1, "new"]]}, {"restarts": None}])
def test_that_of_another_release_is_none(
    history: SharedHistory, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**History().told(0)._asdict(), **change}

    class Other:
        def _asdict(self) -> dict[str, Any]:
            return fields

    monkeypatch.setattr(History, "told", lambda *_: Other())
    hear(history, "near_miss", 1)
    with pytest.raises(NoHistoryError, match="of another form"):
        read(history)


def test_nor_is_one_with_other_bounds(history: SharedHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared_history.BOUNDS, "detections", (1.0, 2.0))
    with pytest.raises(NoHistoryError, match="of another form"):
        read(history)


def test_a_number_that_is_none_raises_nothing(history: SharedHistory) -> None:
    hear(history, "hang", 1, generation=0, deadline_ns=-(10**400), seen_ns=10**400)
    start(history, 0, 2)
    assert (read(history).told.detections.total, read(history).told.generation) == (0, 0)


class Disk:
    """An event log whose disk is full, and has room again, as the file is written to."""

    def __init__(self, folder: Path, history: SharedHistory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        write = os.write

        def written(descriptor: int, raw: bytes) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, raw)

        monkeypatch.setattr(os, "write", written)
        on_lost = lambda lines: history.note_lost("events", lines)  # noqa: E731 - as the launcher does
        self.log = EventLog(str(folder), on_line=history.heard, on_lost=on_lost)


def test_a_log_that_takes_no_lines_and_then_does_again_makes_no_difference(
    history: SharedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, history, monkeypatch)
    for generation in range(6):
        disk.is_full = generation in (2, 3)
        disk.log.write("started", generation=generation)
        disk.log.write("seen", generation=generation)
        disk.log.write("failure", generation=generation)
    assert restarts(history) == {"failure": 5}
    assert read(history).told.restart_times.total == 5
    assert read(history).told.generation == 5
    assert read(history).lost == {"events": 6, "figures": 0}
    os.unlink(disk.log.path)
    disk.log.look()
    assert read(history).lost["events"] == 18
    assert restarts(history) == {"failure": 5}


def test_what_is_heard_after_the_end_is_left_out() -> None:
    with SharedHistory.opened() as history:
        pass
    hear(history, "started", 1, generation=0)
    history.note_lost("events", 1)
