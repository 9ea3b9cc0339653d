"""GuardedHook: what the user's hook decides on a report; what it does wrong is logged once and decides nothing.

A hook may take long, never return, or raise anything, ``SystemExit`` too. Beside training it is therefore called on a
thread of its own, and nobody waits for it: the thread that makes reports also answers the other ranks, and training
waits for those answers. On a report that the script waits for it is called in place.
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

_NOTHING = "nothing is decided on the report"


class GuardedHook:
    """Asks a hook, and raises nothing."""

    def __init__(self) -> None:
        self._said: set[str] = set()
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
        if hook is None or self._misses(hook):
            return
        self._is_busy = True

        def call() -> None:
            decision = self._checked(hook, *_called(hook, report))
            self._is_busy = False
            if decision:
                then(decision)

        _on_a_thread(carried(call))

    def ask(self, hook: Callable[[Report], Mapping[str, Any]] | None, report: Report) -> Mapping[str, Any]:
        """Return what a hook decides on a report, empty where there is none or it does something wrong."""
        if hook is None or self._misses(hook):
            return {}
        return self._checked(hook, *_called(hook, report))

    def _misses(self, hook: Callable[..., Any]) -> bool:
        """Return whether a hook still works on an earlier report, which is said."""
        if self._is_busy:
            self._say(hook, "takes longer than the time between two reports; it is not asked on those that it misses")
        return self._is_busy

    def _checked(self, hook: Callable[..., Any], decision: Any, error: BaseException | None) -> Mapping[str, Any]:
        """Return a decision that is one, else nothing, which is said."""
        if error is not None:
            self._say(hook, f"raised {type(error).__name__}: {error}; {_NOTHING}", error)
            return {}
        try:
            if isinstance(decision, Mapping):
                found: dict[str, Any] = dict(decision)
                json.dumps(found)
                return found
        except (TypeError, ValueError, RecursionError) as error:
            self._say(hook, f"returned {decision!r:.200}, which is not JSON ({error}); {_NOTHING}")
        else:
            self._say(hook, f"returned {decision!r:.200}, and no mapping ({{}} decides nothing); {_NOTHING}")
        return {}

    def _say(self, hook: Callable[..., Any], what: str, error: BaseException | None = None) -> None:
        kind = what.partition(" ")[0]  # each is said once, and one does not hide another
        if kind in self._said:
            return
        self._said.add(kind)
        # The hook's own frames: the first one is that of this module.
        trace = None if error is None or error.__traceback__ is None else error.__traceback__.tb_next
        logger.warning(
            "straggler: the decision hook %s %s (said once)",
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
