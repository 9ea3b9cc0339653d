"""The layout of a cell: which number of a rank's shared memory means what.

Layout, native byte order, every number one aligned signed 64-bit word::

    word   0  MAGIC, written last when the file is made
           1  pid of the owner (0: nobody has initialised monitoring yet)
           2  the owner's start time in clock ticks since boot, so that a reused pid is told apart
           3  state: UNUSED, WATCHED or SHUT_DOWN
           4  smallest limit in force, ns (0: none); tells the monitor how often it must look
           5  iteration, -1 when unknown                                   (shown)
           6  heartbeat: the deadline
           7  out of section: the deadline, heeded only while no section is open
           8  when the last heartbeat was sent, or monitoring began        (shown)
           9  when the last section was left, or monitoring began          (shown)
          10  check and length of the LIMITS text                            (text)
          11  global rank                                                  (shown)
          12  generation                                                   (shown)
          13  when a warm worker reached the script's first line              (shown)
          14  when monitoring was initialised                                (shown)
          15  when the first heartbeat was sent or the first section opened  (shown)
      16 + 2*slot   section: the deadline
      17 + 2*slot   section: when it was opened                            (shown)
    16 + 2*MAX_SECTIONS   check and length of the ERROR text               (text)
    17 + 2*MAX_SECTIONS   inode of the owner's PID namespace (0: unknown), in which its pid is a pid
    byte NAMES_OFFSET + NAME_SIZE*slot   section's name, UTF-8, padded with zeros
    byte LIMITS_TEXT.offset, ERROR_TEXT.offset   the two texts, UTF-8
    word FIRST_CLOSED + slot   how often the slot's section was closed     (shown)
    word NOT_COUNTED           the same of all sections that share a slot; it is read only whether it is 0
    words NOT_SHOWN            deadline and time of opening of the one that was last opened of these; nobody reads them
    word WENT_BACK             how often an iteration was no higher than the one before it, or the first one lower than
                               that of the checkpoint that was loaded; not where a step that was not done is tried again
    word RESUMED_FROM          the highest iteration of a checkpoint that was loaded, -1 when none was
    word SAVED                 the highest iteration of a checkpoint that was saved, -1 when none was
    word LEFT_GROUP            when the owner destroyed its default process group, 0 when it has not  (shown)

The three before that tell, with the iteration, whether the job makes progress (see ``launcher.agent.progress``). They
hold for the generation, so a new owner leaves them as they are.

A deadline is an absolute ``CLOCK_MONOTONIC`` instant in nanoseconds; ``CLOSED`` (0) when it is not running,
``NO_LIMIT`` (the largest word) when it is open without limit.

Why words and not a struct: ``struct.pack_into`` on a shared mapping is not atomic, one aligned 8-byte store
through ``memoryview.cast("q")`` is. Every decision therefore rests on a single word; the words
marked *shown* are shown to people only. aarch64 does not keep the order of two stores, so the reader acts only
on what it has read twice (see ``launcher.monitor.monitor``).

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
ends a process (SIGBUS). The kernel also copies whole words, and the monitor acts only on values it has read
twice. The monitor repairs (``Cell.restore``) a cell that was damaged (``Cell.copy``,
:func:`~resilience_core.protocol.cell_view.implausible`).

Intervals that were open in a damaged cell are not restored. If the cells of all ranks are damaged while one of them
hangs, that hang is not found. A monitor that gives each such rank the longest limit it may be under was built, and
found the hang in 3 of 3 trials. It was left out, since only the cell held that limit, and whether the rank had shut
monitoring down meanwhile. A wrong guess would kill a healthy rank; the missed hang needs two simultaneous faults.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CELL_SIZE",
    "CLOSED",
    "ERROR_CHECK",
    "ERROR_TEXT",
    "FIRST_CLOSED",
    "FIRST_LINE",
    "FIRST_SECTION",
    "FIRST_REPORT",
    "GENERATION",
    "HEARTBEAT",
    "INITIALISED",
    "ITERATION",
    "LAST_HEARTBEAT",
    "LEFT_GROUP",
    "LEFT_SECTION",
    "LIMITS_CHECK",
    "LIMITS_TEXT",
    "MAGIC",
    "MAX_SECTIONS",
    "NAMES_OFFSET",
    "NAME_SIZE",
    "NOT_COUNTED",
    "NOT_SHOWN",
    "NO_LIMIT",
    "OUT_OF_SECTION",
    "PID",
    "PID_NAMESPACE",
    "RANK",
    "RESUMED_FROM",
    "SAVED",
    "SHARED_SECTION",
    "SHUT_DOWN",
    "SMALLEST_LIMIT",
    "STACK_SIGNAL",
    "START_TIME",
    "STATE",
    "TextArea",
    "UNKNOWN_AT_FIRST",
    "UNUSED",
    "WATCHED",
    "WENT_BACK",
    "raw_name",
    "shown_name",
]

MAGIC = 0x3530_4C4C_4543_5446  # "FTCELL05" read as a little-endian word

CLOSED = 0

NO_LIMIT = 2**63 - 1

UNUSED, WATCHED, SHUT_DOWN = 0, 1, 2

PID, START_TIME, STATE, SMALLEST_LIMIT, ITERATION = 1, 2, 3, 4, 5

HEARTBEAT, OUT_OF_SECTION, LAST_HEARTBEAT, LEFT_SECTION, LIMITS_CHECK = 6, 7, 8, 9, 10

RANK, GENERATION = 11, 12

FIRST_LINE, INITIALISED, FIRST_REPORT = 13, 14, 15

FIRST_SECTION = 16

MAX_SECTIONS = 64

NAME_SIZE = 48

STACK_SIGNAL = 62
"""The real-time signal (SIGRTMAX - 2) that makes a rank's faulthandler write its stacks beside the cell."""

ERROR_CHECK = FIRST_SECTION + 2 * MAX_SECTIONS

PID_NAMESPACE = ERROR_CHECK + 1

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

LEFT_GROUP = SAVED + 1

CELL_SIZE = (LEFT_GROUP + 1) * 8

UNKNOWN_AT_FIRST = (ITERATION, RESUMED_FROM, SAVED)

SHARED_SECTION = f"one of the sections beyond the {MAX_SECTIONS - 1}rd"
"""The name of the slot that sections share where there are more names than slots."""


def shown_name(name: str) -> str:
    """Return what the monitor reads of a section's name: lone surrogates spelt out, and a long one cut."""
    return raw_name(name).rstrip(b"\0").decode("utf-8", errors="replace")


def raw_name(name: str) -> bytes:
    """Return the bytes of a section's name as the cell has them, without the zeros after it."""
    return name.encode("utf-8", errors="backslashreplace")[: NAME_SIZE - 1]
