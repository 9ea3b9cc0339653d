"""The cells of one generation, as the launcher holds them: by descriptor, whatever becomes of the folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from launcher.processes.evidence import UNREADABLE
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import CELL_SIZE, ERROR_TEXT
from resilience_core.protocol.cell_view import CellView, implausible
from resilience_core.protocol.error_record import ErrorRecord, parse_error
from resilience_core.protocol.figures import FIGURES_SIZE, create_figures, figures_path
from resilience_core.protocol.stack_question import STACK

__all__ = ["Cells"]

_UNREADABLE = CellView(
    pid=0, start_time=0, state=UNREADABLE, smallest_limit_ns=0, iteration=-1, heartbeat_ns=0, out_of_section_ns=0,
    last_heartbeat_ns=0, left_section_ns=0, rank=0, sections=(),
)  # fmt: skip


class Cells:
    """One cell per local rank.

    Args:
        folder: Where they are made.
        generation: Part of their names, so that none is ever used twice.
        ranks: Local rank to global rank.

    Raises:
        CellError: The folder cannot be written, or is full; none is left behind.
    """

    def __init__(self, folder: RunFolder, generation: int, ranks: Mapping[int, int]) -> None:
        self._folder = folder
        self._generation = generation
        self._ranks = ranks
        self._cells: dict[int, Cell] = {}
        self._figures: dict[int, int] = {}
        """Open files of figures; a rank may be without."""
        try:
            for local_rank in ranks:
                self._cells[local_rank] = self._create(local_rank)
        except CellError:
            self.drop()
            raise
        for local_rank in ranks:  # after all cells: where there is too little room, these have it
            self._make_figures(local_rank)

    def __getitem__(self, local_rank: int) -> Cell:
        return self._cells[local_rank]

    def __len__(self) -> int:
        return len(self._cells)

    def view(self, local_rank: int) -> CellView:
        """Return what a rank says; nothing where its cell is damaged, which is for the monitor to mend."""
        try:
            view = self._cells[local_rank].copy().view()
        except CellError:
            return _UNREADABLE
        return _UNREADABLE if implausible(view, time.monotonic_ns()) else view

    def views(self) -> dict[int, CellView]:
        """Return what every local rank says."""
        return {local_rank: self.view(local_rank) for local_rank in self._cells}

    def errors(self) -> dict[int, ErrorRecord]:
        """Return the exceptions that local ranks have put on record."""
        errors = {}
        for local_rank, cell in self._cells.items():
            with contextlib.suppress(CellError):
                error = parse_error(cell.copy().read_text(ERROR_TEXT))
                if error is not None:
                    errors[local_rank] = error
        return errors

    def asked_ns(self) -> dict[int, int]:
        """Return when each rank last wrote its stack because a signal had asked for it; others are missing."""
        asked = {}
        offset_ns = time.time_ns() - time.monotonic_ns()
        for local_rank, cell in self._cells.items():
            with contextlib.suppress(OSError):
                if (status := os.stat(cell.path + STACK)).st_size:
                    asked[local_rank] = status.st_mtime_ns - offset_ns
        return asked

    def stamps(self) -> dict[int, dict[str, int | None]]:
        """Return when each rank reached its first line, its monitor and its first sign of life."""
        stamps = {}
        for local_rank, cell in self._cells.items():
            with contextlib.suppress(CellError):
                stamps[local_rank] = cell.copy().stamps()
        return {local_rank: stamps.get(local_rank, dict.fromkeys(_STAMPS)) for local_rank in self._cells}

    def raw(self) -> dict[int, tuple[bytes, bytes]]:
        """Return what is in each rank's cell and in its file of figures; empty where it cannot be read."""
        found = {}
        for local_rank, cell in self._cells.items():
            figures = self._figures.get(local_rank, -1)
            found[local_rank] = (_read(cell.descriptor, CELL_SIZE), _read(figures, FIGURES_SIZE))
        return found

    def replace_lost(self) -> list[int]:
        """Make those anew that somebody has removed before their rank has opened them.

        A rank that has, goes on with the old one, and so does whoever watches it.

        Returns:
            The local ranks that have another cell now, for the monitor to be told.

        Raises:
            CellError: The folder cannot be written, or is full.
        """
        replaced = []
        for local_rank, cell in self._cells.items():
            if os.path.exists(cell.path) or self.view(local_rank).pid:
                continue
            new = self._create(local_rank)
            if self.view(local_rank).pid:  # in this very moment
                new.close()
                continue
            self._cells[local_rank] = new
            cell.close()
            self._make_figures(local_rank)
            replaced.append(local_rank)
        return replaced

    def drop(self) -> None:
        """Close and remove them; a second call does nothing."""
        for cell in self._cells.values():
            cell.close()
        for descriptor in self._figures.values():
            os.close(descriptor)
        self._cells, self._figures = {}, {}
        self._folder.remove_cells(self._generation)

    def _create(self, local_rank: int) -> Cell:
        path = self._folder.cell(self._generation, local_rank)
        return Cell.create(path, rank=self._ranks[local_rank], generation=self._generation)

    def _make_figures(self, local_rank: int) -> None:
        path = figures_path(self._cells[local_rank].path)
        if local_rank in self._figures and os.path.exists(path):
            return
        with contextlib.suppress(OSError):  # without it the rank is as well protected, and less is known of it later
            descriptor = create_figures(path)
            if (former := self._figures.pop(local_rank, None)) is not None:
                os.close(former)
            self._figures[local_rank] = descriptor


def _read(descriptor: int, size: int) -> bytes:
    if descriptor < 0:
        return b""
    try:
        return os.pread(descriptor, size, 0)
    except OSError:
        return b""


_STAMPS = tuple(Cell.detached().stamps())
