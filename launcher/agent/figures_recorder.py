"""When the figures of a node's ranks are written to the log folder, and which of them.

A report must have them after the ranks and their shared memory are gone, and while the job runs. Two shapes were
considered. A process of its own could follow the cells without touching the launcher; but the last figures of a
generation, which tell what a failure has cost, would be gone before it looks, or a restart would have to wait for it.
So the launcher takes copies, and everything else (parsing, comparing, writing) is
done by the thread that writes its files. While the disk hangs, at most :data:`_MOST_WAITING` copies wait for it.

A line is written when a second has passed since the last one, and a thousandth of the age of the run. So a file has
some 1,000 lines for the first quarter of an hour, 5,500 for a day and 9,000 for a month, and a picture of the whole
run, some 1,000 points wide, finds a line for each of them.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.processes.background import Background
from launcher.records.event_log import EventLog
from launcher.records.figures_log import FIGURES, line_of_rank
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["FiguresRecorder"]

_SHORTEST_NS = NS_PER_SECOND
_OF_AGE = 1000
_FULL_EVERY = 30
_MOST_WAITING = 2
"""How many lines may wait to be written, and as many more that are the last of a generation: a line holds all cells."""
_NOT_WITHOUT = ("iteration", "done", "passed", "open", "beside_ns")
"""What of a rank is in every line."""

Raw = Mapping[int, tuple[bytes, bytes]]


class FiguresRecorder:
    """Writes the figures of one node's ranks, generation by generation.

    Args:
        log: The file; None where it could not be made.
        background: The thread that writes it.
    """

    def __init__(self, log: EventLog | None = None, background: Background | None = None) -> None:
        self._log = log
        self._background = background or Background("ft_figures", 1)
        self._began_ns = self._noted_ns = time.monotonic_ns()
        self._lines = 0  # of this generation
        self._waiting = collections.Counter[bool]()  # by whether they are the last of a generation
        # Of the thread, by rank: the sections in the last line, its saves, and when the first step began by the last
        # full one.
        self._before: dict[int, Any] = {}
        self._saves: dict[int, Any] = {}
        self._first_steps: dict[int, int | None] = {}
        self._made_anew = 0

    def generation_started(self) -> None:
        """Begin to note the figures of a new generation; its first line is due at once."""
        self._lines = self._noted_ns = 0

    def note(self, generation: int, raw: Callable[[], Raw]) -> None:
        """Write a line if one is due.

        Args:
            generation: The current one.
            raw: Copies what ranks have written: by local rank, the cell and the figures.
        """
        if self._log is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns - self._noted_ns < max(_SHORTEST_NS, (now_ns - self._began_ns) // _OF_AGE):
            return
        self._noted_ns = now_ns
        self._hand_over(generation, raw, now_ns, is_last=False)

    def generation_over(self, generation: int, raw: Callable[[], Raw]) -> None:
        """Write the last figures of a generation."""
        if self._log is not None:
            self._hand_over(generation, raw, time.monotonic_ns(), is_last=True)

    def close(self) -> None:
        """Wait a moment for what is still to be written."""
        if self._log is not None:
            self._log.close()

    def _hand_over(self, generation: int, raw: Callable[[], Raw], at_ns: int, *, is_last: bool) -> None:
        assert self._log is not None
        if self._waiting[is_last] >= _MOST_WAITING:
            self._log.lose()  # the disk hangs; the next line that is written is full
            return
        is_first, is_full = self._lines == 0, is_last or self._lines % _FULL_EVERY == 0
        copies = raw()
        self._waiting[is_last] += 1

        def write() -> None:
            try:
                self._write(generation, copies, at_ns, is_first=is_first, is_full=is_full, is_last=is_last)
            finally:
                self._waiting[is_last] -= 1

        if self._background.submit(write):
            self._lines += 1
        else:
            self._waiting[is_last] -= 1
            self._log.lose()

    def _write(self, generation: int, raw: Raw, at_ns: int, *, is_first: bool, is_full: bool, is_last: bool) -> None:
        assert self._log is not None
        if is_first:
            self._before, self._saves = {}, {}
        found = filter(None, (line_of_rank(local_rank, cell, figures) for local_rank, (cell, figures) in raw.items()))
        known = dict(found)
        first_steps = {rank: facts["first_step_ns"] for rank, facts in known.items()}
        is_full |= first_steps != self._first_steps  # from where the generation goes on is known from here on
        # What the lines before have said is missing.
        is_full |= self._log.lost > 0
        self._log.look()
        is_full |= self._log.made_anew != self._made_anew
        self._made_anew = self._log.made_anew
        if is_full:
            self._first_steps = first_steps
        ranks = {}
        for rank, facts in known.items():
            sections, before = facts["sections"], self._before.get(rank, {})
            saves, known_saves = facts["saves"], self._saves.get(rank, ())
            self._before[rank], self._saves[rank] = sections, saves
            if not is_full:
                changed = {name: each for name, each in sections.items() if each != before.get(name)}
                facts = {key: facts[key] for key in _NOT_WITHOUT}
                facts["sections"] = {name: _without_durations(each) for name, each in changed.items()}
                if new := [save for save in saves if save not in known_saves]:
                    facts["saves"] = new
            ranks[str(rank)] = facts
        self._log.write(FIGURES, at_ns, generation=generation, is_full=is_full, is_last=is_last, ranks=ranks)


def _without_durations(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "durations"}
