"""SaveSection: the section ``checkpointing``, which is open while any thread is saving."""

from __future__ import annotations

import contextlib
from threading import get_ident

from resilience_core._saves_by_thread import SavesByThread
from resilience_core.errors import SectionError, UnconfiguredSectionError
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import keeping_on_record
from resilience_core.monitoring.handled import exception
from resilience_core.plugins.section_names import CHECKPOINTING

__all__ = ["SaveSection", "ignore_if_done"]


def ignore_if_done(error: SectionError) -> None:
    """Ignore that a section is open, or closed, already: training code or another thread has done it.

    Raises:
        UnconfiguredSectionError: If ``error`` is one.
    """
    if isinstance(error, UnconfiguredSectionError):
        raise error


class SaveSection:
    """The saves of all threads and the section that they share.

    A section ``checkpointing`` that training code has opened by itself is left alone.
    """

    def __init__(self) -> None:
        self.saves = SavesByThread()
        self._is_ours = False

    def forget(self) -> None:
        """Prepare for another run: saves that are still in progress do not belong to it."""
        self.saves.abandon_all()
        self._is_ours = False

    def update(self, client: RankMonitorClient) -> None:
        """Open the section if any thread is saving, else close it.

        Threads may call this at the same time. Each checks again after every change, so the last one leaves the section
        in the right state. A lock could stay locked after a fork, or after an exception in a signal handler.

        Raises:
            UnconfiguredSectionError: The configuration names sections, but not this one.
        """
        for _ in range(10):  # bounded: in a forked process the client ignores all calls
            is_open = CHECKPOINTING in client.open_sections
            if bool(self.saves.depths) == is_open or not (self.saves.depths or self._is_ours):
                return
            try:
                if is_open:
                    self._is_ours = False  # before: a thread that begins to save meanwhile opens it for itself
                    client.end_section(CHECKPOINTING)
                else:
                    self._is_ours = True
                    with keeping_on_record(exception()):  # a framework may save while it handles one
                        client.start_section(CHECKPOINTING)
                    self._is_ours = True  # again: another thread may have been about to close the one before
            except SectionError as error:
                ignore_if_done(error)
            except BaseException:  # of a signal handler: whether the section was closed is not known
                self._is_ours = True
                raise

    def end(self, client: RankMonitorClient, thread: int, error: BaseException | None) -> None:
        """End a save of a thread; :meth:`update` follows, and opens the section anew for saves that began later."""
        is_oldest = self.saves.is_oldest(thread) and self.saves.is_outermost(thread)
        self.saves.end(thread)
        with client.leaving_sections() if error is not None else contextlib.nullcontext():
            if is_oldest:
                self._close_for_later_saves(client)
            if error is not None:
                self.update(client)  # while it is known that an exception leaves the section

    def abandon(self, client: RankMonitorClient) -> None:
        """Drop the saves of this thread, whose end was not reported; :meth:`update` follows, as after :meth:`end`."""
        is_oldest = self.saves.is_oldest(get_ident())
        if self.saves.abandon() and is_oldest:
            self._close_for_later_saves(client)

    def _close_for_later_saves(self, client: RankMonitorClient) -> None:
        if self._is_ours:
            try:
                client.end_section(CHECKPOINTING)
            except SectionError:
                pass  # another thread has closed it
