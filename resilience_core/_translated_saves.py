"""The part of the translator that fires the events of saves, for each thread that makes them."""

from __future__ import annotations

import abc
import logging
from threading import get_ident
from typing import NamedTuple

from resilience_core._iterations import whole_number
from resilience_core._saves_by_thread import SavesByThread
from resilience_core._wrapped_methods import Wrapping
from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import CheckpointKind
from resilience_core.monitoring.error_capture import note_error

__all__ = ["OpenSave", "Saving"]

logger = logging.getLogger(__name__)


class OpenSave(NamedTuple):
    """The outermost save in progress of a thread; compared by identity."""

    thread: int
    iteration: int
    kind: CheckpointKind


class Saving(Wrapping):
    """Fires events for the outermost save of each thread. The base of :class:`.Translator` alone."""

    bus: EventBus
    completed_steps: int
    open_step: int | None
    open_eval: tuple[int, int] | None

    def __init__(self) -> None:
        super().__init__()
        self._has_told_of_an_unfinished_save = False
        self._saves = SavesByThread()

    @abc.abstractmethod
    def _end_steps_that_were_left(self) -> None:
        """End steps that an exception has left, where it is being handled now."""

    def _forget_saves(self) -> None:
        self._saves.abandon_all()
        self._begun: dict[int, OpenSave] = {}  # by thread

    def _end_unfinished_save(self, iteration: object) -> None:
        """End this thread's save before a step, if its end was not reported: a signal handler may have raised."""
        if not self._saves.abandon():
            return  # it is a save of another thread
        _, saved, kind = self._begun.pop(get_ident(), OpenSave(0, self.completed_steps, "save"))
        if not self._has_told_of_an_unfinished_save:
            self._has_told_of_an_unfinished_save = True
            logger.warning(
                "step %s begins before the save of iteration %s has ended: the save counts as ended, and the rest of "
                "it has no limit except the out-of-section timeout (said once). Save between steps, or inside a step",
                iteration,
                saved,
            )
        left = InterruptedError("the end of the save was not reported")
        self.bus.checkpoint_end(iteration=saved, kind=kind, error=left)

    def checkpoint_start(
        self, kind: CheckpointKind = "save", iteration: int | None = None, *, may_have_left_a_step: bool = True
    ) -> None:
        """Begin saving; inside another save of the same thread this is part of it.

        Args:
            kind: What is done.
            iteration: Training steps completed so far; None: as counted here.
            may_have_left_a_step: Whether an exception that is being handled may have left a step without its end. False
                for an adapter that hears the end of each step in any case.
        """
        if not self.is_running or not self._saves.begin():
            return
        if may_have_left_a_step and (self.open_step is not None or self.open_eval is not None):
            self._end_steps_that_were_left()
        iteration = whole_number("iteration of a checkpoint", iteration, self.completed_steps)
        self._begun[get_ident()] = OpenSave(get_ident(), iteration, kind)
        try:
            self.bus.checkpoint_start(iteration=iteration, kind=kind)
        except BaseException as error:
            self.checkpoint_end(error=error)
            raise

    def open_save(self) -> OpenSave | None:
        """Return the save in progress in this thread, for :meth:`checkpoint_end`."""
        return self._begun.get(get_ident())

    def checkpoint_end(
        self,
        kind: CheckpointKind | None = None,
        error: BaseException | None = None,
        *,
        save: OpenSave | None = None,
    ) -> None:
        """End saving.

        Args:
            kind: What it was, where the framework says so only now; as it began when None.
            error: What went wrong, or None.
            save: The one that ends, from :meth:`open_save`; nothing happens if it has ended before. When None, that of
                this thread.
        """
        if error is not None:
            note_error(error)
        thread = self._saves.thread_of_end() if save is None else save.thread
        if thread is None:
            self._saves.forget_abandoned()
        if thread is None or (save is not None and self._begun.get(thread) is not save) or not self._saves.end(thread):
            return
        _, iteration, began_as = self._begun.pop(thread, OpenSave(thread, self.completed_steps, "save"))
        self.bus.checkpoint_end(iteration=iteration, kind=kind or began_as, error=error)
