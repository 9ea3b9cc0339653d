"""The run's event log: one line per event, there at once, in order of the monotonic clock."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from launcher.processes.background import Background, NotDoneError
from launcher.records.event_files import event_files, read_event_file, read_events
from launcher.records.event_log import EventLog
from launcher.records.format_versions import UnknownVersionError
from launcher.records.log_folders import FolderError


def test_each_event_is_on_disk_at_once_and_stamped_with_both_clocks(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    before = time.monotonic_ns()
    log.write("began", pid=7, name="ü")

    (event,) = read_events(str(tmp_path))

    assert (event["event"], event["pid"], event["name"]) == ("began", 7, "ü")
    assert before <= event["t_ns"] <= time.monotonic_ns()
    assert event["time"].startswith("20")
    log.close()


def test_the_first_line_says_the_version_of_the_format(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    for event in ("began", "ended"):
        log.write(event)
    log.close()

    assert [event.get("version") for event in read_events(str(tmp_path))] == [1, None]


@pytest.mark.parametrize("version", [99, "1", None, True])
def test_events_of_an_unknown_version_are_refused(tmp_path: Path, version: object) -> None:
    """One file is enough: without the events of one node a run that goes on may seem to have ended."""
    log = EventLog(str(tmp_path))
    log.write("began")
    log.close()
    newer = tmp_path / "events-other-1.jsonl"
    newer.write_text(json.dumps({"event": "began", "t_ns": 1, "version": version}) + "\n")

    with pytest.raises(UnknownVersionError, match=rf"{newer} has version {version!r}, and .* reads version 1; read it"):
        read_events(str(tmp_path))


def test_events_without_a_version_are_those_of_the_first_release(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "began", "t_ns": 1}\n')
    assert [event["event"] for event in read_events(str(tmp_path))] == ["began"]


def test_an_event_that_is_written_later_has_the_time_of_its_happening(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    at_ns = time.monotonic_ns() - 3_000_000_000
    log.write("seen", at_ns=at_ns)
    log.write("asked")
    seen, asked = read_events(str(tmp_path))
    log.close()

    assert seen["t_ns"] == at_ns
    clocks = [datetime.fromisoformat(event["time"]).timestamp() for event in (seen, asked)]
    assert clocks[1] - clocks[0] == pytest.approx((asked["t_ns"] - at_ns) / 1e9, abs=0.05)


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


def test_what_is_named_like_a_file_of_events_and_is_none_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "events-pipe.jsonl")
    (tmp_path / "events-folder.jsonl").mkdir()
    log = EventLog(str(tmp_path))
    log.write("whole")
    log.close()
    assert [event["event"] for event in read_events(str(tmp_path))] == ["whole"]
    assert [message.rpartition("/")[2] for message in caplog.messages] == [
        "events-folder.jsonl: left out, since it is no plain file",
        "events-pipe.jsonl: left out, since it is no plain file",
    ]


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"cannot write .*events.jsonl: No such file.*--log-dir"):
        EventLog(str(tmp_path / "gone"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_fills_up_is_said_once_and_what_is_missing_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(str(tmp_path))
    log.write("before")
    real = os.dup(log._descriptor)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), log._descriptor)
    for number in range(5):
        log.write("tick", number=number)
    os.dup2(real, log._descriptor)
    log.write("after")
    log.close()

    assert capsys.readouterr().err.count("No space left on device; no events are logged until") == 1
    events = read_events(str(tmp_path))
    assert [event["event"] for event in events] == ["before", "after", "lost"]
    assert events[2]["lines"] == 5


def test_a_line_that_was_torn_by_a_full_disk_does_not_spoil_the_next(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.write("before")
    os.write(log._descriptor, b'{"event": "to')
    log._is_torn = True
    log.write("after")
    log.close()
    assert [event["event"] for event in read_events(str(tmp_path))] == ["before", "after"]


def test_a_folder_that_was_removed_is_made_anew_and_what_is_missing_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, made_anew = tmp_path / "logs" / "run", []
    folder.mkdir(parents=True)
    log = EventLog(str(folder), on_made_anew=lambda: made_anew.append(folder.exists()))
    for number in range(3):
        log.write("tick", number=number)
    shutil.rmtree(folder.parent)
    for event in ("after", "later"):
        log.write(event)
    log.close()

    events = read_events(str(folder))
    assert sorted(event["event"] for event in events) == ["after", "later", "lost"]
    (lost,) = [event for event in events if event["event"] == "lost"]
    assert lost["lines"] == 3
    assert lost["boot"], "the first line of a file tells whose clock it is"
    assert lost["version"] == 1
    assert made_anew == [True]
    assert capsys.readouterr().err.count(f"{log.path} is made anew, without 3 line(s)") == 1


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [removed, renamed, emptied])
def test_a_file_that_is_gone_is_made_anew_before_anything_happens(
    tmp_path: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.records.event_log._LOOK_NS", 0)
    log = EventLog(str(tmp_path))
    log.write("began", run_folder="/dev/shm/run", max_restarts=3)
    log.write("started", restarts=0)
    log.look_after()
    before = (tmp_path / "events.jsonl").read_bytes()
    assert len(before.splitlines()) == 2

    damage(tmp_path / "events.jsonl")
    for _ in range(2):
        log.look_after()

    (lost,) = read_events(str(tmp_path))
    facts = ("event", "lines", "version", "launcher", "run_folder", "max_restarts", "restarts")
    assert [lost[name] for name in facts] == ["lost", 2, 1, os.getpid(), "/dev/shm/run", 3, 0]
    log.write("stopped")
    assert [event["event"] for event in read_events(str(tmp_path))] == ["lost", "stopped"]

    for event in tmp_path.glob("*.old"):
        event.unlink()
    damage(tmp_path / "events.jsonl")
    log.look_after()
    (lost,) = read_events(str(tmp_path))
    assert [lost[name] for name in facts] == ["lost", 3, 1, os.getpid(), "/dev/shm/run", 3, 0]
    log.close()


def test_a_file_that_is_removed_again_and_again_is_said_a_few_times_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(str(tmp_path))
    for name in (None, None, None, "began", None, "going on"):
        removed(tmp_path / "events.jsonl")
        if name is not None:
            log.write(name)
        log.look()
    log.close()
    start = f"ft_launcher: somebody has removed the file of events; {log.path} is made anew"
    assert capsys.readouterr().err.splitlines() == [
        start,
        start,
        f"{start} (said 3 times; how often it was is said at the end)",
        "ft_launcher: somebody has removed or cut off the file of events 6 times in all, at last "
        f"{log.path}; it lacks 1 line(s)",
    ]


def test_what_a_file_lacks_that_was_removed_twice_is_all_that_was_in_the_first_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(str(tmp_path))
    for number in range(3):
        log.write("tick", number=number)
    for _ in range(2):
        removed(tmp_path / "events.jsonl")
        log.look()
    log.close()
    said = capsys.readouterr().err
    assert said.count("is made anew, without 3 line(s)") == 2
    assert "in all" not in said


@pytest.mark.parametrize(("left", "whole"), [(0, 0), (1, 0), (40, 0), (-2, 9), (-60, 9), (-200, 7)])
def test_lines_that_were_cut_off_are_counted_and_do_not_spoil_the_next(
    tmp_path: Path, left: int, whole: int, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(str(tmp_path))
    for number in range(10):
        log.write("tick", number=number)
    path = tmp_path / "events.jsonl"
    raw = path.read_bytes()
    assert raw[: left % len(raw)].count(b"\n") == whole

    os.truncate(path, left % len(raw))
    log.write("after", number=10)
    log.write("later", number=11)
    log.close()

    file = read_event_file(str(tmp_path / "events.jsonl"), lambda _: None)
    assert file is not None
    assert file.launcher == os.getpid()
    assert [event["event"] for event in file.events] == ["tick"] * whole + ["lost", "after", "later"]
    assert file.events[whole]["lines"] == 10 - whole
    how = "goes on" if left else "is made anew"
    said = f"cut off the file of events; {log.path} {how}, without {10 - whole} line(s)"
    assert capsys.readouterr().err.count(said) == 1


def test_a_file_is_looked_after_once_in_a_while_and_in_the_thread_that_writes(tmp_path: Path) -> None:
    background = Background("test", 1 << 16)
    log = EventLog(str(tmp_path), background)
    log.write("began")
    background.start()
    held, goes_on = threading.Event(), threading.Event()
    background.submit(lambda: (held.set(), goes_on.wait(60)))
    assert held.wait(60)
    removed(tmp_path / "events.jsonl")
    for _ in range(3):
        log.look_after()
    assert len(background._calls) == 1
    assert event_files(str(tmp_path)) == []
    goes_on.set()
    assert background.flush(60)
    assert [event["event"] for event in read_events(str(tmp_path))] == ["lost"]
    log.close()


def test_a_log_folder_that_was_renamed_is_written_to_under_its_new_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log = EventLog(str(folder))
    log.write("began")
    folder.rename(tmp_path / "kept")
    log.look_after()
    log.write("ended")
    log.close()
    assert os.listdir(tmp_path) == ["kept"]
    assert [event["event"] for event in read_events(str(tmp_path / "kept"))] == ["began", "ended"]


def test_a_removed_folder_that_cannot_be_made_anew_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    log = EventLog(str(folder))
    log.write("before")
    shutil.rmtree(folder.parent)
    folder.parent.touch()  # a file stands there
    for number in range(3):
        log.write("tick", number=number)
    assert capsys.readouterr().err.count("no events are logged until") == 1
    folder.parent.unlink()
    log.write("after")
    log.close()

    counts = [event["lines"] for event in read_events(str(folder)) if event["event"] == "lost"]
    assert counts == [4]


def test_a_folder_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """The file is a FIFO that nobody reads: as with a file system that hangs, a write does not return."""
    background = Background("test", 1 << 16)
    log = EventLog(str(tmp_path), background)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    os.dup2(writer, log._descriptor)
    background.start()

    for number in range(10_000):
        log.write("tick", number=number)

    assert log.lost > 5_000
    with pytest.raises(NotDoneError):
        background.call(lambda: None, 0.01)
    # Somebody reads after all.
    drain = threading.Thread(target=lambda: all(iter(lambda: os.read(reader, 1 << 20), b"")), daemon=True)
    drain.start()
    assert background.flush(180)
    log.write("again")  # tells of what was lost
    assert background.flush(180)
    assert log.lost == 0
    for descriptor in (log._descriptor, writer):
        os.close(descriptor)
    drain.join(180)
    assert not drain.is_alive()
    os.close(reader)


def test_a_run_in_a_folder_that_others_have_used_finds_a_free_name(tmp_path: Path) -> None:
    """As in a container, whose launcher is always pid 1 of the same node."""
    own = f"events-{os.uname().nodename}-{os.getpid()}"
    for number in range(5):
        log = EventLog(str(tmp_path))
        log.write("began", number=number)
        log.close()
    names = ["events.jsonl", f"{own}.jsonl", *(f"{own}-{n}.jsonl" for n in (2, 3, 4))]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert sorted(map(os.path.basename, event_files(str(tmp_path)))) == sorted(names)
    assert [event["number"] for event in read_events(str(tmp_path))] == [0, 1, 2, 3, 4]


def test_a_folder_in_which_no_name_is_free_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.records.event_log._MOST_FILES", 3)
    for _ in range(3):
        EventLog(str(tmp_path)).close()
    with pytest.raises(FolderError, match="3 runs have left their events there; name another folder with --log-dir"):
        EventLog(str(tmp_path))


@pytest.mark.parametrize(
    "damage",
    ['"t_ns": null', '"t_ns": "x"', '"t_ns": 1e400', '"t_ns": true', '"t_ns": -1', f'"t_ns": {10**400}', '"t_ns": []'],
)
def test_a_damaged_line_is_left_out_and_said_once(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = f'{{"event": "began", {damage}}}\n'
    (tmp_path / "events.jsonl").write_text(f'{line}{{"event": "ended", "t_ns": 1}}\n{"[" * 100_000}\n{line}')
    for _ in range(2):
        assert [event["event"] for event in read_events(str(tmp_path))] == ["ended"]
    assert caplog.text.count(f"{tmp_path}/events.jsonl: a damaged line is left out, its t_ns is") == 1


@pytest.mark.parametrize("name", ['"Xvent": "began"', '"event": 7'])
def test_a_line_without_the_name_of_its_event_is_left_out_and_said(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events.jsonl").write_text(f'{{{name}, "t_ns": 1}}\n{{"event": "ended", "t?me": "x", "t_ns": 2}}\n')
    assert [(event["event"], event["time"]) for event in read_events(tmp_path)] == [("ended", "")]
    assert "events.jsonl: a damaged line is left out, its event is " in caplog.text


def test_no_folder_is_not_the_working_folder() -> None:
    with pytest.raises(TypeError):
        read_events(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", ['"boot": []', '"time": 3', '"time": "9999-12-31T23:59:59.0+00:00"'])
def test_damaged_facts_about_a_file_leave_its_events(tmp_path: Path, facts: str) -> None:
    (tmp_path / "events.jsonl").write_text(f'{{"event": "began", "t_ns": 1, {facts}}}\n')
    (tmp_path / "events-other-1.jsonl").write_bytes(b'{"event": "x", "t_ns": 2}\n')
    assert len(read_events(str(tmp_path))) == 2


@pytest.mark.parametrize(
    "damage", [b'{"event": "\xe6ailure", "t_ns": 2}\n', b'{"event": "x", "why": "\xc3\xa9", "t_ns": 2}\n']
)
def test_a_line_with_bytes_that_are_never_written_is_left_out(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit of a text that has flipped leaves JSON, of another event."""
    (tmp_path / "events.jsonl").write_bytes(b'{"event": "began", "t_ns": 1}\n' + damage)
    assert [event["event"] for event in read_events(str(tmp_path))] == ["began"]
    assert "events.jsonl: a damaged line is left out: " in caplog.text


def test_machines_are_put_in_order_by_their_wall_clocks(tmp_path: Path) -> None:
    """The monotonic clock of a machine that was booted later is behind, and says nothing about the other's."""
    lines = {
        "events.jsonl": [(5_000_000_000, "12:00:01.000"), (7_000_000_000, "12:00:03.000")],
        "events-other-1.jsonl": [(900_000_000_000, "12:00:00.500"), (901_500_000_000, "12:00:02.000")],
    }
    for boot, (name, stamps) in enumerate(lines.items()):
        with open(tmp_path / name, "w") as file:
            for t_ns, clock in stamps:
                event = {"event": clock, "t_ns": t_ns, "time": f"2026-11-21T{clock}+00:00", "boot": str(boot)}
                file.write(json.dumps(event) + "\n")

    ordered = [event["event"] for event in read_events(str(tmp_path))]

    assert ordered == ["12:00:00.500", "12:00:01.000", "12:00:02.000", "12:00:03.000"]


def test_within_a_machine_a_wall_clock_that_was_set_back_changes_no_order(tmp_path: Path) -> None:
    with open(tmp_path / "events.jsonl", "w") as file:
        for number, clock in enumerate(["12:00:05.000", "11:00:00.000", "11:00:01.000"]):
            event = {"event": str(number), "t_ns": number * 1_000_000_000, "time": f"2026-11-21T{clock}+00:00"}
            file.write(json.dumps(event) + "\n")
    assert [event["event"] for event in read_events(str(tmp_path))] == ["0", "1", "2"]
