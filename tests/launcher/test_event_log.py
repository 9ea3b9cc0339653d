"""The run's diary: one line per event, there at once, in order of the monotonic clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.event_log import EventLog, read_events
from launcher.folders import FolderError


def test_each_event_is_on_disk_at_once_and_stamped_with_both_clocks(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    before = time.monotonic_ns()
    log.write("began", pid=7, name="ü")

    (event,) = read_events(str(tmp_path))

    assert (event["event"], event["pid"], event["name"]) == ("began", 7, "ü")
    assert before <= event["t_ns"] <= time.monotonic_ns()
    assert event["time"].startswith("20")
    log.close()


def test_events_of_every_node_that_shares_the_folder_come_in_order(tmp_path: Path) -> None:
    logs = [EventLog(str(tmp_path)), EventLog(str(tmp_path))]
    for number in range(10):
        logs[number % 2].write("tick", number=number)
    for log in logs:
        log.close()

    assert logs[0].path != logs[1].path
    assert [event["number"] for event in read_events(str(tmp_path))] == list(range(10))


def test_a_line_on_its_way_is_not_read_yet(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.write("whole")
    with open(log.path, "a") as file:
        file.write('{"event": "ha')
    assert [event["event"] for event in read_events(str(tmp_path))] == ["whole"]
    log.close()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"cannot write .*events.jsonl: No such file.*--log-dir"):
        EventLog(str(tmp_path / "gone"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_fills_up_is_said_once_and_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.event_log._new_file", lambda path: os.open("/dev/full", os.O_WRONLY))
    log = EventLog(str(tmp_path))
    for number in range(5):
        log.write("tick", number=number)
    log.close()

    assert capsys.readouterr().err.count("No space left on device; no more events are logged") == 1
