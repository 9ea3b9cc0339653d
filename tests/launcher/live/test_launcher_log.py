"""The state of a launcher, read from its event log as it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.live.event_tail import EventTail
from launcher.live.launcher_log import LauncherLog
from launcher.records.format_versions import UnknownVersionError
from launcher.reports.launches import read_launches

MakeRun = Callable[..., Any]


def updated(run: Any) -> LauncherLog:
    log = LauncherLog(run.log.path)
    log.update()
    return log


def test_what_is_appended_is_read_once(make_run: MakeRun) -> None:
    run = make_run()
    tail = EventTail(run.log.path)
    assert tail.read() == []
    run.begin()
    run.write("rendezvous", generation=0, nodes=2)

    assert [event["event"] for event in tail.read()] == ["began", "rendezvous"]
    assert tail.read() == []
    run.write("finished")
    assert [event["event"] for event in tail.read()] == ["finished"]


def test_a_line_that_is_on_its_way_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = json.dumps({"event": "began", "t_ns": 1, "name": "ü" * 10}).encode() + b"\n"
    tail, found = EventTail(str(path)), []
    for end in range(len(line) + 1):
        path.write_bytes(line[:end])
        found.append(len(tail.read()))
    assert found == [0] * len(line) + [1]


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'{"event": "began", "t_ns": 1}\n\xff\xfe\n[]\n{"event": 3, "t_ns": 1}\n{"event": "x", "t_ns": 2}\n'
    )
    assert [event["event"] for event in EventTail(str(path)).read()] == ["began", "x"]


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "began", "t_ns": 1, "version": 99}\n')
    with pytest.raises(UnknownVersionError, match="version 99"):
        EventTail(str(path)).read()


def test_a_file_that_was_removed_is_waited_for_and_what_it_said_holds(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    log = updated(run)
    os.unlink(run.log.path)
    assert not log.update()

    run.write("monitor_replaced", reason="x")

    assert log.update()
    assert (log.monitor_replacements, log.generation, log.run_folder) == (1, 0, run.folder.path)


def test_another_launcher_in_the_place_of_a_removed_file_is_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    log = updated(run)
    Path(run.log.path).unlink()
    Path(run.log.path).write_text('{"event": "began", "t_ns": 5, "launcher": 77, "run_folder": "/x"}\n')
    log.update()
    assert (log.launcher, log.generation, log.run_folder) == (77, None, "/x")


def test_generations_restarts_and_nodes(make_run: MakeRun) -> None:
    run = make_run()
    run.begin(max_restarts=5)
    log = updated(run)
    assert (log.max_restarts, log.generation, log.is_between, log.restarts) == (5, None, True, 0)
    assert log.node == os.uname().nodename

    run.write("rendezvous", generation=0, nodes=4)
    run.start([0, 1])
    log.update()
    assert (log.generation, log.is_between, log.local_ranks, log.nodes) == (0, False, (0, 1), 4)

    run.stop()
    log.update()
    assert (log.generation, log.is_between) == (0, True)
    run.start([0], restarts=1)
    log.update()
    assert (log.generation, log.is_between, log.local_ranks, log.restarts) == (1, False, (0,), 1)


def test_a_log_of_an_older_release_tells_restarts_by_the_generation(make_run: MakeRun) -> None:
    run = make_run()
    run.write("began", run_folder="/x", launcher=1)
    run.write("started", generation=3, pids={"0": 1})
    log = updated(run)
    assert (log.max_restarts, log.restarts) == (None, 3)


def test_culprits_are_counted_once_for_each_generation(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.write("hang", generation=0, culprits=[1], folder="/f1")
    run.write("failure", generation=0, culprits=[1, 2], folder="/f2")
    run.write("failure", generation=1, culprits=[1], folder="/f3")
    run.write("job_incident", generation=1, culprits=[5], folder="/f4")
    log = updated(run)

    assert [log.caused(rank) for rank in range(6)] == [0, 1, 1, 0, 0, 1]
    assert log.incident is not None
    assert log.incident[:3] == ("job_incident", 1, (5,))
    assert log.incident.folder == "/f4"


def test_the_monitor_and_the_run_folder(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    for event in ("monitor_replaced", "monitor_lost"):
        run.write(event, reason="x")
    run.write("run_folder_moved", former="/a", run_folder="/b", why="full")
    log = updated(run)
    assert (log.monitor_replacements, log.unprotected_ns is None, log.run_folder) == (1, False, "/b")
    run.write("monitor_back", reason="x")
    log.update()
    assert log.unprotected_ns is None


def test_the_end(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    run.write("given_up", generation=0, why="no restarts left")
    run.write("ended", generation=0, outcome="failed", exit_code=1, why=None)
    log = updated(run)
    assert log.ending is not None
    assert log.ending[:3] == ("failed", 1, "no restarts left")
    assert log.is_between


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), st.floats(allow_nan=False),
)  # fmt: skip
NAMES = ("began", "run_folder_moved", "rendezvous", "started", "stopped", "hang", "job_incident", "monitor_lost")
NAMES += ("given_up", "ended", "failure", "other")
KEYS = ("node", "boot", "launcher", "run_folder", "max_restarts", "nodes", "generation", "restarts", "pids")
KEYS += ("culprits", "folder", "why", "outcome", "exit_code", "time")


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)), max_size=12)
)
def test_whatever_an_event_says_is_no_exception(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, dict[str, Any]]]
) -> None:
    from launcher.live.live_run import LiveRun
    from launcher.live.runs import read_run
    from launcher.top.header import Headers
    from launcher.top.rows import local_rows

    folder = tmp_path_factory.mktemp("run")
    lines = [json.dumps({**facts, "event": name, "t_ns": number}) for number, (name, facts) in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    run = LiveRun(str(folder))
    look = run.look()
    assert all(line.text.isprintable() for line in Headers().lines(look))
    assert local_rows(look) == []
    assert len(read_run(str(folder)).states) == 1
    run.close()


@pytest.mark.parametrize(
    ("damage", "began_ns", "began"),
    [
        ({}, 3_500_000_000, "2026-11-26T20:37:27.000+00:00"),
        ({"process_began_ns": None}, 5_000_000_000, "2026-11-26T20:37:28.500+00:00"),
        ({"process_began_ns": 9_000_000_000}, 5_000_000_000, "2026-11-26T20:37:28.500+00:00"),
        ({"process_began_ns": "x"}, 5_000_000_000, "2026-11-26T20:37:28.500+00:00"),
        ({"time": "x"}, 3_500_000_000, "x"),
        ({"time": "0001-01-01T00:00:00+00:00"}, 3_500_000_000, "0001-01-01T00:00:00+00:00"),
    ],
)
def test_a_launcher_has_begun_when_its_process_was_started_as_in_its_report(
    tmp_path: Path, damage: dict[str, Any], began_ns: int, began: str
) -> None:
    event = {"event": "began", "t_ns": 5_000_000_000, "time": "2026-11-26T20:37:28.500+00:00", "boot": "b"}
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({**event, "process_began_ns": 3_500_000_000, **damage}) + "\n")
    log = LauncherLog(str(path))
    log.update()
    assert (log.began_ns, log.began) == (began_ns, began)
    if "time" not in damage:
        (launch,) = read_launches(str(tmp_path), [])
        assert launch.began_ns == log.began_ns
        assert launch.at(launch.began_ns) == datetime.fromisoformat(log.began).timestamp()
    log.close()
