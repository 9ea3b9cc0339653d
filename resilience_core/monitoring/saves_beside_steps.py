"""How much of a save the training steps went on for: that part holds up nothing, and its steps are not in the save.

Two shapes were considered. A report could compare lines of figures: where steps were closed while ``checkpointing`` was
open, these went on. But lines are a second apart, or a thousandth of the run's age, and most saves are shorter. So the
rank looks itself, when a save is noted and when ``checkpointing`` is closed, at what it knows of ``step`` anyway: when
that was opened last, whether it is open, and when the last section was left. Other sections pay nothing for it.

A save counts as one beside steps where a step began after it, or where it is in another thread than the main one.
A section ``checkpointing`` inside ``step`` in the main thread is a part of that step, which waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from resilience_core.monitoring.section_state import FigureRow, Section
from resilience_core.protocol.figures import BESIDE, CHECKPOINTING, DONE, STEP, note_save

__all__ = ["CheckpointingSection", "SavesBesideSteps"]


class SavesBesideSteps:
    """What a client knows of saves and steps at the same time.

    Args:
        sections: All sections of the client, by name.
        opened: Those that are open.
    """

    __slots__ = ("_late_ns", "_noted", "_opened", "_sections")

    def __init__(self, sections: Mapping[str, Section], opened: Mapping[str, Section]) -> None:
        self._sections, self._opened = sections, opened
        self._noted = (0, 0, 0)
        """Of the section in which a save was noted last: when it was opened, until when, and how long steps went on."""
        self._late_ns = 0
        """Until when work is in the save whose section was closed last, if it is to be noted still; 0 for none."""

    def note_save(
        self, figures: memoryview, iteration: int, now: int, left_ns: int, began_ns: int | None, begun: int
    ) -> None:
        """Note a save that is complete.

        Args:
            figures: The client's.
            iteration: Of the checkpoint.
            now: The time.
            left_ns: When a section was left last.
            began_ns: When the save began, where steps are known to have gone on; None where that is not known.
            begun: The training step that has begun last, -1 for none.
        """
        section, until_ns = self._sections.get(CHECKPOINTING), now
        blocked_ns = 0
        if section is not None:
            blocked_ns = section.row.took_ns + section.row.left_ns - figures[BESIDE]
        if section is not None and CHECKPOINTING in self._opened:
            beside_ns = self._until_now(section.opened_ns, now, left_ns, is_known=began_ns is not None)
            self._noted, self._late_ns = (section.opened_ns, now, beside_ns), 0
            blocked_ns, until_ns = blocked_ns + now - section.opened_ns - beside_ns, now - beside_ns
        elif self._late_ns:
            until_ns, self._late_ns = self._late_ns, 0
        if began_ns is not None:
            until_ns = now - self._until_now(min(began_ns, now), now, left_ns, is_known=True)
        is_beside = until_ns != now or began_ns is not None or not _is_main_thread()
        note_save(figures, iteration, until_ns, blocked_ns, -1 if is_beside else self._held(figures, iteration, begun))

    def _held(self, figures: memoryview, iteration: int, begun: int) -> int:
        """Return the last step in a save for which the steps wait; -1 where that cannot be told.

        One inside a step may be of the state before it, or after it. Where its number is the next one, it is after it.
        """
        done = figures[DONE]
        if done < 0 or not (STEP in self._opened or begun > done):  # the bus closes ``step`` for a save within it
            return done
        return begun if iteration == begun + 1 else -1

    def _until_now(self, since_ns: int, now: int, left_ns: int, *, is_known: bool) -> int:
        """Return for how long steps went on during a save that is not over."""
        if not (is_known or self._may_go_on(since_ns)):
            return 0
        if STEP in self._opened or STEP not in self._sections:  # without that section no more is known
            return now - since_ns
        return max(0, left_ns - since_ns)

    def of_closed(self, opened_ns: int, now: int) -> int:
        """Return for how long steps went on during the section ``checkpointing`` that has just been closed."""
        noted_opened_ns, noted_ns, beside_ns = self._noted
        if noted_opened_ns == opened_ns:
            return beside_ns + (now - noted_ns if beside_ns and STEP in self._opened else 0)
        is_beside = self._may_go_on(opened_ns) and (STEP in self._opened or self._sections[STEP].opened_ns > opened_ns)
        self._late_ns = opened_ns if is_beside else 0
        return now - opened_ns if is_beside else 0

    def of_left(self, opened_ns: int, now: int) -> int:
        """Return the same for one that an exception has left: no save of it is noted any more."""
        beside_ns, self._late_ns = self.of_closed(opened_ns, now), 0
        return beside_ns

    def _may_go_on(self, since_ns: int) -> bool:
        step = self._sections.get(STEP)
        if step is None:
            return False
        return step.opened_ns > since_ns or not _is_main_thread()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class CheckpointingSection(Section):
    """The section ``checkpointing``, of which each closing is looked at."""

    __slots__ = ("_beside",)

    def __init__(self, name: str, deadline_word: int, row: FigureRow, beside: SavesBesideSteps) -> None:
        super().__init__(name, deadline_word, row)
        self._beside = beside
        self.notable_ns = -1

    def note_long(self, took_ns: int, figures: memoryview) -> None:
        """Note any duration, not only a long one."""
        super().note_long(took_ns, figures)
        self.notable_ns = -1
        if beside_ns := self._beside.of_closed(self.opened_ns, self.opened_ns + took_ns):
            figures[BESIDE] += beside_ns

    def note_left(self, now: int, beside_ns: int, figures: memoryview) -> None:
        """Note only how long it has held up the steps: :data:`BESIDE` is a part of the durations that are counted."""
        super().note_left(now, beside_ns + self._beside.of_left(self.opened_ns, now), figures)
