"""The file of figures beside a cell: its layout, and what a reader makes of a damaged one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core.protocol import figures
from resilience_core.protocol.cell_layout import MAX_SECTIONS, SHARED_SECTION
from resilience_core.protocol.figures import (
    BUCKETS,
    DONE,
    FIGURES_SIZE,
    FIRST_ITERATION,
    FIRST_STEP,
    LONGEST,
    TOOK,
    create_figures,
    note_save,
    open_figures,
    row_of,
)
from resilience_core.protocol.figures_read import RankFigures, Save, read_figures

NONE = RankFigures(None, None, None, 0, 0, (), {})


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "0-0.figures")


@pytest.fixture
def descriptor(path: str) -> int:
    return create_figures(path)


def test_a_new_file_tells_nothing_yet(path: str, descriptor: int) -> None:
    status = os.stat(path)
    assert (status.st_size, status.st_mode & 0o777) == (FIGURES_SIZE, 0o600)
    assert read_figures(descriptor) == NONE


def test_a_file_is_of_this_version_only_once_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes too early would take the iteration 0 for one that there was."""
    written: list[tuple[int, int]] = []
    path, original = str(tmp_path / "early"), os.pwrite

    def write(descriptor: int, raw: bytes, offset: int) -> int:
        assert read_figures(Path(path).read_bytes()) is None
        written.append((offset, len(raw)))
        return original(descriptor, raw, offset)

    monkeypatch.setattr(os, "pwrite", write)
    os.close(create_figures(path))
    assert written[-1] == (0, 8)
    assert all(offset >= 8 for offset, _ in written[:-1])
    complete = read_figures(Path(path).read_bytes())
    assert complete is not None
    assert complete.done is None


def test_a_file_that_is_there_is_not_made_again(path: str, descriptor: int) -> None:
    with pytest.raises(FileExistsError):
        create_figures(path)


def test_what_a_rank_stores_is_read_by_descriptor_and_from_bytes(path: str, descriptor: int) -> None:
    words = open_figures(path)
    row = row_of(words, "step")
    words[FIRST_ITERATION], words[DONE], words[FIRST_STEP] = 10, 12, 77
    for took in (1, 2, 3, 1000):
        words[TOOK + row] += took
        words[LONGEST + row] = max(words[LONGEST + row], took)
        words[BUCKETS + 64 * row + took.bit_length()] += 1

    found = read_figures(descriptor)
    assert found is not None
    assert (found.first_iteration, found.done, found.first_step_ns) == (10, 12, 77)
    step = found.sections["step"]
    assert (step.closed, step.took_ns, step.longest_ns, step.close_calls) == (4, 1006, 1000, 0)
    assert step.durations == {1: 1, 2: 2, 10: 1}
    assert read_figures(Path(path).read_bytes()) == found


def test_iteration_zero_is_one(path: str, descriptor: int) -> None:
    words = open_figures(path)
    words[FIRST_ITERATION] = words[DONE] = 0
    found = read_figures(descriptor)
    assert found is not None
    assert (found.first_iteration, found.done) == (0, 0)


def test_each_name_has_a_row_which_it_keeps(path: str, descriptor: int) -> None:
    words = open_figures(path)
    assert [row_of(words, name) for name in ("a", "b", "a", "ü", "b")] == [0, 1, 0, 2, 1]
    assert [row_of(open_figures(path), name) for name in ("ü", "c")] == [2, 3]


def test_names_beyond_the_last_row_share_one(path: str, descriptor: int) -> None:
    words = open_figures(path)
    rows = [row_of(words, f"section {number}") for number in range(MAX_SECTIONS + 3)]
    assert rows == [*range(MAX_SECTIONS), *[MAX_SECTIONS] * 3]
    words[BUCKETS + 64 * MAX_SECTIONS + 3] = 5
    found = read_figures(descriptor)
    assert found is not None
    assert found.sections[SHARED_SECTION].closed == 5
    assert len(found.sections) == MAX_SECTIONS + 1


def test_the_last_eight_saves_are_kept_and_one_that_is_reported_twice_counts_once(path: str, descriptor: int) -> None:
    words = open_figures(path)
    for number in range(11):
        note_save(words, number * 10, 1000 + number, number, number * 10 - 1)
        note_save(words, number * 10, 2000 + number, 99)
    found = read_figures(descriptor)
    assert found is not None
    assert found.saves == tuple(Save(number * 10, 1000 + number, number, number * 10 - 1) for number in range(3, 11))
    note_save(words, 999, 1, 2)
    found = read_figures(descriptor)
    assert found is not None
    assert found.saves[-1] == Save(999, 1, 2, done=None)


@pytest.mark.parametrize("size", [0, 1, FIGURES_SIZE - 1, FIGURES_SIZE + 8])
@pytest.mark.parametrize("begin", [b"", figures.MAGIC.to_bytes(8, sys.byteorder)])
def test_a_file_of_another_size_is_neither_read_nor_written(path: str, begin: bytes, size: int) -> None:
    content = begin.ljust(size, b"\0")[:size]
    Path(path).write_bytes(content)
    assert read_figures(content) is None
    words = open_figures(path)
    words[DONE] = 5
    assert Path(path).read_bytes() == content


def test_a_file_that_begins_otherwise_is_neither_read_nor_written(path: str) -> None:
    Path(path).write_bytes(bytes(FIGURES_SIZE))
    assert read_figures(bytes(FIGURES_SIZE)) is None
    open_figures(path)[DONE] = 5
    assert Path(path).read_bytes() == bytes(FIGURES_SIZE)


def test_a_rank_without_a_file_goes_on(path: str) -> None:
    words = open_figures(path)
    words[DONE] = 5
    assert not os.path.exists(path)
    assert len(words) == FIGURES_SIZE // 8


def test_a_link_is_not_followed(path: str, tmp_path: Path) -> None:
    create_figures(str(tmp_path / "other"))
    os.symlink(tmp_path / "other", path)
    open_figures(path)[DONE] = 5
    assert read_figures((tmp_path / "other").read_bytes()) == NONE


@given(st.binary(min_size=64, max_size=256), st.integers(0, FIGURES_SIZE - 256))
def test_a_damaged_file_is_read_without_an_error(noise: bytes, place: int) -> None:
    raw = bytearray(figures.private_figures().tobytes())
    raw[max(8, place) : max(8, place) + len(noise)] = noise
    assert isinstance(read_figures(bytes(raw[:FIGURES_SIZE])), RankFigures)


def test_a_descriptor_that_cannot_be_read_tells_nothing() -> None:
    assert read_figures(1 << 20) is None
