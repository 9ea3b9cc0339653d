"""The cell: what one process stores, another reads; whole words, one owner, no room for surprises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import (
    CELL_SIZE,
    CLOSED,
    ERROR_TEXT,
    FIRST_CLOSED,
    HEARTBEAT,
    ITERATION,
    LEFT_GROUP,
    LIMITS_TEXT,
    MAX_SECTIONS,
    NO_LIMIT,
    OUT_OF_SECTION,
    RESUMED_FROM,
    SAVED,
    SHUT_DOWN,
    STATE,
    UNUSED,
    WATCHED,
    WENT_BACK,
    TextArea,
)
from resilience_core.system.proc import process_start_time


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell.create(str(tmp_path / "cell"), rank=7, generation=2)
    yield cell
    cell.close()


def own_start_time() -> int:
    started = process_start_time(os.getpid())
    assert started is not None
    return started


def test_a_new_cell_says_nothing_but_whose_it_is(cell: Cell) -> None:
    view = cell.view()

    assert (view.rank, view.pid, view.state, view.iteration, view.sections) == (7, 0, UNUSED, -1, ())
    assert (view.heartbeat_ns, view.out_of_section_ns) == (CLOSED, CLOSED)


def test_only_its_owner_may_read_and_write_the_file(cell: Cell) -> None:
    assert os.stat(cell.path).st_mode & 0o777 == 0o600
    assert os.stat(cell.path).st_size == CELL_SIZE


def test_what_one_mapping_stores_another_sees(cell: Cell) -> None:
    monitor = Cell(cell.path)
    word = cell.add_section("step")
    cell.words[word], cell.words[word + 1] = 1234, 1000

    ((name, slot, deadline, opened),) = monitor.view().sections

    assert (name, slot, deadline, opened) == ("step", 0, 1234, 1000)
    cell.words[word] = CLOSED
    assert monitor.view().sections == ()
    monitor.close()


def test_a_second_file_of_that_name_is_refused(cell: Cell) -> None:
    with pytest.raises(CellError, match="File exists"):
        Cell.create(cell.path)


def test_a_missing_folder_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(CellError, match=r"No such file or directory.*--ft-run-dir"):
        Cell.create(str(tmp_path / "none" / "cell"))


def test_a_file_that_is_no_cell_is_refused(tmp_path: Path) -> None:
    for content, why in ((b"", "0 bytes"), (b"\1" * CELL_SIZE, "of this version")):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(CellError, match=why):
            Cell(str(path))


def test_a_link_is_not_followed(tmp_path: Path, cell: Cell) -> None:
    (tmp_path / "link").symlink_to(cell.path)

    with pytest.raises(CellError, match="symbolic links"):
        Cell(str(tmp_path / "link"))


def test_sections_beyond_the_last_slot_are_refused_by_name(cell: Cell) -> None:
    words = [cell.add_section(f"s{number}") for number in range(MAX_SECTIONS)]

    assert len(set(words)) == MAX_SECTIONS
    with pytest.raises(CellError, match="'one more'"):
        cell.add_section("one more")


@pytest.mark.parametrize("name", ["x" * 200, "ü" * 40, "验证" * 30])
def test_a_name_too_long_for_its_slot_is_cut_and_does_no_harm(cell: Cell, name: str) -> None:
    first, second = cell.add_section(name), cell.add_section("next")
    cell.words[first] = cell.words[second] = NO_LIMIT

    cut, following = cell.view().sections

    assert name.startswith(cut.name.rstrip("\ufffd"))
    assert following.name == "next"


def test_another_live_process_cannot_take_it_over(cell: Cell) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        cell.claim(other.pid, process_start_time(other.pid) or 0)
        with pytest.raises(CellError, match=f"pid {other.pid} is monitored"):
            cell.claim(os.getpid(), own_start_time())
        other.kill()

    cell.claim(os.getpid(), own_start_time())
    assert cell.view().pid == os.getpid()


def test_an_owner_that_has_ended_owns_nothing_though_nobody_has_waited_for_it_yet(cell: Cell) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        cell.claim(other.pid, process_start_time(other.pid) or 0)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert process_start_time(other.pid) is not None  # a zombie

        cell.claim(os.getpid(), own_start_time())

    assert cell.view().pid == os.getpid()


@pytest.mark.parametrize("words", [(), ("lone",)])
def test_a_copy_is_what_the_file_says_and_no_store_reaches_it(cell: Cell, words: tuple[str, ...]) -> None:
    for name in words:
        cell.words[cell.add_section(name)] = 7
    cell.write_text(ERROR_TEXT, "an error")
    copy = cell.copy()
    assert copy.view() == cell.view()
    assert (copy.stamps(), copy.read_text(ERROR_TEXT)) == (cell.stamps(), "an error")
    cell.words[ITERATION] = 12
    assert copy.view().iteration == -1


@pytest.mark.parametrize("size", [0, 8, CELL_SIZE - 1, CELL_SIZE + 1])
def test_a_file_of_another_size_is_no_copy_and_ends_nobody(cell: Cell, size: int) -> None:
    os.truncate(cell.path, size)
    with pytest.raises(CellError, match=f"it has {size} bytes, not {CELL_SIZE}"):
        cell.copy()


def test_a_reused_pid_is_told_apart_by_its_start_time(cell: Cell) -> None:
    """The owner is dead and its number belongs to somebody else: the cell is free."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        cell.claim(other.pid, (process_start_time(other.pid) or 0) - 1)

        cell.claim(os.getpid(), own_start_time())
        other.kill()

    assert cell.view().pid == os.getpid()


def test_a_new_owner_begins_anew(cell: Cell) -> None:
    """What a dead process left open must not be held against its successor, and slots must not run out."""
    for life in range(MAX_SECTIONS + 1):
        cell.claim(os.getpid(), own_start_time())
        assert cell.view().sections == ()
        words = [cell.add_section(name) for name in (f"a{life}", f"b{life}")]
        cell.words[words[0]] = cell.words[words[1]] = 5
        cell.words[HEARTBEAT] = cell.words[OUT_OF_SECTION] = 5
        assert cell.sections_closed() == {f"a{life}": 0, f"b{life}": 0}
        cell.words[FIRST_CLOSED] = cell.words[FIRST_CLOSED + 1] = 3
        cell.words[ITERATION] = 9
        cell.words[STATE] = WATCHED if life % 2 else SHUT_DOWN
        assert [section.name for section in cell.view().sections] == [f"a{life}", f"b{life}"]

    cell.claim(os.getpid(), own_start_time())
    view = cell.view()
    assert (view.state, view.heartbeat_ns, view.out_of_section_ns, view.iteration) == (UNUSED, CLOSED, CLOSED, 9)


def test_what_tells_of_progress_holds_for_the_generation_whoever_owns_the_cell_in_it(cell: Cell) -> None:
    """A run after another one may count on, or from 0 again: its first iteration tells."""
    words = cell.words
    cell.claim(os.getpid(), own_start_time())
    words[RESUMED_FROM], words[SAVED] = 40, 50
    words[LEFT_GROUP] = 60
    cell.claim(os.getpid(), own_start_time())
    words[ITERATION], words[WENT_BACK] = 9, 2
    for _ in range(3):
        cell.claim(os.getpid(), own_start_time())
        view = cell.view()
        assert (view.iteration, view.went_back, view.resumed_from, view.saved) == (9, 2, 40, 50)
        assert view.left_group_ns == 0


def test_a_cell_that_was_put_in_order_says_how_far_its_rank_came(cell: Cell) -> None:
    held = Cell.from_descriptor(os.open(cell.path, os.O_RDWR))
    cell.claim(os.getpid(), own_start_time())
    cell.words[ITERATION], cell.words[WENT_BACK], cell.words[RESUMED_FROM], cell.words[SAVED] = 7, 2, 40, 50
    cell.words[LEFT_GROUP] = 60
    known = held.copy().view()
    os.pwrite(held.descriptor, b"\x55" * CELL_SIZE, 0)

    held.restore(known, {})
    view = cell.view()
    assert (view.iteration, view.went_back, view.resumed_from, view.saved) == (7, 2, 40, 50)
    assert view.left_group_ns == 60
    held.close()


def test_a_detached_cell_is_nobodys(cell: Cell) -> None:
    detached = Cell.detached()
    detached.words[detached.add_section("step")] = 5

    assert [section.name for section in detached.view().sections] == ["step"]
    assert cell.view().sections == ()
    detached.close()


HAMMER = """
import sys
from resilience_core.protocol.cell import Cell
cell = Cell(sys.argv[1])
words, low, high = cell.words, 0x0101010101010101, 0x7E7E7E7E7E7E7E7E
word = cell.add_section("step")
words[word] = low
print("ready", flush=True)
while True:
    words[word] = high
    words[word] = low
"""


def test_a_word_is_never_seen_torn(cell: Cell) -> None:
    """Another process hammers one deadline; a reader sees the one value or the other, nothing in between."""
    with subprocess.Popen([sys.executable, "-c", HAMMER, cell.path], stdout=subprocess.PIPE) as hammer:
        assert hammer.stdout is not None
        hammer.stdout.readline()
        seen = set()
        looks = 0
        end = time.monotonic() + 1.0
        while time.monotonic() < end or len(seen) < 2:
            seen.add(cell.section_deadlines()[0])
            seen.add(cell.copy().section_deadlines()[0])
            looks += 1
        hammer.send_signal(signal.SIGKILL)

    assert seen == {0x0101010101010101, 0x7E7E7E7E7E7E7E7E}
    assert looks > 1000


def test_threads_that_add_sections_at_once_get_slots_of_their_own(cell: Cell) -> None:
    names = [f"s{number}" for number in range(MAX_SECTIONS)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            words = list(threads.map(cell.add_section, names))
    finally:
        sys.setswitchinterval(switch)
    for word in words:
        cell.words[word] = 5

    assert len(set(words)) == MAX_SECTIONS
    assert {section.name for section in cell.view().sections} == set(names)


@pytest.mark.parametrize("area", [LIMITS_TEXT, ERROR_TEXT])
def test_a_text_is_read_as_it_was_written(cell: Cell, area: TextArea) -> None:
    assert cell.read_text(area) is None

    for text in ("ValueError: bad batch\n  in train.py", "kürzer"):
        cell.write_text(area, text)
        assert Cell(cell.path).read_text(area) == text

    cell.write_text(area, "ü" * area.size)
    assert Cell(cell.path).read_text(area) == "ü" * (area.size // 2)
    cell.claim(os.getpid(), own_start_time())
    assert cell.read_text(area) is None


def test_a_text_that_was_not_finished_is_not_read(cell: Cell) -> None:
    cell.write_text(ERROR_TEXT, "first")
    word = cell.words[ERROR_TEXT.check_word]
    cell.write_text(ERROR_TEXT, "other")
    cell.words[ERROR_TEXT.check_word] = word

    assert cell.read_text(ERROR_TEXT) is None
    assert cell.read_text(LIMITS_TEXT) is None


def test_the_start_time_of_nobody_is_none() -> None:
    assert process_start_time(2**22 + 1) is None
    assert own_start_time() > 0
