"""The launcher's hold on the files that its ranks write to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import worker_cells
from launcher.agent.worker_cells import Cells
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell_layout import CELL_SIZE, ITERATION
from resilience_core.protocol.figures import DONE, FIGURES_SIZE, figures_path, open_figures
from resilience_core.protocol.figures_read import read_figures

RANKS = {0: 4, 1: 5}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(str(tmp_path))
    yield folder
    folder.remove()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_ranks_have_written_can_be_copied_after_the_folder_was_emptied(folder: RunFolder) -> None:
    cells = Cells(folder, 0, RANKS)
    cells[1].words[ITERATION] = 7
    open_figures(figures_path(cells[1].path))[DONE] = 6
    for name in os.listdir(os.path.dirname(cells[1].path)):
        os.unlink(os.path.join(os.path.dirname(cells[1].path), name))
    raw = cells.raw()
    assert [tuple(map(len, raw[local_rank])) for local_rank in RANKS] == [(CELL_SIZE, FIGURES_SIZE)] * 2
    assert memoryview(raw[1][0]).cast("q")[ITERATION] == 7
    figures = read_figures(raw[1][1])
    assert figures is not None
    assert figures.done == 6
    cells.drop()


def test_nothing_is_left_of_a_generation_that_is_over(folder: RunFolder) -> None:
    before = open_descriptors()
    cells = Cells(folder, 0, RANKS)
    place = os.path.dirname(cells[0].path)
    assert len(os.listdir(place)) == 4
    cells.drop()
    assert (os.listdir(place), open_descriptors(), cells.raw()) == ([], before, {})


def test_where_there_is_no_room_for_figures_ranks_are_watched_without(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells are made before the first file of figures, so they have what room there is."""
    made: list[str] = []

    def full(path: str) -> int:
        made.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker_cells, "create_figures", full)
    cells = Cells(folder, 0, RANKS)
    assert [len(cell) for cell, _ in cells.raw().values()] == [CELL_SIZE] * 2
    assert [figures for _, figures in cells.raw().values()] == [b""] * 2
    assert len(made) == 2
    cells.drop()


def test_figures_are_made_anew_with_a_lost_cell(folder: RunFolder) -> None:
    cells = Cells(folder, 0, RANKS)
    for path in (cells[0].path, figures_path(cells[0].path)):
        os.unlink(path)
    assert cells.replace_lost() == [0]
    open_figures(figures_path(cells[0].path))[DONE] = 3
    figures = read_figures(cells.raw()[0][1])
    assert figures is not None
    assert figures.done == 3
    cells.drop()
