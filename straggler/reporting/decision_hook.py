"""GuardedHook: what the user's hook decides on a report; what it does wrong is logged once and decides nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from straggler.reporting.report import Report

__all__ = ["GuardedHook"]

logger = logging.getLogger(__name__)


class GuardedHook:
    """Asks a hook, and raises nothing."""

    def __init__(self) -> None:
        self._has_failed = False

    def ask(self, hook: Callable[[Report], Mapping[str, Any]] | None, report: Report) -> Mapping[str, Any]:
        """Return what a hook decides on a report, empty where there is none or it does something wrong."""
        if hook is None:
            return {}
        try:
            decision: Any = hook(report)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
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

    def _say(self, hook: Callable[..., Any], what: str, error: Exception | None = None) -> None:
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
