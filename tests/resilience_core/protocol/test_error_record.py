"""What a rank leaves of an exception: in its own cell, first seen counts, and nothing of it ever reaches training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience_core.errors import ConfigError, SectionError, StopTraining
from resilience_core.monitoring.error_capture import (
    keeping_on_record,
    leave_error,
    note_error,
    record_errors_in,
    stop_recording,
)
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import CLOSED, ERROR_TEXT, FIRST_SECTION, ITERATION, LAST_HEARTBEAT, NO_LIMIT
from resilience_core.protocol.error_record import (
    VERSION,
    ErrorRecord,
    as_text,
    error_from_json,
    is_consequence,
    parse_error,
)
from resilience_core.protocol.figures import DONE, private_figures


@pytest.fixture
def cell(recording_cell: Cell) -> Cell:
    return recording_cell


def left(cell: Cell) -> ErrorRecord | None:
    return parse_error(cell.read_text(ERROR_TEXT))


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(("done", "is_done"), [(-1, None), (6, False), (7, True)])
def test_whether_the_last_step_had_ended_is_on_record(cell: Cell, done: int, is_done: bool | None) -> None:
    """When the exception was first seen: leaving the step by it counts as the step's end, too."""
    figures = private_figures()
    record_errors_in(cell, figures)
    cell.words[ITERATION], figures[DONE] = 7, done
    error = raised(KeyError("x"))
    note_error(error)
    assert (record := left(cell)) is not None
    assert (record.iteration, record.is_step_done) == (7, is_done)
    figures[DONE] = 7
    note_error(error)
    assert (record := left(cell)) is not None
    assert record.is_step_done is is_done


def test_type_message_traceback_and_place_are_on_record(cell: Cell) -> None:
    word = cell.add_section("step")
    cell.words[word + 1], cell.words[word] = 5, 10
    note_error(raised(KeyError("x")))

    record = left(cell)
    assert record is not None
    assert (record.type, record.message, record.section, record.iteration) == ("KeyError", "'x'", "step", None)
    assert "in raised" in record.traceback
    assert record.first_line() == "KeyError: 'x'"
    assert (record.is_consequence, record.is_permanent, record.thread) == (False, False, None)
    assert 0 < record.at_ns <= record.noted_ns


def test_where_it_was_first_seen_counts_also_through_another_exception(cell: Cell) -> None:
    word = cell.add_section("step")
    cell.words[word + 1], cell.words[word] = 5, 10
    first = raised(ValueError("bad batch"))
    note_error(first)
    before = left(cell)
    cell.words[FIRST_SECTION] = 0  # closed on the way out
    try:
        try:
            raise first
        except ValueError:
            raise RuntimeError("training failed")  # noqa: B904 - as careless code does
    except RuntimeError as error:
        note_error(error)

    record = left(cell)
    assert before is not None
    assert record is not None
    assert (record.type, record.section, record.at_ns) == ("RuntimeError", "step", before.at_ns)
    assert record.noted_ns > before.noted_ns


@pytest.mark.parametrize(
    ("caught", "is_victim"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9"), True),
    ],
)
def test_what_was_raised_and_caught_right_before_is_on_record(
    cell: Cell, caught: BaseException, is_victim: bool
) -> None:
    """A script may keep its exception, and end by one that says only that it has failed."""
    note_error(raised(caught))
    summary = RuntimeError("training did not finish: see the log")
    for _ in range(2):  # it leaves the script, and was noted before that
        note_error(raised(summary))
        assert (record := left(cell)) is not None
        assert record.earlier == f"RuntimeError: {caught}"
        assert record.is_consequence is is_victim
        assert record.first_line() == f"RuntimeError: training did not finish: see the log (after {record.earlier})"
    note_error(raised(ValueError("in a clean-up")))
    assert (record := left(cell)) is not None
    assert (record.type, record.earlier, record.is_consequence) == ("ValueError", f"RuntimeError: {caught}", is_victim)


def go_on_in_the_handler(cell: Cell, since: str, second: BaseException) -> ErrorRecord:
    """Note an exception, do something in its handler, and note another one there."""
    word = cell.add_section("step")
    other = cell.add_section("teardown")
    cell.words[ITERATION] = 5
    cell.words[word + 1], cell.words[word] = time.monotonic_ns(), NO_LIMIT
    try:
        raise ValueError("bad batch")
    except ValueError as first:
        note_error(first)
        cell.words[word] = CLOSED
        if since == "next step":
            cell.words[ITERATION] = 6
        opened = other if since == "clean-up" else word
        cell.words[opened + 1], cell.words[opened] = time.monotonic_ns(), NO_LIMIT
        try:
            raise second
        except type(second) as error:
            note_error(error)
    record = left(cell)
    assert record is not None
    return record


@pytest.mark.parametrize("since", ["next step", "same step"])
def test_what_a_rank_raises_that_goes_on_in_a_handler_does_not_come_from_what_it_handles(
    cell: Cell, since: str
) -> None:
    """As with ``except MemoryError: train(smaller)``: all later exceptions have the first one as their context."""
    record = go_on_in_the_handler(cell, since, RuntimeError("Connection closed by peer"))
    assert (record.type, record.is_consequence) == ("RuntimeError", True)
    assert record.iteration == (6 if since == "next step" else 5)
    assert record.is_current(cell.view())
    assert record.may_be_why(cell.view(), None)


def test_what_a_clean_up_raises_in_a_section_of_its_own_comes_from_what_it_handles(cell: Cell) -> None:
    record = go_on_in_the_handler(cell, "clean-up", RuntimeError("Connection closed by peer"))
    assert (record.type, record.is_consequence) == ("RuntimeError", False)


def test_what_was_kept_and_is_raised_again_after_the_rank_has_gone_on_is_seen_anew(cell: Cell) -> None:
    cell.words[ITERATION] = 5
    kept = raised(ValueError("bad batch"))
    note_error(kept)
    before = left(cell)
    cell.words[ITERATION] = 6
    note_error(raised(kept))
    again = left(cell)
    assert before is not None
    assert again is not None
    assert (before.iteration, again.iteration) == (5, 6)
    assert again.at_ns > before.at_ns
    assert again.is_current(cell.view())


def test_the_loss_of_a_peer_tells_of_a_victim_though_it_was_caught(cell: Cell) -> None:
    for message, may_be in (("Connection closed by peer", True), ("bad batch", False)):
        caught = ErrorRecord("RuntimeError", message, is_consequence=may_be, is_caught=True)
        assert caught.may_be_why(cell.view(), None) is may_be


def test_one_that_was_caught_does_not_count_once_the_rank_has_sent_heartbeats(cell: Cell) -> None:
    """It may use nothing else. The loss of a peer still tells of a victim, also of what that raises later."""
    record = ErrorRecord("MemoryError", "", noted_ns=7, is_caught=True)
    for sent_ns, counts in ((6, True), (7, True), (8, False)):
        cell.words[LAST_HEARTBEAT] = sent_ns
        assert record.is_current(cell.view()) is counts
        assert record._replace(is_caught=False).is_current(cell.view())
        assert record._replace(is_consequence=True).is_current(cell.view())


def test_an_exit_tells_of_the_exception_in_whose_handler_it_is(cell: Cell) -> None:
    try:
        try:
            raise KeyError("x")
        except KeyError:
            sys.exit(1)
    except SystemExit as error:
        note_error(error)
    record = left(cell)
    assert record is not None
    assert record.first_line() == "SystemExit: 1 (after KeyError: 'x')"
    assert "in test_an_exit_tells_of" in record.traceback
    note_error(raised(SystemExit(2)))
    record = left(cell)
    assert record is not None
    assert record.message == "2"


def test_what_was_caught_is_no_more_told_once_the_rank_has_gone_on(cell: Cell) -> None:
    lost = RuntimeError("Connection closed by peer")
    note_error(raised(lost))
    cell.words[ITERATION] = 8
    note_error(raised(ValueError("bad batch")))
    assert (record := left(cell)) is not None
    assert (record.earlier, record.is_consequence) == (None, False)
    own, caught = ErrorRecord("ValueError", "bad batch", at_ns=100 * 10**9), ErrorRecord("KeyError", "x", at_ns=1)
    assert own.raised_after(caught._replace(noted_ns=39 * 10**9)) == own
    assert own.raised_after(caught._replace(noted_ns=41 * 10**9)).earlier == "KeyError: x"


def test_a_stop_is_not_told_as_raised_for_what_was_caught_before(cell: Cell) -> None:
    note_error(raised(RuntimeError("Connection closed by peer")))
    stop = StopTraining("enough")
    note_error(raised(stop))
    assert (record := left(cell)) is not None
    assert (record.earlier, record.is_consequence, record.is_deliberate) == (None, False, True)


def test_a_lost_peer_is_known_for_a_consequence_even_where_it_is_wrapped(cell: Cell) -> None:
    lost = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9")
    try:
        raise ValueError("the step failed") from lost
    except ValueError as error:
        note_error(error)
    record = left(cell)
    assert record is not None
    assert record.is_consequence


@pytest.mark.parametrize("kind", [OSError, SystemExit])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_what_fails_while_a_lost_peer_is_handled_comes_from_that_loss(
    cell: Cell, kind: type[BaseException], is_hidden: bool
) -> None:
    """A clean-up that fails, an own exception, ``sys.exit(1)``; and ``from None`` does not hide it."""
    for first, is_one in ((RuntimeError("Timed out waiting 1500ms for recv"), True), (ValueError("bad batch"), False)):
        try:
            try:
                raise first
            except Exception:
                if is_hidden:
                    raise kind(1) from None
                raise kind(1)  # noqa: B904 - as careless code does
        except BaseException as error:
            note_error(error)
        record = left(cell)
        assert record is not None
        assert record.is_consequence is is_one
        cell.write_text(ERROR_TEXT, "")


class Several(Exception):
    """As an ``ExceptionGroup``, which Python 3.10 has not."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("several")
        self.exceptions = exceptions


def test_a_group_of_exceptions_comes_from_a_lost_peer_where_all_of_it_does(cell: Cell) -> None:
    lost, own = RuntimeError("Connection closed by peer [127.0.0.1]:9"), ValueError("bad batch")
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = lost
    looped = Several(own)
    looped.exceptions = (lost, looped)
    own.__context__ = looped
    for group, is_one in (
        (Several(lost), True),
        (Several(lost, Several(wrapped)), True),
        (Several(lost, own), False),
        (Several(own), False),
        (Several(*[lost] * 1000), False),  # nobody reads so many
        (looped, False),
    ):
        note_error(raised(group))
        record = left(cell)
        assert record is not None
        assert record.is_consequence is is_one


@pytest.mark.parametrize(
    ("kind", "message", "is_one"),
    [
        ("RuntimeError", "Connection reset by peer", True),
        ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 1", True),
        ("RuntimeError", "Timed out waiting 1800000ms for recv operation to complete", True),
        ("RuntimeError", "shape mismatch", False),
        ("ConnectionResetError", "Connection reset by peer", False),  # of the data loader, say
        ("requests.Timeout", "timed out waiting", False),
    ],
)
def test_only_torchs_own_communication_is_a_consequence(kind: str, message: str, is_one: bool) -> None:
    assert is_consequence(kind, message) is is_one


def test_what_a_restart_cannot_mend_is_marked(cell: Cell) -> None:
    for error, is_permanent in ((ConfigError("no"), True), (SectionError("twice"), False), (ValueError("x"), False)):
        note_error(raised(error))
        record = left(cell)
        assert record is not None
        assert record.is_permanent is is_permanent


def test_an_orderly_end_is_no_error(cell: Cell) -> None:
    for error in (SystemExit(0), SystemExit(None), GeneratorExit()):
        note_error(raised(error))
    assert left(cell) is None
    note_error(raised(SystemExit(3)))
    assert left(cell) is not None


@pytest.mark.parametrize("failure", [OSError("not even this"), SystemExit(5), KeyboardInterrupt()])
def test_an_exception_without_a_message_is_on_record_all_the_same(cell: Cell, failure: BaseException) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise failure

    note_error(raised(Nasty()))
    record = left(cell)
    assert record is not None
    assert record.type.endswith("Nasty")
    assert "str() of the exception failed" in record.message
    assert "in raised" in record.traceback


@pytest.mark.parametrize("text", ["x" * 10**6, "\N{SNOWMAN}" * 10**5, "line\n" * 10**5])
def test_however_long_it_is_it_fits_and_keeps_both_ends(cell: Cell, text: str) -> None:
    scope: dict[str, Callable[[], None]] = {}
    lines = "\n".join(f"    x = {number}" for number in range(50))
    exec(f"def deep(n, text):\n{lines}\n    if n: return deep(n - 1, text)\n    raise ValueError(text)", scope)
    try:
        scope["deep"](200, text)  # type: ignore[call-arg]
    except ValueError as error:
        note_error(error)
    record = left(cell)
    assert record is not None
    assert record.type == "ValueError"
    assert record.message.startswith(text[:100])


def test_what_has_happened_since_makes_a_record_stale(cell: Cell) -> None:
    note_error(raised(ValueError("caught, and training went on")))
    record = left(cell)
    assert record is not None
    view = cell.view()
    assert record.is_current(view)
    word = cell.add_section("step")
    cell.words[word + 1], cell.words[word] = record.noted_ns + 1, record.noted_ns + 9
    assert not record.is_current(cell.view())
    assert not record.is_current(view._replace(iteration=7))


def open_section(cell: Cell, name: str) -> None:
    word = cell.add_section(name)
    cell.words[word + 1] = cell.words[word] = time.monotonic_ns()


def is_current(cell: Cell) -> bool:
    record = left(cell)
    return record is not None and record.is_current(cell.view())


def test_a_save_that_is_part_of_handling_an_exception_leaves_it_on_record(cell: Cell) -> None:
    """With all that was known of it; what the handler raises in turn is raised after it."""
    note_error(raised(KeyError("x")))
    error = raised(ValueError("caught, and a save begins"))
    note_error(error)
    before = left(cell)
    assert before is not None
    for _ in range(2):  # a framework may save the last checkpoint as well
        with keeping_on_record(error):
            open_section(cell, "checkpointing")
        assert is_current(cell)
    after = left(cell)
    assert after is not None
    assert after == before._replace(noted_ns=after.noted_ns)
    assert after.earlier == "KeyError: 'x'"


@pytest.mark.parametrize("case", ["none", "another", "an older one", "went on", "of a thread", "next step"])
def test_a_save_of_a_rank_that_has_gone_on_does_not_keep_what_it_caught_on_record(cell: Cell, case: str) -> None:
    """Also where it trains on in the handler of the exception."""
    older = raised(KeyError("x"))
    note_error(older)
    error = raised(ValueError("caught, and training went on"))
    if case == "of a thread":
        cell.write_text(ERROR_TEXT, "")
    note_error(error, thread="loader" if case == "of a thread" else None)
    if case == "went on":
        open_section(cell, "step")
    if case == "next step":
        cell.words[ITERATION] = 8
    handled = {"none": None, "another": raised(KeyError("y")), "an older one": older}.get(case, error)
    with keeping_on_record(handled):
        open_section(cell, "checkpointing")
    assert not is_current(cell)


def test_nothing_is_kept_on_record_without_a_cell_or_where_it_cannot_be(cell: Cell) -> None:
    error = raised(ValueError("x"))
    note_error(error)
    with keeping_on_record(error):
        cell.write_text(ERROR_TEXT, "")
        stop_recording()
    assert left(cell) is None
    with keeping_on_record(error):
        pass


@pytest.mark.parametrize(
    ("message", "section", "is_current"),
    [
        ("Connection closed by peer", "checkpointing", True),
        ("Connection closed by peer", "step", False),
        ("CUDA error", "checkpointing", False),
    ],
)
def test_a_rank_that_saves_after_it_has_lost_a_peer_has_not_gone_on(
    cell: Cell, message: str, section: str, is_current: bool
) -> None:
    note_error(raised(RuntimeError(message)))
    record = left(cell)
    assert record is not None
    for name in (section, "data") if not is_current else (section,):
        word = cell.add_section(name)
        cell.words[word + 1], cell.words[word] = record.noted_ns + 1, record.noted_ns + 9
        assert record.is_current(cell.view()) is is_current
    assert not record.is_current(cell.view()._replace(iteration=7))


def test_a_thread_that_dies_is_named(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    hook = threading.excepthook  # pytest has its own in front of ours

    def dies() -> None:
        try:
            raise ValueError("in the loader")
        except ValueError as error:
            note_error(error, thread=threading.current_thread().name)

    thread = threading.Thread(target=dies, name="loader")
    thread.start()
    thread.join()
    record = left(cell)
    assert record is not None
    assert (record.thread, threading.excepthook) == ("loader", hook)
    assert record.first_line() == "ValueError: in the loader (in thread 'loader')"


def test_what_a_thread_raises_does_not_hide_what_is_ending_the_training(cell: Cell) -> None:
    note_error(raised(LookupError("no such sample")))
    note_error(raised(ValueError("queue closed")), thread="loader")
    record = left(cell)
    assert record is not None
    assert (record.type, record.thread) == ("LookupError", None)
    # The training has caught it, and gone on.
    word = cell.add_section("step")
    cell.words[word + 1], cell.words[word] = record.noted_ns + 1, record.noted_ns + 9
    note_error(raised(ValueError("queue closed")), thread="loader")
    assert (later := left(cell)) is not None
    assert (later.type, later.thread) == ("ValueError", "loader")
    note_error(raised(LookupError("no such sample")))
    assert (last := left(cell)) is not None
    assert (last.type, last.thread) == ("LookupError", None)


def test_a_forked_child_records_nothing(cell: Cell) -> None:
    child = os.fork()
    if child == 0:
        note_error(raised(ValueError("of a data loader's worker")))
        os._exit(0)
    os.waitpid(child, 0)
    assert left(cell) is None


def test_after_stop_nothing_is_recorded_and_the_hooks_are_back(tmp_path: Path) -> None:
    before = sys.excepthook, threading.excepthook
    cell = Cell.create(str(tmp_path / "cell"))
    record_errors_in(cell)
    assert sys.excepthook is not before[0]
    stop_recording()
    note_error(raised(ValueError("later")))
    assert left(cell) is None
    assert (sys.excepthook, threading.excepthook) == before
    cell.close()


PROGRAM = """
import os, threading
from resilience_core.protocol.cell import Cell
from resilience_core.monitoring.error_capture import (record_errors_in)
record_errors_in(Cell(os.environ["FT_CELL"]))
def fails():
    raise LookupError("no such sample")
if {in_thread}:
    thread = threading.Thread(target=fails, name="loader")
    thread.start()
    thread.join()
else:
    fails()
"""


@pytest.mark.parametrize("in_thread", [False, True])
def test_an_uncaught_exception_records_itself_and_is_printed_as_ever(tmp_path: Path, in_thread: bool) -> None:
    cell = Cell.create(str(tmp_path / "cell"))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(in_thread=in_thread)],
        env={"FT_CELL": str(tmp_path / "cell"), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    record = left(cell)
    assert record is not None
    assert (record.type, record.thread) == ("LookupError", "loader" if in_thread else None)
    assert "LookupError: no such sample" in ended.stderr
    assert ended.returncode == (0 if in_thread else 1)
    cell.close()


def test_a_rank_that_is_not_monitored_can_leave_its_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell.create(str(tmp_path / "cell"))
    monkeypatch.setenv("FT_CELL", str(tmp_path / "cell"))
    leave_error(raised(ValueError("before init")))
    record = left(cell)
    assert record is not None
    assert record.message == "before init"
    monkeypatch.setenv("FT_CELL", str(tmp_path / "nowhere"))
    leave_error(raised(ValueError("nowhere to go")))
    cell.close()


RECORD = ErrorRecord("ValueError", "x", at_ns=7, noted_ns=8, section="step", iteration=3, is_permanent=True)


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "7", "[" * 16_000, '{"version": 1, "message": "x"}', json.dumps(RECORD._asdict())],
)
def test_what_is_no_record_is_none(text: str | None) -> None:
    assert parse_error(text) is None


@pytest.mark.parametrize("version", [VERSION + 1, 0, True, "1", None])
def test_a_record_of_another_version_is_none(version: object) -> None:
    plain = json.loads(as_text(RECORD))
    assert parse_error(json.dumps(plain)) == RECORD
    assert parse_error(json.dumps(plain | {"version": version})) is None


@pytest.mark.parametrize("field", ErrorRecord._fields)
@pytest.mark.parametrize("value", [[], 1.5, {}])
def test_a_record_with_a_value_of_the_wrong_type_is_none(field: str, value: object) -> None:
    """A monitor that compared such a time with one of its own raised."""
    assert parse_error(json.dumps(json.loads(as_text(RECORD)) | {field: value})) is None


@pytest.mark.parametrize("change", [{"at_ns": True}, {"iteration": False}, {"is_permanent": 1}, {"thread": 7}])
def test_a_truth_value_is_no_number_in_a_record(change: dict[str, object]) -> None:
    assert parse_error(json.dumps(json.loads(as_text(RECORD)) | change)) is None


def test_a_record_in_an_incident_may_be_of_a_later_version() -> None:
    """Incidents have a version of their own."""
    assert error_from_json({**json.loads(json.dumps(RECORD._asdict())), "new": 1}) == RECORD
