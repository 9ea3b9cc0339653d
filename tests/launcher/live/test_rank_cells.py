"""The ranks of the newest generation, and what follows from what their cells say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.live.rank_cells import RankCells
from launcher.live.rank_look import NO_MONITORING, OUT_OF_SECTION, OVER
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import NO_LIMIT, PID_NAMESPACE
from resilience_core.protocol.figures import DONE, FIRST_ITERATION, FIRST_STEP, PASSED
from resilience_core.system.clock import NS_PER_SECOND

MakeRun = Callable[..., Any]


def test_a_rank_in_a_section(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1], first_rank=4)
    run.ranks[0].open("step", limit=10, age=4, iteration=7)
    cells = RankCells(run.folder.path)

    found = cells.look()

    assert (found.generation, found.problem, len(found.ranks)) == (0, None, 2)
    rank = found.ranks[0]
    assert (rank.rank, rank.local_rank, rank.activity, rank.iteration) == (4, 0, "step", 7)
    assert rank.age_seconds == pytest.approx(4, abs=1)
    assert rank.seconds_left == pytest.approx(6, abs=1)
    assert rank.used == pytest.approx(0.4, abs=0.1)
    assert not rank.is_late
    assert rank.process is not None
    assert (rank.process.resident_bytes or 0) > 1 << 20
    cells.close()


def test_sections_are_named_from_the_outermost_on_and_the_nearest_deadline_counts(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    run.ranks[0].open("forward", limit=100, age=1)
    run.ranks[0].open("step", limit=30, age=20)
    cells = RankCells(run.folder.path)

    (rank,) = cells.look().ranks

    assert rank.activity == "step > forward"
    assert rank.deadline is not None
    assert (rank.deadline.cause, rank.deadline.section) == ("section", "step")
    assert rank.seconds_left == pytest.approx(10, abs=1)
    assert rank.age_seconds == pytest.approx(1, abs=1)
    cells.close()


def test_a_rank_that_is_late(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    run.ranks[0].beat(limit=2, age=5)
    cells = RankCells(run.folder.path)

    (rank,) = cells.look().ranks

    assert rank.activity == OUT_OF_SECTION
    assert rank.is_late
    assert rank.seconds_left == pytest.approx(-3, abs=1)
    assert rank.used > 2
    cells.close()


def test_states_before_and_after_monitoring(make_run: MakeRun) -> None:
    run = make_run()
    run.start([1])
    path = run.folder.cell(0, 0)
    Cell.create(path, rank=0).close()
    run.ranks[1].shut_down()
    cells = RankCells(run.folder.path)

    before, after = cells.look().ranks

    assert (before.activity, before.age_seconds, before.seconds_left, before.used) == (NO_MONITORING, None, None, 0)
    assert (after.activity, after.seconds_left, after.steps_per_second) == (OVER, None, None)
    cells.close()


def test_a_section_without_a_limit_ages_and_is_never_late(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    run.ranks[0].open("step", limit=1, age=0)
    words = run.ranks[0].cell.words
    words[16] = NO_LIMIT
    words[17] -= 600 * NS_PER_SECOND
    words[8] = words[9] = words[17]
    cells = RankCells(run.folder.path)

    (rank,) = cells.look().ranks

    assert (rank.activity, rank.deadline, rank.is_late) == ("step", None, False)
    assert 0.9 < rank.used < 1
    cells.close()


def test_it_follows_to_the_next_generation(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1])
    cells = RankCells(run.folder.path)
    assert cells.look().generation == 0

    run.stop()
    cells.end(0)
    assert cells.look()[1:] == (None, (), None)

    run.start([0])
    found = cells.look()
    assert (found.generation, [rank.local_rank for rank in found.ranks]) == (1, [0])
    cells.close()


def test_the_cells_of_a_generation_that_is_over_are_closed(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1, 2])
    cells = RankCells(run.folder.path)
    before = len(os.listdir("/proc/self/fd"))
    cells.look()
    assert len(os.listdir("/proc/self/fd")) > before

    cells.end(0)
    cells.look()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_newest_generation_counts_where_two_are_there(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    run.start([0, 1])
    cells = RankCells(run.folder.path)
    assert (cells.look().generation, len(cells.look().ranks)) == (1, 2)
    cells.close()


def test_a_rank_whose_cell_was_removed_before_the_first_look_is_shown(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1])
    os.unlink(run.folder.cell(0, 1))
    cells = RankCells(run.folder.path)

    found = cells.look(0, (0, 1))

    assert [rank.problem for rank in found.ranks] == [None, "its cell was removed"]
    assert found.ranks[1].rank is None
    os.unlink(run.folder.cell(0, 0))
    assert [rank.problem for rank in RankCells(run.folder.path).look(0, (0, 1)).ranks] == ["its cell was removed"] * 2
    cells.close()


def test_a_run_folder_that_is_gone_is_a_problem_and_no_exception(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    cells = RankCells(run.folder.path)
    cells.look()
    run.folder.remove()

    found = cells.look()

    assert (found.problem or "").endswith("/cells: No such file or directory")
    assert [rank.problem for rank in found.ranks] == ["its cell was removed"]
    cells.close()


def test_a_process_that_has_ended_or_is_of_another_namespace(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run.ranks[0].cell.words[1] = 0
    run.ranks[0].begin(child.pid)
    run.ranks[1].cell.words[PID_NAMESPACE] = 1
    cells = RankCells(run.folder.path)
    assert [rank.process is not None for rank in cells.look().ranks] == [True, False]
    child.kill()
    child.communicate()

    ended, foreign = cells.look().ranks

    assert (ended.process, ended.has_ended) == (None, True)
    assert (foreign.process, foreign.has_ended) == (None, False)
    cells.close()


def test_steps_in_a_second_come_from_the_figures_at_the_first_look(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0, 1])
    now_ns = time.monotonic_ns()
    run.ranks[0].open("step", limit=10, iteration=60)
    figures = run.ranks[0].figures
    figures[FIRST_ITERATION], figures[DONE], figures[FIRST_STEP] = 20, 59, now_ns - 10 * NS_PER_SECOND
    cells = RankCells(run.folder.path)

    first, second = cells.look().ranks

    assert first.steps_per_second == pytest.approx(4, rel=0.2)
    assert second.steps_per_second is None
    cells.close()


def test_steps_in_a_second_are_those_that_were_counted(make_run: MakeRun) -> None:
    """Each has the number of the one before it and eight more."""
    run = make_run()
    run.start([0])
    rank, figures, now_ns = run.ranks[0], run.ranks[0].figures, time.monotonic_ns()
    figures[FIRST_ITERATION], figures[DONE], figures[FIRST_STEP] = 0, 39 * 8, now_ns - 10 * NS_PER_SECOND
    figures[PASSED] = 40
    rank.open("step", limit=10, age=0.5, iteration=40 * 8)
    cells = RankCells(run.folder.path)
    assert cells.look().ranks[0].steps_per_second == pytest.approx(40 / 9.5, rel=0.05)
    for number, age in ((41, 0.25), (42, 0.0)):
        figures[DONE], figures[PASSED] = number * 8 - 8, number
        rank.close("step")
        rank.open("step", limit=10, age=age, iteration=number * 8)
        looked = cells.look().ranks[0].steps_per_second
    assert looked == pytest.approx(4, rel=0.1)
    cells.close()


def test_steps_in_a_second_are_no_more_than_were_seen_to_end(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    rank, figures, now_ns = run.ranks[0], run.ranks[0].figures, time.monotonic_ns()
    figures[FIRST_ITERATION], figures[DONE], figures[FIRST_STEP] = 0, 0, now_ns - 5 * NS_PER_SECOND
    rank.open("step", limit=10, age=4.5, iteration=1)
    cells = RankCells(run.folder.path)
    assert cells.look().ranks[0].steps_per_second is None  # one step alone has ended
    rank.close("step")

    figures[DONE] = 8
    rank.open("step", limit=10, age=0.5, iteration=9)
    rank.open("forward", limit=10, iteration=9)  # a sign of progress within a step is not its end
    first = cells.look().ranks[0].steps_per_second
    figures[DONE] = 9
    rank.close("step")
    rank.open("step", limit=10, iteration=10)
    second = cells.look().ranks[0].steps_per_second

    # Looks that soon after each other, as before and after the begin of a screen, tell nothing by themselves.
    assert (first, second) == (pytest.approx(2, rel=0.05), pytest.approx(2, rel=0.05))
    cells.close()


def test_a_rank_that_hangs_at_the_first_look_is_slow(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    rank, figures, now_ns = run.ranks[0], run.ranks[0].figures, time.monotonic_ns()
    figures[FIRST_ITERATION], figures[DONE], figures[FIRST_STEP] = 0, 59, now_ns - 26 * NS_PER_SECOND
    rank.open("step", limit=60, age=20, iteration=60)  # 60 steps in 6 s, and none in the 20 s since
    cells = RankCells(run.folder.path)

    looks = [cells.look().ranks[0].steps_per_second for _ in range(3)]

    assert looks == [pytest.approx(60 / 25.9, rel=0.02)] * 3
    cells.close()


def test_damaged_figures_are_none(make_run: MakeRun) -> None:
    run = make_run()
    run.start([0])
    path = run.folder.cell(0, 0) + ".figures"
    run.ranks[0].figures.release()
    os.truncate(path, 20)
    cells = RankCells(run.folder.path)
    assert cells.look().ranks[0].steps_per_second is None
    os.unlink(path)
    os.mkdir(path)
    other = RankCells(run.folder.path)
    assert other.look().ranks[0].steps_per_second is None
    cells.close()
    other.close()
