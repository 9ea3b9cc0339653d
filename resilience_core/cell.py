"""The cell: one small file of shared memory per rank, written by the rank, read by its monitor.

Layout, native byte order, every number one aligned signed 64-bit word::

    word   0  MAGIC, written last when the file is made
           1  pid of the owner (0: nobody has initialised monitoring yet)
           2  the owner's start time in clock ticks since boot, so that a reused pid is told apart
           3  state: UNUSED, WATCHED or SHUT_DOWN
           4  smallest limit in force, ns (0: none); tells the monitor how often it must look
           5  iteration, -1 when unknown                                   (story)
           6  heartbeat: the deadline
           7  out of section: the deadline, heeded only while no section is open
           8  when the last heartbeat was sent, or monitoring began        (story)
           9  when the last section was left, or monitoring began          (story)
          10  number of section slots that have a name
          11  global rank                                                  (story)
          12  generation                                                   (story)
          13  when a warm worker reached the script's first line              (story)
          14  when monitoring was initialised                                (story)
          15  when the first heartbeat was sent or the first section opened  (story)
      16 + 2*slot   section: the deadline
      17 + 2*slot   section: when it was opened                            (story)
    byte NAMES_OFFSET + NAME_SIZE*slot   section's name, UTF-8, padded with zeros

A deadline is an absolute ``CLOCK_MONOTONIC`` instant in nanoseconds; ``CLOSED`` (0) when it is not running,
``NO_LIMIT`` (the largest word) when it is open without limit.

Why words and not a struct: ``struct.pack_into`` on a shared mapping is not atomic, one aligned 8-byte store
through ``memoryview.cast("q")`` is. Every decision therefore rests on one word that says it all; the words
marked *story* are only ever shown to people. On aarch64 the order between two stores is not kept, so the
reader looks twice before it believes (see ``launcher.monitor``).

Why a file on tmpfs and not a memfd or a message: a path survives wrappers that close descriptors, the rank
pays no system call, and nothing the monitor does (stop, die, be replaced) can reach the training process.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from resilience_core.errors import ResilienceError

__all__ = [
    "CELL_SIZE",
    "CLOSED",
    "MAX_SECTIONS",
    "NO_LIMIT",
    "SHUT_DOWN",
    "STACK_SIGNAL",
    "UNUSED",
    "WATCHED",
    "Cell",
    "CellError",
    "CellView",
    "OpenSection",
    "process_start_time",
]

MAGIC = 0x3130_4C4C_4543_5446  # "FTCELL01" read as a little-endian word
CLOSED = 0
NO_LIMIT = 2**63 - 1

UNUSED, WATCHED, SHUT_DOWN = 0, 1, 2

PID, START_TIME, STATE, SMALLEST_LIMIT, ITERATION = 1, 2, 3, 4, 5
HEARTBEAT, OUT_OF_SECTION, LAST_HEARTBEAT, LEFT_SECTION, SECTION_COUNT = 6, 7, 8, 9, 10
RANK, GENERATION = 11, 12
FIRST_LINE, INITIALISED, FIRST_SIGN = 13, 14, 15
FIRST_SECTION = 16

MAX_SECTIONS = 64
NAME_SIZE = 48

STACK_SIGNAL = 62
"""The real-time signal (SIGRTMAX - 2) that makes a rank's faulthandler write its stacks beside the cell."""
NAMES_OFFSET = (FIRST_SECTION + 2 * MAX_SECTIONS) * 8
CELL_SIZE = NAMES_OFFSET + MAX_SECTIONS * NAME_SIZE


class CellError(ResilienceError):
    """A cell file cannot be made or used."""


class OpenSection(NamedTuple):
    """One section that is open."""

    name: str
    slot: int
    deadline_ns: int
    opened_ns: int


class CellView(NamedTuple):
    """What a cell said at one moment. Times are ``CLOCK_MONOTONIC`` nanoseconds."""

    pid: int
    start_time: int
    state: int
    smallest_limit_ns: int
    iteration: int
    heartbeat_ns: int
    out_of_section_ns: int
    last_heartbeat_ns: int
    left_section_ns: int
    rank: int
    sections: tuple[OpenSection, ...]


class Cell:
    """A mapped cell file. ``words`` is the word view; ranks store into it directly on the hot path."""

    __slots__ = ("_map", "path", "words")

    def __init__(self, path: str) -> None:
        """Map an existing cell.

        Raises:
            CellError: The file is missing, not ours to write, or no cell.
        """
        self.path = path
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
                with mmap.mmap(descriptor, CELL_SIZE) as memory, memoryview(memory).cast("q") as words:
                    words[ITERATION] = -1
                    words[RANK] = rank
                    words[GENERATION] = generation
                    words[0] = MAGIC
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CellError(
                f"cannot make the monitor cell {path}: {error.strerror}; "
                "name another folder in memory with --ft-run-dir"
            ) from error
        return cls(path)

    @classmethod
    def detached(cls) -> Cell:
        """A cell in private memory that no monitor looks at."""
        cell = cls.__new__(cls)
        cell.path = ""
        cell._map = mmap.mmap(-1, CELL_SIZE)
        cell.words = memoryview(cell._map).cast("q")
        return cell

    def claim(self, pid: int, start_time: int) -> None:
        """Make ``pid`` the owner, and begin anew: what an earlier owner has left open is forgotten.

        Raises:
            CellError: Another live process owns it.
        """
        words = self.words
        owner = words[PID]
        if owner not in (0, pid) and process_start_time(owner) == words[START_TIME]:
            raise CellError(
                f"pid {owner} is monitored through {self.path} already; one process per rank may call "
                "init_workload_monitoring()"
            )
        # While it is not WATCHED nothing in the cell is heeded, so the rest may be cleared in any order.
        words[STATE] = UNUSED
        words[SECTION_COUNT] = words[SMALLEST_LIMIT] = 0
        words[HEARTBEAT] = words[OUT_OF_SECTION] = CLOSED
        words[ITERATION] = -1
        for word in range(FIRST_SECTION, FIRST_SECTION + 2 * MAX_SECTIONS):
            words[word] = CLOSED
        words[PID] = pid
        words[START_TIME] = start_time

    def add_section(self, name: str) -> int:
        """Give a section a slot.

        Returns:
            The index of its deadline word; its opened-at word follows.

        Raises:
            CellError: All slots are taken.
        """
        slot = self.words[SECTION_COUNT]
        if slot >= MAX_SECTIONS:
            raise CellError(f"section '{name}' is one too many: a rank may use {MAX_SECTIONS} section names")
        raw = name.encode("utf-8")[: NAME_SIZE - 1]
        start = NAMES_OFFSET + slot * NAME_SIZE
        self._map[start : start + NAME_SIZE] = raw.ljust(NAME_SIZE, b"\0")
        self.words[SECTION_COUNT] = slot + 1
        return FIRST_SECTION + 2 * slot

    def view(self) -> CellView:
        """Read the cell."""
        words = self.words
        sections = tuple(
            OpenSection(self._name(slot), slot, deadline, words[FIRST_SECTION + 2 * slot + 1])
            for slot, deadline in enumerate(self.section_deadlines())
            if deadline != CLOSED
        )
        return CellView(
            pid=words[PID],
            start_time=words[START_TIME],
            state=words[STATE],
            smallest_limit_ns=words[SMALLEST_LIMIT],
            iteration=words[ITERATION],
            heartbeat_ns=words[HEARTBEAT],
            out_of_section_ns=words[OUT_OF_SECTION],
            last_heartbeat_ns=words[LAST_HEARTBEAT],
            left_section_ns=words[LEFT_SECTION],
            rank=words[RANK],
            sections=sections,
        )

    def stamps(self) -> dict[str, int | None]:
        """When the rank reached its first line, its monitor and its first sign of life; None for what is unknown."""
        words = self.words
        names = {"first_line_ns": FIRST_LINE, "initialised_ns": INITIALISED, "first_sign_ns": FIRST_SIGN}
        return {name: words[index] or None for name, index in names.items()}

    def section_deadlines(self) -> list[int]:
        """The deadline word of every section slot in use, in order of first use."""
        count = min(self.words[SECTION_COUNT], MAX_SECTIONS)
        return self.words[FIRST_SECTION : FIRST_SECTION + 2 * count : 2].tolist()

    def close(self) -> None:
        """Unmap. Words that were handed out become unusable."""
        self.words.release()
        self._map.close()

    def _name(self, slot: int) -> str:
        # Not remembered: a new owner gives the slots other names, and only open sections are asked for.
        start = NAMES_OFFSET + slot * NAME_SIZE
        return self._map[start : start + NAME_SIZE].rstrip(b"\0").decode("utf-8", errors="replace")


def process_start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22), None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])
