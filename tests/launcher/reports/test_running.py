"""Whether a run still goes on is told by its run folder's lock, as ft_top tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.live.live_run import LiveRun
from launcher.reports.build import make_report

MakeRun = Callable[..., Any]


def goes_on(run: Any) -> tuple[bool, bool]:
    """Return what a report says of that, and what ft_top does."""
    live = LiveRun(str(run.path))
    look = live.look()
    live.close()
    return make_report([str(run.path)]).is_running, look.goes_on


def changed(run: Any, **facts: Any) -> None:
    """Change facts of all events."""
    path = Path(run.log.path)
    lines = [json.loads(line) | facts for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("facts", [{}, {"launcher": 1 << 30}])
def test_a_run_goes_on_as_long_as_its_run_folder_is_held(make_run: MakeRun, facts: dict[str, Any]) -> None:
    """Even where its process has another number here, as in a container."""
    run = make_run()
    run.begin()
    run.start([0])
    changed(run, **facts)
    assert goes_on(run) == (True, True)
    run.folder.remove()
    assert goes_on(run) == (False, False)


def test_a_run_whose_launcher_was_killed_and_whose_number_another_process_has_is_over(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    path = run.folder.path
    run.folder.remove()
    Path(path).mkdir(mode=0o700)
    Path(path, "lock").touch()
    assert goes_on(run) == (False, False)


def test_a_run_goes_on_where_its_run_folder_has_moved_to(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    (tmp_path / "other").mkdir(mode=0o700)
    run.folder.move([str(tmp_path / "other")])
    run.write("run_folder_moved", former="x", run_folder=run.folder.path, why="full")
    assert goes_on(run) == (True, True)


def test_of_another_machine_the_age_of_the_last_line_tells(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    changed(run, boot="another")
    run.folder.remove()
    assert make_report([str(run.path)]).is_running
