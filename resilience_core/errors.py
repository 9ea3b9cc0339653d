"""The exception tree. Every error that this project raises on purpose is a :class:`ResilienceError`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

__all__ = [
    "ConfigError",
    "PluginError",
    "RankMonitorClientError",
    "ResilienceError",
    "SectionError",
    "StateFileError",
    "StopTraining",
    "TimeoutsNotReadyError",
    "UnconfiguredSectionError",
]


class ResilienceError(Exception):
    """Base of everything raised on purpose by this project."""

    is_permanent: ClassVar[bool] = False
    """A restart cannot fix it: the launcher ends the job instead of trying again."""


class ConfigError(ResilienceError, ValueError):
    """A configuration cannot be used: the message names the place, the value and the fix."""

    is_permanent = True


class PluginError(ResilienceError):
    """A bus plugin cannot be registered, most often because a hook's name or an argument is misspelt."""

    is_permanent = True


class RankMonitorClientError(ResilienceError):
    """The rank's monitor client was used in a way, or at a time, that cannot work."""


class SectionError(RankMonitorClientError):
    """A mistake in the training code: a section opened twice, closed unopened, or not configured.

    The event bus raises this one to the training code, since hiding it would silently switch protection
    off.
    """


class UnconfiguredSectionError(SectionError):
    """A section is used that the configuration does not name although it names others."""

    is_permanent = True


class TimeoutsNotReadyError(RankMonitorClientError):
    """Timeouts were to be calculated before enough intervals had been observed."""


class StateFileError(ResilienceError):
    """A file of learned timeouts exists but cannot be used."""


class StopTraining(ResilienceError, SystemExit):
    """Raised by a bus plugin to end training on purpose; the bus lets it through.

    Raise it in the main thread. In another thread it ends that thread only, as any exception does: its traceback is
    printed, and the training goes on. Raise it alone, too: an exception group with this in it counts as any other
    exception, so the job is restarted.

    Where nothing catches it, the process ends with ``exit_code``, as with ``sys.exit``, and the launcher does not
    restart the job: it prints the reason, asks the other ranks to end as after any failure, and ends with 1. So
    whatever all ranks are to save has to be saved, on every rank, before this is raised. A rank that catches it goes
    on, and what ends it later decides; one whose ``exit_code`` is 0 has ended as any other that ends with 0.

    Args:
        reason: One sentence for people: who asked, and why.
        exit_code: What the process should exit with when nothing else decides.
        is_final: Whether the job should end, too. Otherwise the launcher handles the end of this process as any other
            failure.
    """

    _when_uncaught: ClassVar[Callable[[StopTraining], None] | None] = None
    """Called with the exception that ends the process; :mod:`resilience_core.monitoring.error_capture` records it."""

    # Defaults for a subclass whose __init__ does not call this one.
    reason: str = "no reason was given"
    exit_code: int = 1
    is_final: bool = True

    def __init__(self, reason: str = "no reason was given", exit_code: int = 1, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code
        self.is_final = is_final

    @property
    def code(self) -> int:
        """The exit code, by the name under which the interpreter asks an uncaught ``SystemExit`` for it.

        That is how it is known that nothing has caught the exception: ``sys.excepthook`` is not called for a
        ``SystemExit``, but the interpreter reads ``code`` once the outermost frame of the main thread was left, before
        it waits for threads and runs what ``atexit`` has. Whoever else reads it has a frame.
        """
        tell = StopTraining._when_uncaught
        if tell is not None and not _has_caller():
            tell(self)
        return self.exit_code

    @code.setter
    def code(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - it can be set, too
        self.exit_code = value


def _has_caller() -> bool:
    """Return whether the caller of this function was itself called from a frame of Python."""
    try:
        sys._getframe(2)
    except ValueError:
        return False
    return True
