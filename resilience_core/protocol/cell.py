"""The cell: one small file of shared memory per rank, written by the rank, read by its monitor.

:mod:`~resilience_core.protocol.cell_layout` says which number means what,
:mod:`~resilience_core.protocol.cell_view` what a reader makes of them.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import zlib
from collections.abc import Mapping
from typing import cast

from resilience_core.errors import ResilienceError
from resilience_core.protocol.cell_layout import (
    CELL_SIZE,
    CLOSED,
    ERROR_CHECK,
    FIRST_CLOSED,
    FIRST_SECTION,
    GENERATION,
    HEARTBEAT,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_GROUP,
    LEFT_SECTION,
    LIMITS_CHECK,
    LIMITS_TEXT,
    MAGIC,
    MAX_SECTIONS,
    NAME_SIZE,
    NAMES_OFFSET,
    NOT_COUNTED,
    OUT_OF_SECTION,
    PID,
    PID_NAMESPACE,
    RANK,
    RESUMED_FROM,
    SAVED,
    SMALLEST_LIMIT,
    START_TIME,
    STATE,
    UNKNOWN_AT_FIRST,
    UNUSED,
    WENT_BACK,
    TextArea,
    raw_name,
)
from resilience_core.protocol.cell_view import CellView, read_view, section_deadlines, sections_closed, stamps
from resilience_core.system.proc import is_running, own_pid_namespace

__all__ = ["Cell", "CellError"]


class CellError(ResilienceError):
    """A cell file cannot be made or used."""


class Cell:
    """A cell. ``words`` is the word view of a mapped one; ranks store into it directly on the hot path.

    ``descriptor`` is that of the file where this object was made by :meth:`create` or :meth:`from_descriptor`; -1
    for a copy, and where it was opened by path, as in a rank, whose descriptors belong to the training.
    """

    __slots__ = ("_map", "_slots", "descriptor", "path", "words")

    def __init__(self, path: str) -> None:
        """Map an existing cell; ``CellError`` where the file is missing, not ours to write, or no cell."""
        self.path = path
        self.descriptor = -1
        self._slots = itertools.count()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise CellError(f"cannot open the monitor cell {path}: {error.strerror}") from error
        try:
            if os.fstat(descriptor).st_size != CELL_SIZE:
                raise CellError(f"{path} is no monitor cell: {os.fstat(descriptor).st_size} bytes, not {CELL_SIZE}")
            self._map = mmap.mmap(descriptor, CELL_SIZE)
        finally:
            os.close(descriptor)
        self.words = memoryview(self._map).cast("q")
        if self.words[0] != MAGIC:
            raise CellError(f"{path} is no monitor cell of this version: it begins with {self.words[0]:#x}")

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Cell:
        """Make a cell of an open descriptor, which this object owns from now on.

        The file is not mapped, and its contents are not checked: see :meth:`copy`.
        """
        return cls._of(b"", descriptor)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Cell:
        """Do what :meth:`copy` does, with the whole of a file that was read."""
        if len(raw) != CELL_SIZE:
            raise CellError(f"it has {len(raw)} bytes, not {CELL_SIZE}")
        if (cell := cls._of(raw)).words[0] != MAGIC:
            raise CellError(f"it begins with {cell.words[0] & 0xFFFF_FFFF_FFFF_FFFF:#x}")
        return cell

    @classmethod
    def _of(cls, memory: mmap.mmap | bytes, descriptor: int = -1, path: str = "") -> Cell:
        cell = cls.__new__(cls)
        cell.path, cell.descriptor = path, descriptor
        cell._slots = itertools.count()
        cell._map = cast(mmap.mmap, memory)  # a copy is bytes, which can do all that reading needs
        cell.words = memoryview(memory).cast("q")
        return cell

    @classmethod
    def create(cls, path: str, *, rank: int = 0, generation: int = 0) -> Cell:
        """Make a cell file, readable and writable by its owner only.

        The memory is reserved here, so that a full tmpfs is an error now and not a SIGBUS in the training.

        Raises:
            CellError: The folder cannot be written, or is full.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, CELL_SIZE)
                known = dict.fromkeys(UNKNOWN_AT_FIRST, -1) | {RANK: rank, GENERATION: generation}
                for word, value in (known | {0: MAGIC}).items():
                    os.pwrite(descriptor, _raw(value), word * 8)
                return cls._of(mmap.mmap(descriptor, CELL_SIZE), descriptor, path)
            except (OSError, ValueError):
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        except (OSError, ValueError) as error:  # ValueError: somebody has shortened it meanwhile
            raise CellError(
                f"cannot make the monitor cell {path}: {getattr(error, 'strerror', error)}; "
                "name another folder in memory with --ft-run-dir"
            ) from error

    @classmethod
    def detached(cls) -> Cell:
        """Return a cell in private memory that no monitor looks at."""
        cell = cls._of(mmap.mmap(-1, CELL_SIZE))
        for word in UNKNOWN_AT_FIRST:
            cell.words[word] = -1
        return cell

    def claim(self, pid: int, start_time: int) -> None:
        """Make ``pid`` the owner, and reset the cell: what an earlier owner has left open is dropped.

        Raises:
            CellError: Another live process owns it.
        """
        words = self.words
        owner, namespace = words[PID], own_pid_namespace()
        # A number of another PID namespace says nothing about processes here.
        is_comparable = words[PID_NAMESPACE] in (0, namespace)
        if owner not in (0, pid) and is_comparable and is_running(owner, words[START_TIME]):
            raise CellError(
                f"pid {owner} is monitored through {self.path} already; one process per rank may call "
                "init_workload_monitoring()"
            )
        # The monitor ignores a cell that is not WATCHED, so the rest may be cleared in any order.
        words[STATE] = UNUSED
        words[SMALLEST_LIMIT] = words[LIMITS_CHECK] = words[ERROR_CHECK] = words[LEFT_GROUP] = 0
        words[HEARTBEAT] = words[OUT_OF_SECTION] = CLOSED
        for word in range(FIRST_SECTION, FIRST_SECTION + 2 * MAX_SECTIONS):
            words[word] = CLOSED
        for word in range(FIRST_CLOSED, NOT_COUNTED + 1):
            words[word] = 0
        self._slots = itertools.count()
        words[PID_NAMESPACE] = namespace
        words[PID] = pid
        words[START_TIME] = start_time

    def add_section(self, name: str) -> int:
        """Give a section a slot. Safe to call from several threads at once.

        Returns:
            The index of its deadline word; its opened-at word follows.

        Raises:
            CellError: All slots are taken.
        """
        slot = next(self._slots)  # atomic, unlike reading and storing a count
        if slot >= MAX_SECTIONS:
            raise CellError(f"section '{name}' is one too many: a rank may use {MAX_SECTIONS} section names")
        self._write_name(slot, name)
        return FIRST_SECTION + 2 * slot

    def write_text(self, area: TextArea, text: str) -> None:
        """Store a text for people; one that is too long is cut at its end, in the middle of a character if need be."""
        raw = text.encode("utf-8", errors="replace")[: area.size]
        self.words[area.check_word] = 0
        self._map[area.offset : area.offset + len(raw)] = raw
        self.words[area.check_word] = zlib.crc32(raw) << 24 | len(raw)

    def read_text(self, area: TextArea) -> str | None:
        """Read a text; None when none was stored, or a store is under way or was never finished."""
        word = self.words[area.check_word]
        size = word & 0xFF_FFFF
        if word <= 0 or size > area.size:
            return None
        raw = self._map[area.offset : area.offset + size]
        return raw.decode("utf-8", errors="replace") if zlib.crc32(raw) == word >> 24 else None

    def view(self) -> CellView:
        """Read the cell."""
        return read_view(self.words, self._name)

    def copy(self) -> Cell:
        """Copy the file, by its descriptor, into memory of our own, which nobody can change meanwhile.

        What is in it need not make sense: see :func:`~resilience_core.protocol.cell_view.implausible`.

        Returns:
            A cell to be read.

        Raises:
            CellError: It is damaged: its size, or its first word.
        """
        try:
            return Cell.from_bytes(os.pread(self.descriptor, CELL_SIZE + 1, 0))
        except OSError as error:
            raise CellError(f"it cannot be read: {error.strerror}") from error

    def restore(self, known: CellView, names: Mapping[int, str], limits: str | None = None) -> None:
        """Repair a damaged cell: nothing is open in it, and what its owner stores next counts again.

        Args:
            known: What it said when it was last in order.
            names: The sections' names by slot.
            limits: Its LIMITS text, where there was one.

        Raises:
            OSError: There is no room for a file that was cut off.
        """
        if os.fstat(self.descriptor).st_size != CELL_SIZE:
            os.posix_fallocate(self.descriptor, 0, CELL_SIZE)
            os.ftruncate(self.descriptor, CELL_SIZE)
        whole = Cell.detached()
        words = whole.words
        for slot, name in names.items():
            whole._write_name(slot, name)
        if limits is not None:
            whole.write_text(LIMITS_TEXT, limits)
        words[SMALLEST_LIMIT], words[ITERATION] = known.smallest_limit_ns, known.iteration
        words[LAST_HEARTBEAT], words[LEFT_SECTION] = known.last_heartbeat_ns, known.left_section_ns
        words[RANK], words[PID_NAMESPACE] = known.rank, known.pid_namespace
        words[WENT_BACK], words[RESUMED_FROM], words[SAVED] = known.went_back, known.resumed_from, known.saved
        words[LEFT_GROUP] = known.left_group_ns
        words[PID], words[START_TIME] = known.pid, known.start_time
        words[0] = MAGIC
        # Its state is still UNUSED, so the monitor ignores it; the true state is stored when all the rest is there.
        os.pwrite(self.descriptor, words.tobytes(), 0)
        os.pwrite(self.descriptor, _raw(known.state), STATE * 8)
        whole.close()

    def stamps(self) -> dict[str, int | None]:
        """Return when the rank reached its first line, its monitor and its first sign of life; None for unknown."""
        return stamps(self.words)

    def sections_closed(self) -> dict[str, int]:
        """Return how often each section was closed, by name; of a cell that was put in order, since then."""
        return sections_closed(self.words, self._name)

    def section_deadlines(self) -> list[int]:
        """Return the deadline word of every section slot, in order of first use; ``CLOSED`` where none is open."""
        return section_deadlines(self.words)

    def close(self) -> None:
        """Unmap. Words that were handed out become unusable."""
        self.words.release()
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _write_name(self, slot: int, name: str) -> None:
        start = NAMES_OFFSET + slot * NAME_SIZE
        self._map[start : start + NAME_SIZE] = raw_name(name).ljust(NAME_SIZE, b"\0")

    def _name(self, slot: int) -> str:
        # Not remembered: a new owner gives the slots other names, and only open sections are asked for.
        start = NAMES_OFFSET + slot * NAME_SIZE
        return self._map[start : start + NAME_SIZE].rstrip(b"\0").decode("utf-8", errors="replace")


def _raw(word: int) -> bytes:
    return word.to_bytes(8, sys.byteorder, signed=True)
