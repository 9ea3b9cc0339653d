"""What is read of the figures of a rank, whose layout :mod:`resilience_core.protocol.figures` describes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from resilience_core.protocol.cell_layout import NAME_SIZE, SHARED_SECTION
from resilience_core.protocol.figures import (
    BESIDE,
    BUCKETS,
    CLOSE_CALLS,
    DONE,
    FIGURES_SIZE,
    FIRST_ITERATION,
    FIRST_SAVE,
    FIRST_STEP,
    LEFT,
    LEFT_AT,
    LEFT_OPENED,
    LEFT_TOOK,
    LONGEST,
    LONGEST_GAP,
    LONGEST_HEARTBEAT_GAP,
    MAGIC,
    NAMES_OFFSET,
    PASSED,
    ROWS,
    SAVE_WORDS,
    SAVES,
    SAVES_KEPT,
    TOOK,
)

__all__ = ["RankFigures", "Save", "SectionFigures", "Steps", "count_on_in_strides", "read_figures", "read_steps"]

_CLEARLY = 1.25
"""So many times the steps are more iterations than those explain whose ends nobody has noted."""


class SectionFigures(NamedTuple):
    """What was seen of the sections of one name. Durations in nanoseconds."""

    closed: int
    took_ns: int
    longest_ns: int
    close_calls: int
    durations: Mapping[int, int]
    """From a number of bits to how many durations had that many."""
    left: int = 0
    """How often an exception has left it, which none of the others counts."""
    left_ns: int = 0
    """How long it had been open then, in all."""
    left_opened_ns: int = 0
    """When it had been opened that was left last."""
    left_at_ns: int = 0
    """When it was left last."""


class Save(NamedTuple):
    """A checkpoint that was saved."""

    iteration: int
    t_ns: int
    """When it was complete, less the time of it in which steps went on: the work of these is not in it."""
    checkpointing_ns: int
    """How long ``checkpointing`` had held up the steps in all until then."""
    done: int | None = None
    """The iteration of the last training step that is in it; None where that cannot be told, as where steps went on."""


class RankFigures(NamedTuple):
    """The figures of one rank in one generation; None for what there was not yet."""

    first_iteration: int | None
    done: int | None
    """The iteration of the last training step that ended."""
    first_step_ns: int | None
    longest_gap_ns: int
    longest_heartbeat_gap_ns: int
    saves: tuple[Save, ...]
    """The last few, oldest first."""
    sections: Mapping[str, SectionFigures]
    beside_ns: int = 0
    """How long ``checkpointing`` was open in all while steps went on; of those that were closed."""
    passed: int | None = None
    """How many training steps had ended when the last one that is done had, those too that an exception had left."""


class Steps(NamedTuple):
    """The training steps of one rank in one generation."""

    first_iteration: int
    done: int
    """The iteration of the last one that ended."""
    first_step_ns: int
    """When the first one began."""
    counted: int = 0
    """How many had ended when the last one had; 0 where that was not counted."""

    @property
    def passed(self) -> int:
        """How many there were: counted by their iterations, unless these count on by more than one, or begin anew."""
        iterations = self.done - self.first_iteration + 1
        return self.counted if count_on_in_strides(iterations, self.counted) else max(iterations, self.counted)


def count_on_in_strides(iterations: int, counted: int | None) -> bool:
    """Return whether iterations go on clearly further than steps were done: they are no steps then.

    A step whose end nobody has noted, as one that was skipped, counts as passed by its iteration.

    Args:
        iterations: From the first one to the last one that is done.
        counted: How many steps had ended by then; None or 0 where that was not counted.
    """
    return bool(counted) and iterations > _CLEARLY * (counted or 0)


def read_figures(source: int | bytes) -> RankFigures | None:
    """Read the figures of a rank.

    Args:
        source: An open descriptor of the file, which is read whatever its position, or what was read from one.

    Returns:
        The figures; None where it cannot be read or holds none of this version.
    """
    if isinstance(source, int):
        try:
            source = os.pread(source, FIGURES_SIZE + 1, 0)
        except OSError:
            return None
    if len(source) != FIGURES_SIZE:
        return None
    words = memoryview(source).cast("q")
    if words[0] != MAGIC:
        return None
    first, done = words[FIRST_ITERATION], words[DONE]
    return RankFigures(
        first_iteration=first if first >= 0 else None,
        done=done if done >= 0 else None,
        first_step_ns=words[FIRST_STEP] or None,
        longest_gap_ns=words[LONGEST_GAP],
        longest_heartbeat_gap_ns=words[LONGEST_HEARTBEAT_GAP],
        saves=_saves(words),
        sections=_sections(words, source),
        beside_ns=words[BESIDE],
        passed=words[PASSED] if words[PASSED] > 0 else None,
    )


def read_steps(descriptor: int) -> Steps | None:
    """Read of a file of figures only what it says of steps, which takes some microseconds.

    Args:
        descriptor: An open one of the file, which is read whatever its position.

    Returns:
        The steps; None where none has ended yet, the file cannot be read, or holds none of this version.
    """
    try:
        raw = os.pread(descriptor, FIRST_SAVE * 8, 0)
    except OSError:
        return None
    if len(raw) != FIRST_SAVE * 8:
        return None
    words = memoryview(raw).cast("q")
    steps = Steps(words[FIRST_ITERATION], words[DONE], words[FIRST_STEP], max(words[PASSED], 0))
    return steps if words[0] == MAGIC and min(steps) >= 0 and steps.first_step_ns else None


def _saves(words: memoryview) -> tuple[Save, ...]:
    count = words[SAVES]
    if count < 0:
        return ()
    places = (FIRST_SAVE + SAVE_WORDS * (number % SAVES_KEPT) for number in range(max(0, count - SAVES_KEPT), count))
    return tuple(_save(*words[place : place + SAVE_WORDS].tolist()) for place in places)


def _save(iteration: int, t_ns: int, checkpointing_ns: int, done: int) -> Save:
    return Save(iteration, t_ns, checkpointing_ns, done if done >= 0 else None)


def _sections(words: memoryview, raw: bytes) -> dict[str, SectionFigures]:
    found = {}
    for row in range(ROWS):
        start = NAMES_OFFSET + row * NAME_SIZE
        name = raw[start : start + NAME_SIZE].rstrip(b"\0").decode("utf-8", errors="replace")
        if row == ROWS - 1:
            name = SHARED_SECTION
        elif not name:
            continue
        buckets = words[BUCKETS + 64 * row : BUCKETS + 64 * (row + 1)].tolist()
        durations = {bits: count for bits, count in enumerate(buckets) if count}
        if row < ROWS - 1 or durations:
            found[name] = SectionFigures(
                sum(durations.values()),
                words[TOOK + row],
                words[LONGEST + row],
                words[CLOSE_CALLS + row],
                durations,
                words[LEFT + row],
                words[LEFT_TOOK + row],
                words[LEFT_OPENED + row],
                words[LEFT_AT + row],
            )
    return found
