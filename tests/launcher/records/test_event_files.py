"""Events of one launcher, read by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.processes.proc import own_start_ns
from launcher.records.event_files import event_files, read_event_file
from launcher.records.event_log import EventLog


def test_a_file_says_who_has_written_it_and_by_which_clock(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.write("began", at_ns=5_000_000_000)
    log.write("ended")
    log.close()
    (path,) = event_files(tmp_path)
    file = read_event_file(path)
    assert file is not None
    assert [event["event"] for event in file.events] == ["began", "ended"]
    assert (file.node, file.launcher) == (os.uname().nodename, os.getpid())
    assert file.boot == file.events[0]["boot"]
    # When the monotonic clock stood at zero, by the wall clock; nothing has set that meanwhile, or by little.
    assert abs(file.epoch - (time.time() - time.monotonic())) < 60.0


def test_an_event_that_names_its_launcher_itself_is_believed(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.write("began", launcher=7)
    log.close()
    file = read_event_file(log.path)
    assert file is not None
    assert file.launcher == 7


@pytest.mark.parametrize(("began_ns", "left_out"), [(50, [0, 49]), (101, []), ("x", []), (None, [])])
def test_a_line_of_before_its_launcher_was_started_is_damaged(
    tmp_path: Path, began_ns: object, left_out: list[int]
) -> None:
    """A run of some seconds was one of hours. Where the first line is of before that, too, it says nothing."""
    path = tmp_path / "events.jsonl"
    events = [{"event": "began", "t_ns": 100, "process_began_ns": began_ns}]
    events += [{"event": "stopped", "t_ns": at_ns} for at_ns in (0, 50, 49, 200)]
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    said: list[str] = []
    file = read_event_file(str(path), said.append)
    assert file is not None
    assert [event["t_ns"] for event in file.events] == [n for n in (100, 0, 50, 49, 200) if n not in left_out]
    wording = "a damaged line is left out, its t_ns is {}, and its launcher was started at 50"
    assert said == [f"{path}: {wording.format(at_ns)}" for at_ns in left_out]


def test_a_file_without_a_whole_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "began", "t_ns": 1')
    assert read_event_file(str(path)) is None
    (tmp_path / "events-2.jsonl").mkdir()
    assert read_event_file(str(tmp_path / "events-2.jsonl")) is None


def test_a_process_knows_when_it_was_started() -> None:
    code = "from launcher.processes.proc import own_start_ns; print(own_start_ns())"
    before_ns = time.monotonic_ns()
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert before_ns - tick_ns <= int(told.stdout) <= time.monotonic_ns()


def test_a_look_at_the_clocks_that_was_interrupted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    late = iter([5_000_000_000, 0, 3_000_000_000])
    boot = time.clock_gettime_ns
    usual = own_start_ns()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: boot(clock) + next(late, 1_000_000_000))
    assert abs(own_start_ns() - usual) < 900_000_000
