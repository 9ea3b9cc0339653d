"""A run is followed from its first event to its end, and found among others."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.live import live_run
from launcher.live.live_run import LiveRun
from launcher.live.runs import ELSEWHERE, ENDED, GOES_ON, LOST, STARTING, UNKNOWN, find_runs, folder_problem, read_run
from launcher.records.private_folders import is_held, make_home

MakeRun = Callable[..., Any]


def test_from_the_beginning_to_the_end(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    live = LiveRun(str(run.path))
    look = live.look()
    assert (look.name, look.goes_on, look.ranks) == ("run-1", True, ())

    run.start([0, 1])
    run.ranks[0].open("step", limit=9)
    look = live.look()
    assert [rank.activity for rank in look.ranks] == ["step", "out of section"]
    assert look.nodes[0].generation == 0

    run.stop()
    look = live.look()
    assert (look.goes_on, look.nodes[0].generation, look.ranks) == (True, None, ())

    run.start([0, 1], restarts=1)
    assert [rank.generation for rank in live.look().ranks] == [1, 1]

    run.end("failed", 1, "no restarts left")
    look = live.look()
    assert (look.goes_on, [node.state for node in look.nodes]) == (False, [ENDED])
    assert look.nodes[0].log.ending is not None
    live.close()


def test_cells_are_read_where_the_run_folder_has_moved_to(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    live = LiveRun(str(run.path))
    live.look()
    (tmp_path / "other").mkdir(mode=0o700)
    former = run.folder.path
    run.folder.move([str(tmp_path / "other")])
    run.write("run_folder_moved", former=former, run_folder=run.folder.path, why="full")
    assert [rank.generation for rank in live.look().ranks] == [0]

    run.stop()
    run.start([0])
    assert [(rank.generation, rank.problem) for rank in live.look().ranks] == [(1, None)]
    live.close()


def test_all_launchers_of_this_machine_are_shown_together(make_run: MakeRun) -> None:
    """As nodes that share a log folder, each with its launcher, on one machine."""
    run = make_run()
    other = make_run("other")
    run.begin()
    run.start([0, 1])
    other.begin()
    other.start([0, 1], first_rank=2)
    shutil.copy(other.log.path, run.path / "events-other-1.jsonl")

    live = LiveRun(str(run.path))
    look = live.look()

    assert len(look.nodes) == 2
    assert sorted(rank.rank or 0 for rank in look.ranks) == [0, 1, 2, 3]
    live.close()


def test_a_launcher_that_begins_later_is_found(make_run: MakeRun) -> None:
    run = make_run()
    other = make_run("other")
    run.begin()
    live = LiveRun(str(run.path))
    assert len(live.look().nodes) == 1
    other.begin()
    shutil.copy(other.log.path, run.path / "events-other-1.jsonl")
    assert len(live.look().nodes) == 2
    live.close()


def test_only_those_that_go_on_are_shown_while_one_does(make_run: MakeRun) -> None:
    """The first run of a name has ended, the second one goes on."""
    run = make_run()
    run.begin()
    run.end()
    second = make_run("second")
    second.begin()
    shutil.copy(second.log.path, run.path / "events-vm-2.jsonl")
    live = LiveRun(str(run.path))
    look = live.look()
    assert [node.log.path for node in look.nodes] == [str(run.path / "events-vm-2.jsonl")]
    live.close()


def test_a_launcher_that_was_killed_is_lost_after_a_while(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.begin()
    live = LiveRun(str(run.path))
    live.look()
    run.folder.remove()
    assert live.look().nodes[0].state == GOES_ON  # it may be making its run folder anew
    monkeypatch.setattr(live_run, "_DOUBT_NS", 0)
    assert live.look().nodes[0].state == LOST
    live.close()


def test_a_removed_log_folder_ends_nothing(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    live = LiveRun(str(run.path))
    live.look()
    shutil.rmtree(run.path)
    assert [rank.problem for rank in live.look().ranks] == [None]
    run.write("monitor_replaced", reason="x")
    assert live.look().nodes[0].log.monitor_replacements == 1
    live.close()


def test_a_run_folder_alone_shows_its_ranks(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1])
    live = LiveRun.of_run_folder(run.folder.path)
    look = live.look()
    assert (look.goes_on, len(look.ranks)) == (True, 2)
    live.close()


def test_the_lock_is_left_alone(tmp_path: Path) -> None:
    """Only this lock is looked at: the kernel's list of all locks changes with every other process."""
    home = make_home(str(tmp_path / "home"))
    assert [is_held(home.path) for _ in range(3)] == [True] * 3
    other = os.open(os.path.join(home.path, "lock"), os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)

    os.close(home.lock)
    assert [is_held(home.path) for _ in range(3)] == [False] * 3
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no look has left a lock of its own
    os.close(other)
    shutil.rmtree(home.path)
    assert is_held(home.path) is False


def test_runs_are_found_newest_first(make_run: MakeRun) -> None:
    for number, name in enumerate(("a", "b", "c")):
        run = make_run(name)
        run.begin()
        if name != "b":
            run.end()
        os.utime(run.log.path, (time.time(), time.time() + number))
    (run.logs / "latest").symlink_to("a")
    (run.logs / "none").mkdir()
    (run.logs / "newer").mkdir()
    (run.logs / "newer" / "events.jsonl").write_text('{"event": "began", "t_ns": 1, "version": 9}\n')

    found = find_runs(str(run.logs))

    assert [(each.name, each.goes_on) for each in found] == [("c", False), ("b", True), ("a", False)]
    assert [each.states for each in found] == [(ENDED,), (GOES_ON,), (ENDED,)]


def test_a_run_of_another_machine(make_run: MakeRun) -> None:
    run = make_run()
    Path(run.log.path).write_text('{"event": "began", "t_ns": 1, "node": "far", "boot": "b", "run_folder": "/x"}\n')
    assert read_run(str(run.path)).states == (ELSEWHERE,)
    assert not LiveRun(str(run.path)).look().goes_on


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_the_run_folder_of_another_user_is_named_with_its_owner(open_run: Any) -> None:
    run = open_run
    program = (
        "import os, sys\n"
        "from launcher.live.runs import folder_problem\n"
        "from launcher.records.private_folders import is_held, make_home\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(folder_problem(sys.argv[1]), is_held(sys.argv[1]))"
    )
    said = subprocess.run([sys.executable, "-c", program, run.folder.path], capture_output=True, text=True, check=True)
    assert said.stdout.strip().startswith(f"the run folder {run.folder.path} is private to the user with uid 0")
    assert said.stdout.strip().endswith("None")
    assert folder_problem(run.folder.path) is None


def test_a_launcher_that_may_be_starting_is_followed_and_one_that_never_began_is_not_known(make_run: MakeRun) -> None:
    run = make_run()
    found = read_run(str(run.path))
    assert (found.states, found.goes_on) == ((STARTING,), True)
    look = LiveRun(str(run.path)).look()
    assert (look.goes_on, look.ranks) == (True, ())
    os.utime(run.log.path, (1, 1))
    assert read_run(str(run.path)).states == (UNKNOWN,)


@pytest.mark.parametrize("text", ["\0" * 200, '{"event": "beg', "once upon a time\n"])
def test_a_file_in_which_no_event_can_be_read_tells_of_no_start(make_run: MakeRun, text: str) -> None:
    run = make_run()
    Path(run.log.path).write_text(text)
    assert read_run(str(run.path)).states == (UNKNOWN,)
    live = LiveRun(str(run.path))
    assert not live.look().goes_on
    os.unlink(run.log.path)
    run.begin()  # its launcher makes the file anew, and goes on
    look = live.look()
    assert (look.goes_on, [node.state for node in look.nodes]) == (True, [GOES_ON])
    live.close()


def test_events_without_the_first_ones_do_not_tell_whether_the_launcher_goes_on(make_run: MakeRun) -> None:
    run = make_run()
    run.write("checkpoint", generation=1)
    assert read_run(str(run.path)).states == (UNKNOWN,)


def test_what_is_named_like_a_file_of_events_and_is_none_hides_no_run(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    (run.path / "events-folder.jsonl").mkdir()
    (found,) = find_runs(str(run.logs))
    assert found.goes_on
    live = LiveRun(str(run.path))
    assert len(live.look().nodes) == 1
    live.close()


def test_a_run_whose_file_of_events_is_renamed_is_followed_to_its_end(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    live = LiveRun(str(run.path))
    assert live.look().goes_on
    os.rename(run.log.path, f"{run.log.path}.1")
    assert live.look().goes_on
    run.end()
    (node,) = live.look().nodes
    assert (node.state, node.log.began_ns is not None) == (ENDED, True)
    live.close()
