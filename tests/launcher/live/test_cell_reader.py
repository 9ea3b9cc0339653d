"""A cell is read as it is, whatever has become of it, and is never changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.live.cell_reader import CellReader
from launcher.live.rank_cells import RankCells
from launcher.top.rows import in_order
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import CELL_SIZE, ITERATION, MAGIC, STATE, WATCHED


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell.create(str(tmp_path / "0-0"), rank=3)
    yield cell
    cell.close()


def test_it_reads_what_the_rank_has_stored(cell: Cell) -> None:
    reader = CellReader(cell.path)
    cell.words[ITERATION] = 7

    reading = reader.look(time.monotonic_ns())

    assert reading.problem is None
    assert reading.view is not None
    assert (reading.view.rank, reading.view.iteration) == (3, 7)
    reader.close()


def test_its_descriptor_cannot_write_and_nothing_is_mapped(cell: Cell) -> None:
    reader = CellReader(cell.path)
    before, descriptors, maps = Path(cell.path).read_bytes(), _descriptors(cell.path), _mappings(cell.path)
    reader.look(time.monotonic_ns())

    (ours,) = _descriptors(cell.path) - descriptors
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(ours, b"x", 0)
    assert _mappings(cell.path) == maps == 1  # the rank's own
    assert Path(cell.path).read_bytes() == before
    reader.close()
    assert _descriptors(cell.path) == descriptors


def _descriptors(path: str) -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if _leads_to(name, path)}


def _mappings(path: str) -> int:
    return Path("/proc/self/maps").read_text().count(path)


def _leads_to(name: str, path: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}") == path
    except OSError:
        return False


def test_a_removed_cell_is_still_read_and_said_to_be_removed(cell: Cell) -> None:
    reader = CellReader(cell.path)
    reader.look(time.monotonic_ns())
    os.unlink(cell.path)
    cell.words[ITERATION] = 8

    reading = reader.look(time.monotonic_ns())

    assert reading.problem == "its cell was removed"
    assert reading.view is not None
    assert reading.view.iteration == 8
    reader.close()


def test_a_cell_that_was_removed_before_the_first_look_is_said_to_be_removed(tmp_path: Path) -> None:
    reading = CellReader(str(tmp_path / "0-0")).look(time.monotonic_ns())
    assert reading == (None, None, "its cell was removed")


def test_a_cell_in_the_place_of_a_removed_one_is_read_from_then_on(cell: Cell) -> None:
    reader = CellReader(cell.path)
    reader.look(time.monotonic_ns())
    os.unlink(cell.path)
    other = Cell.create(cell.path, rank=5)

    reading = reader.look(time.monotonic_ns())

    assert reading.problem is None
    assert reading.view is not None
    assert reading.view.rank == 5
    other.close()
    reader.close()


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("folder", "its cell cannot be read: it is no plain file"),
        ("pipe", "its cell cannot be read: it is no plain file"),
        ("link", "its cell cannot be read: Too many levels of symbolic links"),
        ("short", "its cell is damaged: it has 10 bytes, not"),
        ("long", "its cell is damaged: it has"),
        ("zeros", "its cell is damaged: it begins with 0x0"),
    ],
)
@pytest.mark.timeout(60)  # a pipe must not be waited for
def test_what_is_no_cell_is_named(tmp_path: Path, what: str, problem: str) -> None:
    path = tmp_path / "0-0"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(bytes({"short": 10, "long": CELL_SIZE + 8, "zeros": CELL_SIZE}[what]))
    reader = CellReader(str(path))

    reading = reader.look(time.monotonic_ns())

    assert reading.view is None
    assert (reading.problem or "").startswith(problem)
    reader.close()


def test_a_cell_that_makes_no_sense_is_damaged(cell: Cell) -> None:
    cell.words[STATE] = 9
    reader = CellReader(cell.path)
    assert reader.look(time.monotonic_ns()).problem == "its cell is damaged: its state is 9, its pid 0"
    reader.close()


@given(
    words=st.dictionaries(st.integers(0, CELL_SIZE // 8 - 1), st.integers(-(2**63), 2**63 - 1), max_size=40),
    state=st.sampled_from([None, WATCHED]),
    size=st.sampled_from([CELL_SIZE, CELL_SIZE, CELL_SIZE, 0, 100, CELL_SIZE + 1]),
)
def test_whatever_is_in_a_cell_is_no_exception(
    tmp_path_factory: pytest.TempPathFactory, words: dict[int, int], state: int | None, size: int
) -> None:
    """All that is shown of a rank is worked out, too."""
    from launcher.top.rows import Row
    from launcher.top.table import Table

    folder = tmp_path_factory.mktemp("run")
    (folder / "cells").mkdir()
    cell = Cell.create(str(folder / "cells" / "0-0"), rank=1)
    for word, value in words.items():
        cell.words[word] = value
    if state is not None:
        cell.words[STATE], cell.words[0] = state, MAGIC
    cell.close()
    os.truncate(folder / "cells" / "0-0", size)
    cells = RankCells(str(folder))

    for _ in range(2):
        (look,) = cells.look().ranks
        row = Row(
            *(look.rank, 0, "n", 0, look.activity, look.problem, look.iteration, look.age_seconds, look.seconds_left),
            *(look.used, look.steps_per_second, 0, 0, look.process.resident_bytes if look.process else None),
        )
        (line,) = map(Table([row], 100).line, in_order([row]))
        assert len(line) == 100
    assert (look.view is None) == (look.problem is not None)
    cells.close()


def test_whatever_bytes_are_in_a_cell_are_no_exception(tmp_path: Path) -> None:
    path = tmp_path / "0-0"
    path.write_bytes(os.urandom(CELL_SIZE))
    reader = CellReader(str(path))
    assert (reader.look(time.monotonic_ns()).problem or "").startswith("its cell is damaged: it begins with")
    reader.close()
