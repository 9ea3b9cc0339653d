"""The figures of a rank: how often its sections were closed, how long they took, which steps and saves it has done.

They lie in a file of their own beside the cell (``<cell>.figures``), since nothing is decided by them: the monitor,
which reads a cell at each look, neither copies nor mends them, and a rank that finds no such file goes on without. A
file belongs to one rank of one generation; whoever becomes the rank's process in that generation adds to it.

Layout, native byte order, every number one aligned signed 64-bit word::

    word   0  MAGIC, written last when the file is made
           1  how many training steps had ended when that of word 3 had, those too that an exception had left; 0 from
              clients of earlier releases, which leave it alone
           2  iteration of the first training step, -1 until there was one
           3  iteration of the last training step that ended, -1 until one has
           4  when the first training step began, 0 until there was one
           5  longest time out of section, ns
           6  longest time between two heartbeats, ns
           7  how many saves were noted
           8  how long ``checkpointing`` was open in all while steps went on, ns; of those that were closed
      9 + 4*k  the save with number k modulo SAVES_KEPT: its iteration
     10 + 4*k      when it was complete, less the time of it in which steps went on
     11 + 4*k      how long ``checkpointing`` had held up the steps in all until then, ns
     12 + 4*k      the last training step that had ended then, or that is under way and in it by its number; -1 where
                   that cannot be told, as where steps may have gone on during the save
    TOOK + row         total of the section's durations, ns
    LONGEST + row      the longest of them, ns
    CLOSE_CALLS + row  how many of them took at least CLOSE_CALL of the limit that was in force when it was closed
    LEFT + row         how often the section was left by an exception, which nothing above counts
    LEFT_TOOK + row    total of how long it had been open then, ns, less the time in which steps went on beside a save
    LEFT_OPENED + row  when it had been opened that was left last
    LEFT_AT + row      when it was left last
    BUCKETS + 64*row + k   how many durations in ns have k bits: 2**(k-1) <= duration < 2**k
    byte NAMES_OFFSET + NAME_SIZE*row   the section's name, UTF-8, padded with zeros; rows are taken in order

A section that an exception leaves has not done what it is for, and how long it was open may be how long it waited for a
peer that had failed: its duration is none to set a limit by.

How many steps there were (word 1) can be told by nothing else: iterations may count on by more than one, or begin
anew, and ``step`` is closed for evaluation steps, and for saves within a step, too. Two shapes were considered. A count
of the iterations that are left out would cost each step a comparison, and an evaluation that reports a number between
two steps would hide some of them. To count the steps as they end costs a store, is right whatever they are numbered,
and is known with heartbeats as well. The word was free, so files of this layout with and without it can be told apart
by its value.

The last row is that of all sections that find no other. A section is counted by its buckets alone, which spares the
rank a store. Powers of two tell a duration to within a factor of two; the exact longest and total stand beside them.

Times are ``CLOCK_MONOTONIC`` nanoseconds. Two threads that close sections of one name at the same moment may lose one
count. Readers use ``pread``, never a mapping: to touch a page that somebody has cut off ends a process.
"""

from __future__ import annotations

import contextlib
import mmap
import os

from resilience_core.protocol.cell_layout import MAX_SECTIONS, NAME_SIZE, raw_name

__all__ = [
    "BESIDE",
    "BUCKETS",
    "CHECKPOINTING",
    "CLOSE_CALL",
    "CLOSE_CALLS",
    "DONE",
    "FIGURES_SIZE",
    "FIRST_ITERATION",
    "FIRST_SAVE",
    "FIRST_STEP",
    "LEFT",
    "LEFT_AT",
    "LEFT_OPENED",
    "LEFT_TOOK",
    "LONGEST",
    "LONGEST_GAP",
    "LONGEST_HEARTBEAT_GAP",
    "MAGIC",
    "NAMES_OFFSET",
    "PASSED",
    "ROWS",
    "SAVES",
    "SAVES_KEPT",
    "SAVE_WORDS",
    "SETUP",
    "STEP",
    "TOOK",
    "create_figures",
    "figures_path",
    "note_first_step",
    "note_save",
    "open_figures",
    "private_figures",
    "row_of",
]

MAGIC = 0x3430_5347_4946_5446  # "FTFIGS04" read as a little-endian word

PASSED, FIRST_ITERATION, DONE, FIRST_STEP, LONGEST_GAP, LONGEST_HEARTBEAT_GAP, SAVES = 1, 2, 3, 4, 5, 6, 7

BESIDE = 8

FIRST_SAVE = 9

SAVES_KEPT = 8

SAVE_WORDS = 4

ROWS = MAX_SECTIONS + 1

TOOK = FIRST_SAVE + SAVE_WORDS * SAVES_KEPT

LONGEST = TOOK + ROWS

CLOSE_CALLS = LONGEST + ROWS

LEFT = CLOSE_CALLS + ROWS

LEFT_TOOK = LEFT + ROWS

LEFT_OPENED = LEFT_TOOK + ROWS

LEFT_AT = LEFT_OPENED + ROWS

BUCKETS = LEFT_AT + ROWS

NAMES_OFFSET = (BUCKETS + 64 * ROWS) * 8

FIGURES_SIZE = NAMES_OFFSET + ROWS * NAME_SIZE

CLOSE_CALL = 0.8
"""A section that took this part of its limit has come close to it."""

CHECKPOINTING, SETUP, STEP = "checkpointing", "setup", "step"


def figures_path(cell_path: str) -> str:
    """Return where the figures lie that belong to a cell."""
    return f"{cell_path}.figures"


def create_figures(path: str) -> int:
    """Make a file of figures; its memory is reserved here, so that a full tmpfs is an error now.

    Returns:
        Its descriptor.

    Raises:
        OSError: It is there already, or there is no room.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FIGURES_SIZE)
        blank = private_figures()
        os.pwrite(descriptor, bytes(blank[1 : SAVES + 1]), blank.itemsize)
        os.pwrite(descriptor, bytes(blank[:1]), 0)
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return descriptor


def private_figures() -> memoryview:
    """Return words that nobody else reads, for a rank without a file."""
    words = memoryview(bytearray(FIGURES_SIZE)).cast("q")
    words[FIRST_ITERATION] = words[DONE] = -1
    words[0] = MAGIC
    return words


def open_figures(path: str) -> memoryview:
    """Map a rank's figures for writing; private words where there is no such file, or it is none of this version."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size == FIGURES_SIZE:
                words = memoryview(mmap.mmap(descriptor, FIGURES_SIZE)).cast("q")
                if words[0] == MAGIC:
                    return words
        finally:
            os.close(descriptor)
    return private_figures()


def row_of(words: memoryview, name: str) -> int:
    """Return the row of a section, taking the next free one for a name without one. Not safe between threads."""
    names = words.cast("B")
    raw = raw_name(name).ljust(NAME_SIZE, b"\0")
    for row in range(ROWS - 1):
        place = slice(NAMES_OFFSET + row * NAME_SIZE, NAMES_OFFSET + (row + 1) * NAME_SIZE)
        if not names[place.start]:
            names[place] = raw
            return row
        if names[place] == raw:
            return row
    return ROWS - 1


def note_first_step(words: memoryview, iteration: int, now_ns: int) -> None:
    """Note that the first training step begins; of further calls, the first one counts."""
    if not words[FIRST_STEP]:
        words[FIRST_STEP] = now_ns
        with contextlib.suppress(TypeError, ValueError):
            words[FIRST_ITERATION] = iteration


def note_save(words: memoryview, iteration: int, now_ns: int, checkpointing_ns: int, done: int = -1) -> None:
    """Note a checkpoint that is complete; of one that is reported again, the first time counts."""
    count = words[SAVES]
    if count and words[FIRST_SAVE + SAVE_WORDS * ((count - 1) % SAVES_KEPT)] == iteration:
        return
    place = FIRST_SAVE + SAVE_WORDS * (count % SAVES_KEPT)
    words[place], words[place + 1], words[place + 2], words[place + 3] = iteration, now_ns, checkpointing_ns, done
    words[SAVES] = count + 1
