"""Read one rank's cell without disturbing it: opened for reading only, and never mapped."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import NamedTuple

from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_view import CellView, implausible
from resilience_core.protocol.figures import figures_path
from resilience_core.protocol.figures_read import RankFigures, Steps, read_figures, read_steps

__all__ = ["CellReader", "Reading"]


class Reading(NamedTuple):
    """What a look at a cell has found: its contents, or why there are none."""

    cell: Cell | None
    """A copy that nobody else can change, for texts and counts; None where it could not be read."""
    view: CellView | None
    """What it says; None where it could not be read, or makes no sense."""
    problem: str | None
    """Why ``view`` is None, or that the file was removed while its rank goes on with it."""


class CellReader:
    """Reads one cell, again and again, by a descriptor that cannot write.

    A rank goes on with a cell that somebody has removed, and so does this reader, until there is another one in its
    place. A reader that was opened too late finds none.

    Args:
        path: Where the cell lies.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._cell: Cell | None = None
        self._figures = -1

    def look(self, now_ns: int) -> Reading:
        """Read the cell; never raises, and leaves it as it is.

        Args:
            now_ns: ``CLOCK_MONOTONIC``, by which what makes no sense is told.
        """
        problem = self._open()
        if self._cell is None:
            return Reading(None, None, problem)
        for is_last in (False, True):  # a rank may store while it is read, so damage is believed when found twice
            try:
                copy = self._cell.copy()
            except CellError as error:
                found = f"its cell is damaged: {error}"
            else:
                view = copy.view()
                wrong = implausible(view, now_ns)
                if wrong is None:
                    return Reading(copy, view, problem)
                found = f"its cell is damaged: {wrong}"
            if is_last:
                break
        return Reading(None, None, found)

    def steps(self) -> Steps | None:
        """Return what the figures beside the cell say of steps; None where they say nothing."""
        with contextlib.suppress(OSError):
            self._open_figures()
        return None if self._figures < 0 else read_steps(self._figures)

    def figures(self) -> RankFigures | None:
        """Return the figures beside the cell; None where there are none.

        Raises:
            ValueError: What lies there cannot be read.
        """
        try:
            self._open_figures()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{figures_path(self.path)}: {error.strerror}") from error
        if (figures := read_figures(self._figures)) is None:
            raise ValueError(f"{figures_path(self.path)} is damaged")
        return figures

    def close(self) -> None:
        """Close the descriptors; a later look opens the files anew."""
        if self._figures >= 0:
            os.close(self._figures)
            self._figures = -1
        if self._cell is not None:
            self._cell.close()
            self._cell = None

    def _open_figures(self) -> None:
        if self._figures < 0:
            self._figures = _open_plain(figures_path(self.path))

    def _open(self) -> str | None:
        """Open the file, or the one that has taken its place.

        Returns:
            What is wrong with it; None when nothing is.
        """
        if self._cell is not None and os.fstat(self._cell.descriptor).st_nlink:
            return None
        try:
            descriptor = _open_plain(self.path)
        except FileNotFoundError:
            return "its cell was removed"
        except OSError as error:
            return f"its cell cannot be read: {error.strerror}"
        self.close()
        self._cell = Cell.from_descriptor(descriptor)
        return None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def _open_plain(path: str) -> int:
    """Open a plain file for reading.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    # Not blocking: whatever somebody has put there must not keep the reader waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", path)
    return descriptor
