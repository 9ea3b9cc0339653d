"""GuardedHook: what the user's hook decides on a report; what it does wrong is logged once and decides nothing.

A hook may take its time, or never return, and raise anything, ``SystemExit`` too. It is called on a thread of its own,
so that the one that makes reports goes on: beside training nobody waits for it, and it is not asked on a report while
it still decides on the one before.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from straggler.pacing import carried

if TYPE_CHECKING:
    from straggler.reporting.report import Report

__all__ = ["GuardedHook"]

logger = logging.getLogger(__name__)

_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.05


class GuardedHook:
    """Asks a hook, and raises nothing."""

    def __init__(self) -> None:
        self._has_failed = False
        self._is_busy = False

    def begin(
        self,
        hook: Callable[[Report], Mapping[str, Any]] | None,
        report: Report,
        then: Callable[[Mapping[str, Any]], object],
    ) -> None:
        """Ask a hook without waiting for it.

        Args:
            hook: Of the user; None: nothing is asked.
            report: What it is given.
            then: Called on the hook's thread with what it decides, unless that is empty.
        """
        if hook is None:
            return
        if self._is_busy:
            self._say(hook, "still decides on a report when the next one is there, on which it is not asked")
            return
        self._is_busy = True

        def call() -> None:
            decision = self._checked(hook, *_called(hook, report))
            self._is_busy = False
            if decision:
                then(decision)

        _on_a_thread(carried(call))

    def ask(
        self,
        hook: Callable[[Report], Mapping[str, Any]] | None,
        report: Report,
        meanwhile: Callable[[], float] = lambda: _LONGEST_LOOK,
    ) -> Mapping[str, Any]:
        """Return what a hook decides on a report, empty where there is none or it does something wrong.

        Args:
            hook: Of the user.
            report: What it is given.
            meanwhile: Called again and again until it has decided; returns the seconds until the next call.
        """
        if hook is None:
            return {}
        done, told = threading.Event(), list[tuple[Any, BaseException | None]]()

        def call() -> None:
            told.append(_called(hook, report))
            done.set()

        _on_a_thread(carried(call))
        pause = 0.0
        while not done.wait(pause):
            pause = min(max(meanwhile(), _SHORTEST_LOOK), _LONGEST_LOOK)
        return self._checked(hook, *told[0])

    def _checked(self, hook: Callable[..., Any], decision: Any, error: BaseException | None) -> Mapping[str, Any]:
        """Return a decision that is one, else nothing, which is said."""
        if error is not None:
            self._say(hook, f"raised {type(error).__name__}: {error}", error)
            return {}
        try:
            if isinstance(decision, Mapping):
                found: dict[str, Any] = dict(decision)
                json.dumps(found)
                return found
        except (TypeError, ValueError, RecursionError) as error:
            self._say(hook, f"returned {decision!r:.200}, which is not JSON ({error})")
        else:
            self._say(hook, f"returned {decision!r:.200}, and no mapping; {{}} decides nothing")
        return {}

    def _say(self, hook: Callable[..., Any], what: str, error: BaseException | None = None) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        # The hook's own frames: the first one is that of this module.
        trace = None if error is None or error.__traceback__ is None else error.__traceback__.tb_next
        logger.warning(
            "straggler: the decision hook %s %s; nothing is decided on the report (said once)",
            getattr(hook, "__qualname__", repr(hook)),
            what,
            exc_info=None if error is None else (type(error), error, trace),
        )


def _called(hook: Callable[[Report], Any], report: Report) -> tuple[Any, BaseException | None]:
    """Return what a hook returns, and what it raises."""
    try:
        return hook(report), None
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
        return None, error


def _on_a_thread(call: Callable[[], None]) -> None:
    try:
        threading.Thread(target=call, name="straggler-decides", daemon=True).start()
    except RuntimeError:  # the system refuses a thread, or the interpreter ends
        call()
