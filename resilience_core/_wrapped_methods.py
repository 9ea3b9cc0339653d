"""The half of the translator that wraps methods of a framework, for what no callback of it tells."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from resilience_core._adapter_support import Cleanups
from resilience_core.hookspecs import CheckpointKind

__all__ = ["Wrapping"]


class Wrapping(abc.ABC):
    """Wraps methods until the run ends. Only :class:`resilience_core.translator.Translator` derives from it."""

    def __init__(self) -> None:
        self.is_running = False
        self._cleanups = Cleanups()

    @abc.abstractmethod
    def checkpoint_start(self, kind: CheckpointKind = "save") -> None:
        """Begin saving."""

    @abc.abstractmethod
    def checkpoint_end(self, kind: CheckpointKind | None = None, error: BaseException | None = None) -> None:
        """End saving."""

    @contextlib.contextmanager
    def saving(self, kind: CheckpointKind = "save") -> Iterator[None]:
        """Make a ``with`` block around everything that saving does. One inside another is part of it."""
        counts = self.is_running
        self.checkpoint_start(kind)
        try:
            yield
        except BaseException as error:
            if counts:
                self.checkpoint_end(error=error)
            raise
        if counts:
            self.checkpoint_end()

    def wrap_saving(self, owner: object, method: str, kind: CheckpointKind = "save") -> None:
        """Put :meth:`saving` around a method of one object until the run ends."""

        def around(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            with self.saving(kind):
                return original(*arguments, **named)

        self.wrap(owner, method, around)

    def wrap(self, owner: object, method: str, around: Callable[..., Any]) -> None:
        """Replace a method of one object, where it has one of that name, until the run ends.

        Args:
            owner: The object; its class is left alone.
            method: The method's name.
            around: Called with the original and the arguments.
        """
        self._cleanups.wrap(owner, method, around, lambda: self.is_running)

    def add_cleanup(self, undo: Callable[[], None]) -> None:
        """Call this when the run ends, however it ends; what was added last is called first."""
        self._cleanups.add(undo)
