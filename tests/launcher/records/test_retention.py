"""``--ft-keep-runs`` removes what has surely ended, oldest first, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.processes.background import Background
from launcher.processes.proc import boot_id
from launcher.records.log_folders import place_facts, place_of
from launcher.records.retention import prune, prune_in_background
from resilience_core.system.proc import own_pid_namespace


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four ended runs, ``old0`` the oldest, and ours."""
    logs = tmp_path / "ft_logs"
    for age in range(4):
        run(logs / f"old{age}", ["began", "ended"], second=1000 + age)
    run(logs / "ours", ["began"], second=2000)
    return logs


def run(folder: Path, events: list[str], second: int) -> Path:
    (folder / "incidents" / "0001").mkdir(parents=True)
    (folder / "incidents" / "0001" / "report.txt").write_text("story")
    path = folder / "events.jsonl"
    told = [{"event": event, "t_ns": 1, **(place(folder) if event == "began" else {})} for event in events]
    path.write_text("".join(json.dumps(event) + "\n" for event in told))
    os.utime(path, (second, second))
    return folder


def place(folder: Path) -> dict[str, Any]:
    return place_of(str(folder))._asdict()


def left(logs: Path) -> list[str]:
    return sorted(path.name for path in logs.iterdir())


@pytest.mark.parametrize(
    ("keep", "removed"),
    [(5, []), (4, ["old0"]), (2, ["old0", "old1", "old2"]), (1, ["old0", "old1", "old2", "old3"])],
)
def test_the_newest_stay(logs: Path, keep: int, removed: list[str]) -> None:
    assert sorted(prune(str(logs / "ours"), keep)) == removed
    assert left(logs) == sorted({"old0", "old1", "old2", "old3", "ours"} - set(removed))


def test_what_is_not_surely_an_ended_run_of_ours_stays(logs: Path, tmp_path: Path) -> None:
    run(logs / "running", ["began"], second=1)
    run(logs / "two nodes, one running", ["began", "began", "ended"], second=1)
    run(logs / "resumed", ["began", "ended", "began"], second=1)
    (logs / "foreign").mkdir()
    (logs / "foreign" / "data").write_text("precious")
    (logs / "damaged").mkdir()
    (logs / "damaged" / "events.jsonl").write_text("[]\n{\n")
    newer = run(logs / "newer release", ["began", "ended"], second=1) / "events-other-1.jsonl"
    newer.write_text(json.dumps({"event": "began", "t_ns": 1, "version": 99}) + "\n")
    (logs / "file").write_text("")
    elsewhere = run(tmp_path / "elsewhere", ["began", "ended"], second=1)
    (logs / "link").symlink_to(elsewhere)
    prune(str(logs / "ours"), 1)
    assert left(logs) == sorted(
        ["running", "two nodes, one running", "resumed", "foreign", "damaged", "newer release", "file", "link", "ours"]
    )
    assert (elsewhere / "events.jsonl").exists()


def killed(folder: Path, **facts: Any) -> None:
    """Write what a launcher on this machine has, which was killed two minutes ago."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    began = {"event": "began", "t_ns": time.monotonic_ns() - 120 * 10**9, "launcher": ended.pid}
    began |= {"boot": boot_id(), "node": os.uname().nodename, "pid_namespace": own_pid_namespace()}
    folder.mkdir(exist_ok=True)
    began |= place(folder)
    (folder / f"events-vm-{len(os.listdir(folder))}.jsonl").write_text(json.dumps({**began, **facts}) + "\n")


def test_a_run_whose_launcher_was_killed_on_this_machine_goes(logs: Path) -> None:
    killed(run(logs / "killed", ["began", "ended"], second=1))
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["ours"]


@pytest.mark.parametrize(
    "facts",
    [
        {"boot": "of another machine, or before a restart"},
        {"node": "a container of another name"},
        {"pid_namespace": 1},
        {"pid_namespace": None},
        {"pid_namespace": 0},
        {"launcher": os.getpid()},
        {"launcher": 1},
        {"launcher": None},
        {"launcher": -1},
        {"launcher": 0},
        {"t_ns": 1 << 62},
        {"log_folder": "/elsewhere/killed"},
        {"log_folder": None},
        {"inode": 1},
        {"inode": None},
    ],
)
def test_a_run_that_may_go_on_stays(logs: Path, facts: dict[str, Any]) -> None:
    killed(run(logs / "killed", ["began", "ended"], second=1), **facts)
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["killed", "ours"]


def test_a_run_whose_launcher_was_killed_just_now_stays_for_a_minute(logs: Path) -> None:
    killed(run(logs / "killed", ["began", "ended"], second=1), t_ns=time.monotonic_ns())
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["killed", "ours"]


def test_of_two_nodes_both_have_to_be_gone(logs: Path) -> None:
    killed(run(logs / "killed", ["began", "ended"], second=1))
    killed(logs / "killed", boot="another machine")
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["killed", "ours"]


def test_a_file_whose_first_lines_are_lost_may_be_of_a_run_that_goes_on(logs: Path) -> None:
    """A file of events that somebody has removed is made anew."""
    (logs / "old0" / "events-node-7.jsonl").write_text(json.dumps({"event": "started", "t_ns": 1}) + "\n")
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["old0", "ours"]


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.txt", "checkpoint.pt", ".hidden", "eventsX", "workers.old"),
        *(
            "incidents/0001/notes.md",
            "incidents/mine/report.txt",
            "incidents/mine.txt",
            "near_misses/0001/a/report.txt",
        ),
        *(
            "workers/x_lm4m_snk/attempt_0/0/core.123",
            "workers/x_lm4m_snk/mine.log",
            "workers/x_lm4m_snk/attempt_0/0/mine/stdout.log",
        ),
        *("workers/report.txt", "elsewhere/0000-vm-1/events.jsonl"),
        *(
            "events-hangs.jsonl",
            "figures-mine.jsonl",
            "incidents/0001-annotated/report.txt",
            "near_misses/1/report.txt",
        ),
        *("workers/mine/attempt_0/0/stdout.log", "elsewhere/0000-mine/report.txt"),
    ],
)
def test_a_folder_with_something_of_somebody_else_stays(logs: Path, name: str) -> None:
    (logs / "old1" / name).parent.mkdir(parents=True, exist_ok=True)
    (logs / "old1" / name).write_text("precious")
    assert prune(str(logs / "ours"), 1) == ["old3", "old2", "old0"]
    assert (logs / "old1" / name).read_text() == "precious"


@pytest.mark.parametrize("name", ["events.jsonl", "incidents", "workers/run_69aoucet"])
def test_a_folder_with_a_link_in_it_stays(logs: Path, tmp_path: Path, name: str) -> None:
    place, target = logs / "old1" / name, tmp_path / "target"
    if place.exists():
        place.rename(target)
    else:
        target.mkdir()
        place.parent.mkdir()
    place.symlink_to(target)
    assert prune(str(logs / "ours"), 1) == ["old3", "old2", "old0"]


def test_a_copy_and_a_folder_that_was_renamed_stay(logs: Path) -> None:
    shutil.copytree(logs / "old0", logs / "copy")
    (logs / "old1").rename(logs / "best")
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["best", "copy", "ours"]


def ours_in(parent: Path) -> str:
    return str(run(parent / "new", ["began"], second=3000))


def test_copies_that_have_kept_their_names_stay(logs: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    shutil.copytree(logs, copies)
    assert prune(ours_in(copies), 1) == []
    assert left(copies) == ["new", "old0", "old1", "old2", "old3", "ours"]


def test_a_folder_that_was_moved_stays(logs: Path, tmp_path: Path) -> None:
    best = tmp_path / "best"
    best.mkdir()
    (logs / "old0").rename(best / "old0")
    assert prune(ours_in(best), 1) == []
    logs.rename(tmp_path / "of last year")
    assert prune(str(tmp_path / "of last year" / "ours"), 1) == []


def test_a_copy_that_stands_where_the_folder_was_stays(logs: Path) -> None:
    shutil.copytree(logs / "old0", logs / "copy")
    (logs / "old0").rename(logs.parent / "old0")  # not removed: its number would be free for another one
    (logs / "copy").rename(logs / "old0")
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["old0", "ours"]


def test_log_folders_are_found_through_a_link(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(logs)
    assert len(prune(str(tmp_path / "link" / "ours"), 1)) == 4


def test_of_a_folder_of_an_earlier_release_it_is_not_known_whether_it_is_a_copy(logs: Path) -> None:
    told = [{"event": "began", "t_ns": 1, "run": "old0"}, {"event": "ended", "t_ns": 2}]
    (logs / "old0" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["old0", "ours"]


def test_a_disk_that_does_not_answer_tells_no_place(tmp_path: Path) -> None:
    disk, goes_on = Background("test", 10), threading.Event()
    disk.start()
    assert place_facts(str(tmp_path), disk) == place(tmp_path)
    assert place_facts(str(tmp_path / "gone"), disk) == {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("launcher.records.log_folders._LONGEST_LOOK_SECONDS", 0.01)
        disk.submit(lambda: goes_on.wait(60))
        assert place_facts(str(tmp_path), disk) == {}
    goes_on.set()


@pytest.mark.parametrize("name", ["workers/checkpoints", "incidents/mine", "elsewhere/0001", "mine"])
def test_a_folder_with_an_empty_folder_of_somebody_else_stays(logs: Path, name: str) -> None:
    (logs / "old1" / name).mkdir(parents=True)
    assert prune(str(logs / "ours"), 1) == ["old3", "old2", "old0"]
    assert (logs / "old1" / name).is_dir()


def test_all_that_a_job_writes_is_known_to_be_ours(logs: Path) -> None:
    for name in ("job_incidents/0001", "elsewhere/0003-vm-17", "near_misses/0001", "incidents/0002"):
        (logs / "old1" / name).mkdir(parents=True)
        for each in ("report.txt", "incident.json", ".incident.json", "job_incident.json"):
            (logs / "old1" / name / each).touch()
    for name in ("run_69aoucet/attempt_0/0", "run_69aoucet/attempt_0/11", "run_69aoucet/attempt_1"):
        (logs / "old1" / "workers" / name).mkdir(parents=True)
    for name in ("stdout.log", "stderr.log", "filtered_stderr.log", "error.json"):
        (logs / "old1" / "workers" / "run_69aoucet" / "attempt_0" / "0" / name).touch()
    for name in ("events-node-1-2.jsonl", "figures.jsonl", "figures-node-1.jsonl", "nodes.json"):
        (logs / "old1" / name).touch()
    prune(str(logs / "ours"), 1)
    assert left(logs) == ["ours"]


def test_a_folder_in_which_a_later_run_has_written_is_as_young_as_that_run(logs: Path) -> None:
    later = run(logs / "again", ["began", "ended"], second=1) / "events-node-1-2.jsonl"
    told = [{"event": "began", "t_ns": 5, **place(logs / "again")}, {"event": "ended", "t_ns": 5}]
    later.write_text("".join(json.dumps(event) + "\n" for event in told))
    prune(str(logs / "ours"), 2)
    assert left(logs) == ["again", "ours"]


def test_it_says_what_it_removed(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prune_in_background(str(logs / "ours"), 3).join(60)
    assert "2 log folder(s) of ended runs removed (--ft-keep-runs 3): old0, old1" in capfd.readouterr().err


def test_a_folder_that_is_gone_is_said_and_no_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prune_in_background(str(tmp_path / "gone" / "ours"), 3).join(60)
    assert "nothing was removed (--ft-keep-runs)" in capfd.readouterr().err
