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
          10  check and length of the LIMITS text                            (text)
          11  global rank                                                  (story)
          12  generation                                                   (story)
          13  when a warm worker reached the script's first line              (story)
          14  when monitoring was initialised                                (story)
          15  when the first heartbeat was sent or the first section opened  (story)
      16 + 2*slot   section: the deadline
      17 + 2*slot   section: when it was opened                            (story)
    16 + 2*MAX_SECTIONS   check and length of the ERROR text               (text)
    17 + 2*MAX_SECTIONS   inode of the owner's PID namespace (0: unknown), in which its pid is a pid
    byte NAMES_OFFSET + NAME_SIZE*slot   section's name, UTF-8, padded with zeros
    byte LIMITS_TEXT.offset, ERROR_TEXT.offset   the two texts, UTF-8
    word FIRST_CLOSED + slot   how often the slot's section was closed     (story)
    word NOT_COUNTED           the same of all sections that share a slot; it is read only whether it is 0
    words NOT_SHOWN            deadline and time of opening of the one that was last opened of these; nobody reads them
    word WENT_BACK             how often an iteration was no higher than the one before it, or the first one lower than
                               that of the checkpoint that was loaded, or a run began after another
    word RESUMED_FROM          the highest iteration of a checkpoint that was loaded, -1 when none was
    word SAVED                 the highest iteration of a checkpoint that was saved, -1 when none was

The last three tell, with the iteration, whether the job gets on (see ``launcher.agent.progress``). They hold for the
generation, so a new owner leaves them as they are.

A deadline is an absolute ``CLOCK_MONOTONIC`` instant in nanoseconds; ``CLOSED`` (0) when it is not running,
``NO_LIMIT`` (the largest word) when it is open without limit.

Why words and not a struct: ``struct.pack_into`` on a shared mapping is not atomic, one aligned 8-byte store
through ``memoryview.cast("q")`` is. Every decision therefore rests on one word that says it all; the words
marked *story* are only ever shown to people. On aarch64 the order between two stores is not kept, so the
reader looks twice before it believes (see ``launcher.monitor.monitor``).

A slot is in use while its deadline word is not ``CLOSED``. The name is stored before the first deadline, and no word
counts the slots, so two threads that use new names at the same moment cannot undo each other's store.

A *text* says where limits come from (LIMITS; a learned one yields to a peer's configured one, so it has to name every
section that has a slot), or which exception is leaving the training loop (ERROR; shown to people only). Its bytes are
stored first, then one word with their CRC-32 and length; a reader that finds them disagreeing (a store is under way, or
the owner died in it) reads no text.

Why a file on tmpfs and not a memfd or a message: a path survives wrappers that close descriptors, the rank
pays no system call, and nothing the monitor does (stop, die, be replaced) can reach the training process. Only the
rank finds its cell by path; launcher and monitor hold a descriptor, so that a folder that was removed is no loss to
them. They read and write by that descriptor, too, never through a mapping: to touch a page that somebody has cut off
ends a process (SIGBUS). The kernel copies whole words, too, and what the monitor believes it has read twice. A cell
that was damaged (:meth:`Cell.copy`, :func:`implausible`) is put in order by the monitor (:meth:`Cell.restore`).

What was open in it then is not put back, so where the cells of all ranks are damaged while one hangs, that hang is not
found. A monitor that gives each of these ranks the longest limit that it may be under to give a sign was built and
tried (found in 3 of 3), and left out: which limit that is, and whether the rank had shut monitoring down since the last
look, was in the cell. To be wrong in that ends a healthy rank; the other takes two faults at once.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import zlib
from collections.abc import Mapping
from typing import NamedTuple, cast

from resilience_core.errors import ResilienceError
from resilience_core.system.proc import is_running, own_pid_namespace

__all__ = [
    "CELL_SIZE",
    "CLOSED",
    "Cell",
    "CellError",
    "CellView",
    "ERROR_TEXT",
    "LIMITS_TEXT",
    "MAX_SECTIONS",
    "NO_LIMIT",
    "OpenSection",
    "SHARED_SECTION",
    "SHUT_DOWN",
    "STACK_SIGNAL",
    "TextArea",
    "UNUSED",
    "WATCHED",
    "implausible",
    "shown_name",
]

MAGIC = 0x3430_4C4C_4543_5446  # "FTCELL04" read as a little-endian word
CLOSED = 0
NO_LIMIT = 2**63 - 1

UNUSED, WATCHED, SHUT_DOWN = 0, 1, 2

PID, START_TIME, STATE, SMALLEST_LIMIT, ITERATION = 1, 2, 3, 4, 5
HEARTBEAT, OUT_OF_SECTION, LAST_HEARTBEAT, LEFT_SECTION, LIMITS_CHECK = 6, 7, 8, 9, 10
RANK, GENERATION = 11, 12
FIRST_LINE, INITIALISED, FIRST_SIGN = 13, 14, 15
FIRST_SECTION = 16

MAX_SECTIONS = 64
NAME_SIZE = 48

STACK_SIGNAL = 62
"""The real-time signal (SIGRTMAX - 2) that makes a rank's faulthandler write its stacks beside the cell."""
ERROR_CHECK = FIRST_SECTION + 2 * MAX_SECTIONS
PID_NAMESPACE = ERROR_CHECK + 1
_LARGEST_PID = 1 << 22  # PID_MAX_LIMIT of Linux
_SKEW_NS = 1_000_000_000
NAMES_OFFSET = (ERROR_CHECK + 2) * 8


class TextArea(NamedTuple):
    """Where one of the two texts of a cell lies, in bytes; longer texts are cut at the end."""

    check_word: int
    offset: int
    size: int


LIMITS_TEXT = TextArea(LIMITS_CHECK, NAMES_OFFSET + MAX_SECTIONS * NAME_SIZE, 16 << 10)
ERROR_TEXT = TextArea(ERROR_CHECK, LIMITS_TEXT.offset + LIMITS_TEXT.size, 16 << 10)
FIRST_CLOSED = (ERROR_TEXT.offset + ERROR_TEXT.size) // 8
NOT_COUNTED = FIRST_CLOSED + MAX_SECTIONS
NOT_SHOWN = NOT_COUNTED + 1
WENT_BACK = NOT_SHOWN + 2
RESUMED_FROM, SAVED = WENT_BACK + 1, WENT_BACK + 2
CELL_SIZE = (SAVED + 1) * 8
_UNKNOWN_AT_FIRST = (ITERATION, RESUMED_FROM, SAVED)
SHARED_SECTION = f"one of the sections beyond the {MAX_SECTIONS - 1}rd"
"""The name of the slot that sections share where there are more names than slots."""


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
    pid_namespace: int = 0
    closings: int = -1
    """How many times sections were closed, all together; -1 where not all of them are counted."""
    went_back: int = 0
    resumed_from: int = -1
    saved: int = -1


class Cell:
    """A cell. ``words`` is the word view of a mapped one; ranks store into it directly on the hot path.

    ``descriptor`` is that of the file where this object was made by :meth:`create` or :meth:`from_descriptor`; -1
    where it was opened by path, as a rank does, whose descriptors are the training's own affair, and for a copy.
    """

    __slots__ = ("_map", "_slots", "descriptor", "path", "words")

    def __init__(self, path: str) -> None:
        """Map an existing cell.

        Raises:
            CellError: The file is missing, not ours to write, or no cell.
        """
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
        """Hold a cell that somebody else has opened; its descriptor is this object's from now on.

        It is not mapped, and what is in it is not checked: see :meth:`copy`.
        """
        return cls._of(b"", descriptor)

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
                known = dict.fromkeys(_UNKNOWN_AT_FIRST, -1) | {RANK: rank, GENERATION: generation}
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
        """A cell in private memory that no monitor looks at."""
        cell = cls._of(mmap.mmap(-1, CELL_SIZE))
        for word in _UNKNOWN_AT_FIRST:
            cell.words[word] = -1
        return cell

    def claim(self, pid: int, start_time: int) -> None:
        """Make ``pid`` the owner, and begin anew: what an earlier owner has left open is forgotten.

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
        # While it is not WATCHED nothing in the cell is heeded, so the rest may be cleared in any order.
        words[STATE] = UNUSED
        words[SMALLEST_LIMIT] = words[LIMITS_CHECK] = words[ERROR_CHECK] = 0
        words[HEARTBEAT] = words[OUT_OF_SECTION] = CLOSED
        if words[ITERATION] >= 0:  # the run that begins now may count from 0 again
            words[WENT_BACK] += 1
        words[ITERATION] = -1
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
            pid_namespace=words[PID_NAMESPACE],
            closings=-1 if words[NOT_COUNTED] else sum(words[FIRST_CLOSED:NOT_COUNTED].tolist()),
            went_back=words[WENT_BACK],
            resumed_from=words[RESUMED_FROM],
            saved=words[SAVED],
        )

    def copy(self) -> Cell:
        """Copy the file, by its descriptor, into memory of our own: what cannot be changed meanwhile. See also
        :func:`implausible`.

        Returns:
            A cell to be read.

        Raises:
            CellError: It is damaged: its size, or its first word.
        """
        try:
            raw = os.pread(self.descriptor, CELL_SIZE + 1, 0)
        except OSError as error:
            raise CellError(f"it cannot be read: {error.strerror}") from error
        if len(raw) != CELL_SIZE:
            raise CellError(f"it has {os.fstat(self.descriptor).st_size} bytes, not {CELL_SIZE}")
        copy = Cell._of(raw)
        if copy.words[0] != MAGIC:
            raise CellError(f"it begins with {copy.words[0] & 0xFFFF_FFFF_FFFF_FFFF:#x}")
        return copy

    def restore(self, known: CellView, names: Mapping[int, str], limits: str | None = None) -> None:
        """Put a damaged cell in order: nothing is open in it, and what its owner stores next counts again.

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
        words[PID], words[START_TIME] = known.pid, known.start_time
        words[0] = MAGIC
        # Its state is still UNUSED, in which nothing is heeded; the true one is stored when all the rest is there.
        os.pwrite(self.descriptor, words.tobytes(), 0)
        os.pwrite(self.descriptor, _raw(known.state), STATE * 8)
        whole.close()

    def stamps(self) -> dict[str, int | None]:
        """When the rank reached its first line, its monitor and its first sign of life; None for what is unknown."""
        words = self.words
        names = {"first_line_ns": FIRST_LINE, "initialised_ns": INITIALISED, "first_sign_ns": FIRST_SIGN}
        return {name: words[index] or None for name, index in names.items()}

    def sections_closed(self) -> dict[str, int]:
        """How often each section was closed, by name; of a cell that was put in order, since then.

        Those that share a slot are not counted.
        """
        counts = self.words[FIRST_CLOSED : FIRST_CLOSED + MAX_SECTIONS].tolist()
        named = {name: count for slot, count in enumerate(counts) if (name := self._name(slot))}
        named.pop(SHARED_SECTION, None)
        return named

    def section_deadlines(self) -> list[int]:
        """The deadline word of every section slot, in order of first use; ``CLOSED`` where none is open."""
        return self.words[FIRST_SECTION : FIRST_SECTION + 2 * MAX_SECTIONS : 2].tolist()

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
        self._map[start : start + NAME_SIZE] = _raw_name(name).ljust(NAME_SIZE, b"\0")

    def _name(self, slot: int) -> str:
        # Not remembered: a new owner gives the slots other names, and only open sections are asked for.
        start = NAMES_OFFSET + slot * NAME_SIZE
        return self._map[start : start + NAME_SIZE].rstrip(b"\0").decode("utf-8", errors="replace")


def shown_name(name: str) -> str:
    """What the monitor reads of a section's name: lone surrogates spelt out, and a long one cut."""
    return _raw_name(name).rstrip(b"\0").decode("utf-8", errors="replace")


def _raw_name(name: str) -> bytes:
    return name.encode("utf-8", errors="backslashreplace")[: NAME_SIZE - 1]


def _raw(word: int) -> bytes:
    return word.to_bytes(8, sys.byteorder, signed=True)


def implausible(view: CellView, now_ns: int) -> str | None:
    """Say which words of a cell no rank would store; None when all make sense.

    A rank may store while its cell is read, so believe only what is found twice.

    Args:
        view: What the cell said.
        now_ns: ``CLOCK_MONOTONIC``.
    """
    if view.state not in (UNUSED, WATCHED, SHUT_DOWN) or not 0 <= view.pid <= _LARGEST_PID:
        return f"its state is {view.state}, its pid {view.pid}"
    if view.smallest_limit_ns < 0:
        return f"its smallest limit is {view.smallest_limit_ns} ns"
    if view.state != WATCHED:
        return None
    latest_ns = now_ns + _SKEW_NS
    for name, deadline_ns, since_ns, earliest_ns in (
        ("heartbeat", view.heartbeat_ns, view.last_heartbeat_ns, 0),
        ("out of section", view.out_of_section_ns, view.left_section_ns, 0),
        *[(f"section slot {section.slot}", section.deadline_ns, section.opened_ns, 1) for section in view.sections],
    ):
        if deadline_ns != CLOSED and not earliest_ns <= since_ns <= min(deadline_ns, latest_ns):
            return f"{name}: deadline {deadline_ns}, running since {since_ns}"
    return None
