"""What the record says of a StopTraining: uncaught, withdrawn, or neither; in processes that end by it, or do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.error_record import ErrorRecord, parse_error

BEGIN = """
import atexit, gc, os, sys
from resilience_core import EventBus, StopTraining, hookimpl
from resilience_core.monitoring.error_capture import note_error, record_errors_in, stop_recording
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.error_record import parse_error

gc.disable()
cell = Cell(os.environ["FT_CELL"])
record_errors_in(cell)

def said():
    record = parse_error(cell.read_text(ERROR_TEXT))
    print(record and (record.type.rpartition(".")[2], record.is_uncaught))

def stop(*arguments, **options):
    try:
        raise StopTraining("enough", *arguments, **options)
    except BaseException as error:
        note_error(error)
        raise
"""


def run(tmp_path: Path, script: str, *options: str) -> tuple[list[str], ErrorRecord | None, int]:
    """Run a script with a cell; return what it has printed, what is on record at the end, and its exit code."""
    cell = Cell.create(str(tmp_path / "cell"))
    (tmp_path / "its_script.py").write_text(BEGIN + script)
    command = [sys.executable, *(options or (str(tmp_path / "its_script.py"),))]
    environment = {**os.environ, "FT_CELL": cell.path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    try:
        return done.stdout.splitlines(), parse_error(cell.read_text(ERROR_TEXT)), done.returncode
    finally:
        cell.close()


@pytest.mark.parametrize("options", [(), ("-m", "its_script"), ("-c", "import its_script")], ids=["file", "-m", "-c"])
@pytest.mark.parametrize("end", ["", "stop_recording()\n"], ids=["monitored", "shut down"])
def test_a_stop_that_nothing_catches_is_marked_before_what_atexit_has_is_run(
    tmp_path: Path, options: tuple[str, ...], end: str
) -> None:
    script = f"atexit.register(said)\ntry:\n    stop()\nfinally:\n    said()\n    {end}"
    printed, record, code = run(tmp_path, script, *options)
    assert printed == ["('StopTraining', False)", "('StopTraining', True)"]
    assert record is not None
    assert (record.is_deliberate, record.is_uncaught, code) == (True, True, 1)


def test_a_stop_outside_of_the_loop_is_on_record_too(tmp_path: Path) -> None:
    _, record, code = run(tmp_path, "stop_recording()\nraise StopTraining('enough', 7)")
    assert record is not None
    assert (record.message, record.is_deliberate, record.is_uncaught, code) == ("enough", True, True, 7)


@pytest.mark.parametrize("end", ["", "stop_recording()\n"], ids=["monitored", "shut down"])
@pytest.mark.parametrize("ends", ["", "sys.exit(5)", "os._exit(1)"])
def test_a_stop_that_was_caught_is_withdrawn_at_once(tmp_path: Path, end: str, ends: str) -> None:
    printed, record, _ = run(tmp_path, f"try:\n    stop()\nexcept StopTraining:\n    {end}    said()\nsaid()\n{ends}")
    assert printed == ["('StopTraining', False)", "None"]
    assert record is None


def test_a_stop_that_went_through_the_bus_is_withdrawn_at_once(tmp_path: Path) -> None:
    """No frame of ours keeps it."""
    plugin = "class P:\n    @hookimpl\n    def step_end(self): raise StopTraining('enough')\n"
    fire = "try:\n        bus.step_end(iteration=1)\n    except BaseException as error: note_error(error); raise"
    printed, _, _ = run(
        tmp_path,
        f"{plugin}bus = EventBus()\nbus.register(P())\ntry:\n    {fire}\nexcept StopTraining: said()\nsaid()",
    )
    assert printed == ["('StopTraining', False)", "None"]


@pytest.mark.parametrize("ends", ["", "sys.exit(5)", "raise kept"])
def test_one_that_was_kept_is_uncaught_only_where_it_is_raised_again(tmp_path: Path, ends: str) -> None:
    printed, record, _ = run(tmp_path, f"try:\n    stop()\nexcept StopTraining as e:\n    kept = e\nsaid()\n{ends}")
    assert printed == ["('StopTraining', False)"]
    assert record is not None
    assert record.is_uncaught == (ends == "raise kept")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions came with Python 3.11")
def test_a_stop_in_a_group_is_on_record_as_any_other_group(tmp_path: Path) -> None:
    _, record, code = run(tmp_path, "raise ExceptionGroup('all', [StopTraining('enough', 3)])")
    assert record is not None
    assert (record.type, record.is_deliberate, code) == ("ExceptionGroup", False, 1)


def test_a_subclass_that_does_not_call_our_init_stops_the_training_too(tmp_path: Path) -> None:
    subclass = "class Enough(StopTraining):\n    def __init__(self, who): self.who = who\n"
    _, record, code = run(tmp_path, f"{subclass}raise Enough('rank 3')")
    assert record is not None
    assert (record.message, record.is_deliberate, record.is_uncaught, code) == ("rank 3", True, True, 1)


def test_what_replaces_a_stop_on_its_way_out_stays_on_record(tmp_path: Path) -> None:
    script = "try:\n    stop()\nexcept StopTraining:\n    note_error(ValueError('of the export'))\nsaid()"
    printed, record, _ = run(tmp_path, script)
    assert printed == ["('ValueError', False)"]
    assert record is not None
    assert not record.is_deliberate


@pytest.mark.parametrize(("arguments", "is_deliberate"), [("0", None), ("7, is_final=False", False)])
def test_a_stop_that_is_no_end_of_the_job_is_none(tmp_path: Path, arguments: str, is_deliberate: bool | None) -> None:
    _, record, _ = run(tmp_path, f"stop({arguments})")
    assert (record.is_deliberate if record is not None else None) is is_deliberate


def test_a_forked_child_that_frees_or_raises_its_copy_leaves_the_record_alone(tmp_path: Path) -> None:
    child = "    pid = os.fork()\n    if not pid:\n        raise\n    os.waitpid(pid, 0)\n    said()\n"
    printed, _, _ = run(tmp_path, f"try:\n    stop()\nexcept StopTraining:\n{child}")
    assert printed == ["('StopTraining', False)"]


def test_the_exit_code_can_be_read_and_set_by_either_name(tmp_path: Path) -> None:
    script = "e = StopTraining('enough', 3)\nassert e.code == 3\ne.code = 9\nassert e.exit_code == 9\nraise e"
    _, record, code = run(tmp_path, script)
    assert record is not None
    assert code == 9
