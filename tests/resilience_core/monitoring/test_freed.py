"""An exception that nothing refers to any more was caught: a rank that goes on with it is no cause of a failure."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from resilience_core.errors import StopTraining
from resilience_core.monitoring.error_capture import leave_error, look_for_caught, note_error, tell_of_errors
from resilience_core.monitoring.freed import call_when_freed
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT, ITERATION
from resilience_core.protocol.error_record import ErrorRecord, parse_error


@pytest.fixture
def cell(recording_cell: Cell) -> Cell:
    return recording_cell


def left(cell: Cell) -> ErrorRecord:
    record = parse_error(cell.read_text(ERROR_TEXT))
    assert record is not None
    return record


def may_be_why(cell: Cell, exit_code: int | None = None) -> bool:
    return left(cell).may_be_why(cell.view(), exit_code)


def leave(kind: type[BaseException], message: str) -> None:
    """Raise as out of a step, which notes it; no variable of a frame that it leaves refers to it."""
    try:
        raise kind(message)
    except BaseException as raised:
        note_error(raised)
        raise


def test_what_was_caught_is_no_cause_unless_the_rank_ends_as_one_that_has_given_up(cell: Cell) -> None:
    with contextlib.suppress(ValueError):
        leave(ValueError, "a bad batch")
    assert left(cell).is_caught
    assert left(cell).message == "a bad batch"
    assert [may_be_why(cell, code) for code in (None, 0, 1, 7, -9)] == [False, False, True, False, False]


def test_what_is_being_handled_or_kept_may_be_the_cause(cell: Cell) -> None:
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        assert may_be_why(cell)
        kept.append(error)
    gc.collect()
    assert may_be_why(cell), "a script may keep it until it has cleaned up"
    kept.clear()
    assert not may_be_why(cell)


def look() -> bool:
    """Look from another thread; whether to look again."""
    found: list[bool] = []
    looking = threading.Thread(target=lambda: found.append(look_for_caught()))
    looking.start()
    looking.join()
    return found[0]


def test_what_is_kept_was_caught_once_its_thread_neither_handles_it_nor_is_on_the_way_out(cell: Cell) -> None:
    told: list[bool] = []
    tell_of_errors(lambda: told.append(True))
    assert not look(), "nothing was noted"
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        assert look(), "it is being handled"
        assert may_be_why(cell)
        kept.append(error)
    assert not look()
    assert left(cell).is_caught
    assert (told, look()) == ([True], False)
    assert kept, "nothing has freed it"


def test_without_somebody_who_looks_what_is_kept_may_be_the_cause(cell: Cell) -> None:
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        kept.append(error)
    assert not look()
    assert not left(cell).is_caught


def test_what_was_noted_last_is_looked_after(cell: Cell) -> None:
    tell_of_errors(lambda: None)
    kept: list[BaseException] = []
    with contextlib.suppress(RuntimeError):
        try:
            leave(ValueError, "a bad batch")
        except ValueError as error:
            kept.append(error)
        try:
            leave(RuntimeError, "a lost loader")
        except RuntimeError as error:
            kept.append(error)
            assert look()
            raise
    assert not look()
    assert (left(cell).type, left(cell).is_caught) == ("RuntimeError", True)


def test_what_was_kept_and_is_raised_again_is_on_its_way_again(cell: Cell) -> None:
    tell_of_errors(lambda: None)
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        kept.append(error)
    assert not look()
    try:
        try:
            raise kept.pop()
        except ValueError as error:
            note_error(error)
            raise
    except ValueError:
        assert not left(cell).is_caught
        assert look()
    assert left(cell).is_caught


def test_what_has_left_the_program_or_is_a_stop_is_looked_after_no_more(cell: Cell) -> None:
    tell_of_errors(lambda: None)
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        leave_error(error)
        kept.append(error)
    assert not look()
    assert (left(cell).is_uncaught, left(cell).is_caught) == (True, False)
    try:
        leave(StopTraining, "enough")
    except StopTraining as error:
        assert look()
        kept.append(error)
    assert not look()
    assert (left(cell).is_deliberate, left(cell).is_caught) == (True, False)


def test_a_rank_that_has_gone_on_is_looked_after_no_more(cell: Cell) -> None:
    tell_of_errors(lambda: None)
    try:
        leave(ValueError, "a bad batch")
    except ValueError:
        cell.words[ITERATION] = 7
        assert not look()
    assert not look()


def test_what_is_raised_in_the_course_of_another_keeps_both(cell: Cell) -> None:
    kept: list[BaseException] = []
    try:
        try:
            leave(ValueError, "a bad batch")
        except ValueError:
            leave(RuntimeError, "cannot go on")
    except RuntimeError as error:
        kept.append(error)
    assert not left(cell).is_caught
    assert left(cell).message == "cannot go on"
    kept.clear()
    assert left(cell).is_caught


def test_a_later_exception_is_not_taken_for_the_one_that_was_caught(cell: Cell) -> None:
    kept: list[BaseException] = []
    for message in ("first", "second"):
        try:
            leave(ValueError, message)
        except ValueError as error:
            kept.append(error)
    del kept[0]
    assert (left(cell).message, left(cell).is_caught) == ("second", False)


def test_what_has_left_the_program_is_not_caught_though_it_is_freed(cell: Cell) -> None:
    with contextlib.suppress(ValueError):
        try:
            leave(ValueError, "a bad batch")
        except ValueError as error:
            leave_error(error)
            raise
    assert (left(cell).is_uncaught, left(cell).is_caught) == (True, False)
    assert may_be_why(cell)


def test_a_stop_that_was_caught_is_taken_back(cell: Cell) -> None:
    with contextlib.suppress(StopTraining):
        leave(StopTraining, "enough")
    assert not cell.read_text(ERROR_TEXT)


def test_a_child_that_frees_what_its_parent_has_raised_changes_nothing(cell: Cell) -> None:
    kept: list[BaseException] = []
    try:
        leave(ValueError, "a bad batch")
    except ValueError as error:
        kept.append(error)
    child = os.fork()
    if child == 0:
        kept.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not left(cell).is_caught
    assert kept


def test_an_exception_can_be_sent_to_a_process_without_this_package(tmp_path: Path) -> None:
    error = ValueError("a bad batch")
    call_when_freed(error, list)
    (tmp_path / "sent").write_bytes(pickle.dumps(error))
    read = "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], 'rb'))), 'resilience_core' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", read, str(tmp_path / "sent")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ValueError('a bad batch') False\n", done.stderr


def test_the_attributes_of_an_exception_that_was_noted_can_be_written_as_json(cell: Cell) -> None:
    with pytest.raises(ValueError, match="a bad batch") as caught:
        leave(ValueError, "a bad batch")
    assert left(cell).message == "a bad batch"
    assert json.loads(json.dumps(vars(caught.value)))


EXITS = """
import os, sys
from resilience_core.monitoring.error_capture import note_error, record_errors_in
from resilience_core.protocol.cell import Cell

record_errors_in(Cell(os.environ["FT_CELL"]))

def leave(kind, *arguments):
    try:
        raise kind(*arguments)
    except BaseException as raised:
        note_error(raised)
        raise

"""


@pytest.mark.parametrize(
    ("end", "is_caught"),
    [
        ("leave(SystemExit, 1)", False),
        ("try:\n    leave(SystemExit, 1)\nfinally:\n    print('ends')", False),
        ("try:\n    leave(SystemExit, 1)\nexcept SystemExit:\n    pass", True),
        ("try:\n    leave(ValueError)\nexcept ValueError:\n    pass\nsys.exit(1)", True),
    ],
)
def test_an_exit_that_leaves_the_program_is_not_caught_though_the_interpreter_frees_it(
    tmp_path: Path, end: str, is_caught: bool
) -> None:
    """What runs at exit may take seconds, and the rank must not be taken for one that has done its work meanwhile."""
    with contextlib.closing(Cell.create(str(tmp_path / "cell"))) as cell:
        command = [sys.executable, "-c", EXITS + end]
        subprocess.run(command, env={**os.environ, "FT_CELL": cell.path}, timeout=60, check=False)
        assert left(cell).is_caught is is_caught


class Refuses(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("no attributes")


def test_an_exception_that_refuses_attributes_is_on_record_and_not_watched(cell: Cell) -> None:
    with contextlib.suppress(Refuses):
        leave(Refuses, "a bad batch")
    assert not left(cell).is_caught
