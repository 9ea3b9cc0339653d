"""The ``with`` block of a section."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType

from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.client_state import ClientState
from resilience_core.monitoring.error_capture import note_error

__all__ = ["SectionBlock"]


class SectionBlock(contextlib.ContextDecorator):
    """A ``with`` block, or a decorator, that opens a section and closes it, on an exception, too.

    Args:
        name: The section's.
        start: Opens it.
        end: Closes it.
        state: The client's, which knows whether the section is open.
    """

    __slots__ = ("_end", "_name", "_start", "_state")

    def __init__(
        self,
        name: str,
        start: Callable[[str], None],
        end: Callable[[str], None],
        state: ClientState,
    ) -> None:
        self._name = name
        self._start = start
        self._end = end
        self._state = state

    def __enter__(self) -> None:
        self._start(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            note_error(error)  # while the section is still open
        # end_all_sections() inside the block, or a shutdown, may have closed it; on another thread, even now.
        if self._name in self._state.open:
            with contextlib.suppress(RankMonitorClientError):
                self._end(self._name)
