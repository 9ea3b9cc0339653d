"""Whether a job that is restarted again and again gets anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.agent.progress import NOTHING_REACHED, ProgressRule, Reached, Standstill, reached_by
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ITERATION, RESUMED_FROM, SAVED, WENT_BACK


def rule(**settings: object) -> ProgressRule:
    return ProgressRule(FaultToleranceConfig(**settings))  # type: ignore[arg-type]


def at(iteration: int | None) -> Reached:
    return Reached(iteration=iteration)


# ---- what counts as the lack of progress ----------------------------------------------------------------


def counts(*ends: Reached, least: int = 1) -> list[int]:
    """The row's length after each end."""
    row, lengths = Standstill(least), []
    for end in ends:
        row.add(end)
        lengths.append(row.count)
    return lengths


def test_ends_at_the_same_iteration_are_a_row_until_one_gets_further() -> None:
    assert counts(*map(at, (20, 20, 20, 21, 21, 22))) == [0, 1, 2, 0, 1, 0]


def test_a_peer_may_have_been_ahead_or_behind() -> None:
    """The same failure is told by other ranks, one or two iterations earlier or later."""
    assert counts(*(Reached(end, resumed_from=15) for end in (20, 18, 20, 19, 18, 20))) == [0, 1, 2, 3, 4, 5]
    assert counts(*map(at, (20, 18, 20, 19, 18, 20))) == [0] * 6, "counted from 0 each time, perhaps"


@pytest.mark.parametrize("loaded", [None, 480])
def test_ends_at_other_iterations_say_nothing(loaded: int | None) -> None:
    """Failures now and then come before the next checkpoint some times in a row."""
    ends = [Reached(end, resumed_from=loaded) for end in (500, 490, 481, 495, 486, 489, 489, 489)]
    assert counts(*ends) == [0, 0, 0, 0, 0, 0, 1, 2]


def test_the_place_of_a_row_does_not_drift() -> None:
    ends = [Reached(end, resumed_from=10) for end in (39, 24, 23, 22, 21, 20, 19, 18)]
    assert counts(*ends) == [0, 0, 1, 2, 0, 1, 2, 0]


def test_a_checkpoint_of_nothing_does_not_say_how_iterations_are_counted() -> None:
    assert counts(*(Reached(reached, resumed_from=0) for reached in (500, 300, 200, 450))) == [0, 0, 0, 0]


@pytest.mark.parametrize("word", ["resumed_from", "saved"])
def test_a_checkpoint_that_is_newer_each_time_is_progress(word: str) -> None:
    ends = [Reached(9, **{word: epoch}) for epoch in (1, 2, 3, 4)]  # type: ignore[arg-type]
    assert counts(*ends) == [0, 0, 0, 0]


def test_a_checkpoint_that_is_loaded_again_is_no_progress() -> None:
    assert counts(*(Reached(9, resumed_from=epoch) for epoch in (2, 3, 3, 3, 4))) == [0, 0, 1, 2, 0]


def test_the_newest_checkpoint_is_whichever_is_newer() -> None:
    """What one generation has saved and the next has loaded is one step forward, not two."""
    assert counts(Reached(9, saved=4), Reached(9, resumed_from=4), Reached(9, 4, saved=4)) == [0, 1, 2]


def test_who_had_to_load_an_older_checkpoint_gets_on_from_there() -> None:
    """The newest one was damaged, say. It is long until the best iteration is reached again."""
    older = [Reached(16, 10, saved=15), Reached(21, 15, saved=20), Reached(26, 20, saved=20), Reached(25, 20)]
    assert counts(Reached(40, saved=40), *older) == [0, 0, 0, 0, 1]
    assert counts(Reached(16, saved=40), NOTHING_REACHED, *older[:2]) == [0, 1, 2, 0]
    assert counts(older[0], at(16), older[0]) == [0, 1, 2], "who names none does not make the next one newer"
    assert counts(Reached(16, saved=40), *[Reached(16, 10, saved=loaded) for loaded in (15, 16, 17, 17)]) == [
        0,
        1,
        0,
        0,
        1,
    ]


def test_a_failure_that_cannot_be_the_same_ends_a_row() -> None:
    row = Standstill()
    for may_be, count in ((False, 0), (True, 1), (True, 2), (False, 0), (True, 1)):
        row.add(at(9), may_be_the_same=may_be)
        assert row.count == count
    row.add(Reached(9, resumed_from=7), may_be_the_same=False)
    assert row.count == 0, "it is the first that has loaded a checkpoint"
    row.add(Reached(9, resumed_from=7), may_be_the_same=False)
    assert row.count == 1, "iterations go on from what was loaded, wherever it fails"


def test_iterations_that_have_gone_back_once_say_nothing_from_then_on() -> None:
    assert counts(at(9), at(9), Reached(9, went_back=True), at(9), at(9)) == [0, 1, 0, 0, 0]


def test_a_generation_without_any_iteration_is_none_whatever_the_iterations_mean() -> None:
    back = Reached(9, went_back=True)
    assert counts(back, NOTHING_REACHED, NOTHING_REACHED, at(8), NOTHING_REACHED) == [0, 1, 2, 0, 1]
    assert counts(NOTHING_REACHED, at(3), NOTHING_REACHED, at(2)) == [1, 0, 1, 0]


def test_the_least_gain_counts_for_checkpoints_too() -> None:
    """Small gains do not creep past it."""
    assert counts(*map(at, (10, 12, 14, 13, 19)), least=5) == [0, 1, 2, 3, 0]
    assert counts(*map(at, (10, 14, 9, 3)), least=5) == [0, 1, 2, 0]
    assert counts(*(Reached(30, loaded) for loaded in (10, 14, 18, 23)), least=5) == [0, 1, 2, 0]


def test_how_far_it_came_is_the_most_of_each() -> None:
    row = Standstill()
    row.add(Reached(5, resumed_from=3))
    row.note(Reached(4, saved=4, went_back=True))
    row.add(NOTHING_REACHED)
    assert row.furthest == Reached(5, 3, 4, went_back=True)
    assert row.best == 5


# ---- what the cells say ---------------------------------------------------------------------------------


def cell(**words: int) -> Cell:
    made = Cell.detached()
    places = {"iteration": ITERATION, "resumed_from": RESUMED_FROM, "saved": SAVED, "went_back": WENT_BACK}
    for name, value in words.items():
        made.words[places[name]] = value
    return made


def test_ranks_came_as_far_as_the_furthest_of_them() -> None:
    cells = [cell(), cell(iteration=5, resumed_from=0), cell(iteration=3, saved=4, went_back=2)]
    assert reached_by(each.view() for each in cells) == Reached(5, 0, 4, went_back=True)
    assert reached_by([cell().view()]) == reached_by([]) == NOTHING_REACHED


def test_an_iteration_below_the_checkpoint_that_was_loaded_has_gone_back() -> None:
    """They do not go on from it, so they are counted in another way."""
    assert reached_by([cell(iteration=39, resumed_from=40).view()]).went_back
    assert not reached_by([cell(iteration=40, resumed_from=40).view()]).went_back
    assert not reached_by([cell(resumed_from=40).view()]).went_back, "it has not come to its first step"


@pytest.mark.parametrize("word", ["iteration", "resumed_from", "saved"])
def test_an_iteration_that_no_job_can_reach_is_no_progress(word: str) -> None:
    """Written by whatever has damaged the cell, it would make every later generation one without progress."""
    known = cell(iteration=5, resumed_from=5, saved=5)
    damaged = cell(**{word: 1 << 60})
    assert reached_by([known.view(), damaged.view()]) == Reached(5, 5, 5)


# ---- the rule -------------------------------------------------------------------------------------------


def test_a_job_that_reports_nothing_is_never_judged() -> None:
    never = rule(max_no_progress_cycles=1)
    assert [never.generation_ended(NOTHING_REACHED, in_a_step=True) for _ in range(50)] == [None] * 50


def test_the_same_failure_over_and_over_ends_the_job() -> None:
    stuck = rule(max_no_progress_cycles=3)
    assert stuck.generation_ended(at(20), in_a_step=True) is None
    assert [stuck.generation_ended(at(20), in_a_step=True) for _ in range(2)] == [None, None]
    assert stuck.generation_ended(at(20), in_a_step=True) == (
        "3 generations in a row ended without 1 new iteration(s), about where the one before them did; the best so "
        "far that the ranks report is 20. If the "
        "job does get on, start it with --ft-max-no-progress-cycles 0"
    )
    assert stuck.doubt() is None


def test_one_generation_that_gains_enough_clears_the_count() -> None:
    moving = rule(max_no_progress_cycles=2, min_progress_iterations=5)
    for reached in (10, 11, 16, 17, 22, 23, 28):
        assert moving.generation_ended(at(reached), in_a_step=True) is None
    assert moving.generation_ended(at(29), in_a_step=True) is None
    assert moving.generation_ended(at(30), in_a_step=True) is not None


def test_a_generation_without_any_iteration_is_not_judged() -> None:
    """Its file system or a peer may be away for a while. It does not end the row either."""
    waiting = rule(max_no_progress_cycles=2)
    assert waiting.generation_ended(at(7), in_a_step=True) is None
    assert [waiting.generation_ended(NOTHING_REACHED, in_a_step=True) for _ in range(50)] == [None] * 50
    assert waiting.generation_ended(at(7), in_a_step=True) is None
    assert waiting.generation_ended(NOTHING_REACHED, in_a_step=True) is None
    assert waiting.generation_ended(at(7), in_a_step=True) is not None


def test_a_failure_between_steps_is_not_the_one_before_it_again() -> None:
    """One epoch in each generation, each counted from 0, and a failure at its end."""
    epochs = rule(max_no_progress_cycles=1)
    assert [epochs.generation_ended(at(9), in_a_step=False) for _ in range(50)] == [None] * 50
    assert epochs.generation_ended(at(9), in_a_step=True) is not None


def test_who_saves_where_nothing_was_loaded_may_count_from_0_each_time() -> None:
    """A checkpoint after ten steps of each process, and a failure in the 15th."""
    processes = rule(max_no_progress_cycles=1)
    assert [processes.generation_ended(Reached(14, saved=10), in_a_step=True) for _ in range(50)] == [None] * 50
    assert processes.generation_ended(at(14), in_a_step=True) is not None


def test_zero_never_ends_it() -> None:
    patient = rule(max_no_progress_cycles=0)
    assert [patient.generation_ended(at(3), in_a_step=True) for _ in range(50)] == [None] * 50
    patient.generation_ended(Reached(3, went_back=True), in_a_step=True)
    assert patient.doubt() is None, "there is nothing that it could not judge"


def test_a_generation_that_ended_in_good_order_is_remembered_and_not_counted() -> None:
    moving = rule(max_no_progress_cycles=1)
    moving.note(at(30))
    assert moving.furthest == at(30)
    assert moving.generation_ended(at(30), in_a_step=True) is None, "nothing has failed there before"
    assert moving.generation_ended(at(30), in_a_step=True) is not None


def test_that_it_is_not_judged_any_more_is_said_once() -> None:
    unsure = rule(max_no_progress_cycles=1)
    unsure.generation_ended(at(9), in_a_step=True)
    assert unsure.doubt() is None
    assert unsure.generation_ended(Reached(9, went_back=True), in_a_step=True) is None
    assert "counted within each epoch" in (unsure.doubt() or "")
    assert [unsure.generation_ended(at(9), in_a_step=True) for _ in range(9)] == [None] * 9
    assert unsure.doubt() is None


def test_the_checkpoints_iteration_counts_where_there_is_a_file(tmp_path: Path) -> None:
    """What was reached but not saved is lost at the restart, so it is no progress."""
    file = tmp_path / "latest"
    file.write_text("100\n")
    saved = rule(max_no_progress_cycles=2, checkpoint_iteration_file=str(file))
    assert saved.furthest.iteration == 100
    assert saved.generation_ended(at(500), in_a_step=True) is None
    file.write_text("200")
    assert saved.generation_ended(at(501), in_a_step=True) is None
    file.write_text("150")
    assert saved.generation_ended(at(502), in_a_step=True) is None
    assert f"the best so far that {file} holds is 200" in (saved.generation_ended(at(503), in_a_step=True) or "")


def test_with_a_file_too_ends_at_other_iterations_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "latest"
    file.write_text("100")
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))
    assert [saved.generation_ended(at(end), in_a_step=True) for end in range(130, 101, -3)] == [None] * 10


def test_with_a_file_it_does_not_matter_how_iterations_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "latest"
    file.write_text("7")
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))
    back = Reached(9, saved=12, went_back=True)
    assert saved.generation_ended(back, in_a_step=True) is None
    file.write_text("8")
    assert saved.generation_ended(back, in_a_step=True) is None
    assert saved.generation_ended(back, in_a_step=True) is not None
    assert saved.doubt() is None


def test_a_file_that_holds_no_integer_is_said_once_and_judges_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "latest"
    file.write_text("step 100")
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))

    assert [saved.generation_ended(at(5), in_a_step=True) for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint_iteration_file {file}: invalid literal for int() with base 10: 'step 100'; expected one integer. "
        "As long as it has none, progress is not judged"
    ]


def test_with_a_file_a_generation_without_any_iteration_is_not_judged_either(tmp_path: Path) -> None:
    """Where the job has reported some before. A job that reports nothing is judged by its file alone."""
    file = tmp_path / "latest"
    file.write_text("10")
    saved = rule(max_no_progress_cycles=2, checkpoint_iteration_file=str(file))
    assert saved.generation_ended(at(9), in_a_step=True) is None
    assert saved.generation_ended(at(9), in_a_step=True) is None
    assert [saved.generation_ended(NOTHING_REACHED, in_a_step=False) for _ in range(50)] == [None] * 50
    assert saved.generation_ended(at(9), in_a_step=True) is not None

    ended_well = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))
    ended_well.note(at(9))
    assert ended_well.generation_ended(NOTHING_REACHED, in_a_step=False) is None

    alone = rule(max_no_progress_cycles=2, checkpoint_iteration_file=str(file))
    assert [alone.generation_ended(NOTHING_REACHED, in_a_step=False) for _ in range(2)] == [None] * 2
    assert alone.generation_ended(NOTHING_REACHED, in_a_step=False) is not None


def test_a_file_that_is_larger_than_any_number_is_not_read_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint itself, perhaps: gigabytes, in the launcher's memory, at each restart."""
    file = tmp_path / "checkpoint"
    file.write_text("1" * 101)
    os.truncate(file, 1 << 40)
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))

    assert (saved.furthest, saved.generation_ended(at(7), in_a_step=True)) == (NOTHING_REACHED, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint_iteration_file {file}: it has more than 100 bytes; expected one integer. "
        "As long as it has none, progress is not judged"
    ]
    file.write_text("1" * 30 + " " * 70)
    assert rule(checkpoint_iteration_file=str(file)).furthest.iteration == int("1" * 30)


@pytest.mark.parametrize("content", ["", "12 34", None])
def test_a_file_that_has_lost_its_integer_judges_nobody(tmp_path: Path, content: str | None) -> None:
    """It was being written when everything ended, say."""
    file = tmp_path / "latest"
    file.write_text("7")
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert [saved.generation_ended(at(9), in_a_step=True) for _ in range(3)] == [None] * 3
    file.write_text("7")
    assert saved.generation_ended(at(9), in_a_step=True) is None
    assert "the best so far that" in (saved.generation_ended(at(9), in_a_step=True) or "")


def test_a_file_that_does_not_exist_yet_judges_nobody(tmp_path: Path) -> None:
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(tmp_path / "latest"))
    assert [saved.generation_ended(at(5), in_a_step=True) for _ in range(3)] == [None] * 3
