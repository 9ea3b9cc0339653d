"""``log_level`` in a rank, which never overrides the training's own logging.

Three rules. A logger of ours that the training has given a level keeps it. Where the training has configured logging
(the root logger has handlers), our records go there; our loggers then get the level only if somebody chose one, since
the default must not open a log that was meant for warnings. Where nobody has configured logging, Python shows warnings
alone, whatever a level says; there our loggers get the level and one handler on standard error, which stops writing as
soon as the root logger has a handler of its own.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["follow_log_level"]

_OURS = ("resilience_core", "adapters", "straggler")


class _UnlessConfigured(logging.Handler):
    """Writes to standard error as long as nobody has configured logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            text = record.getMessage()
        except Exception as error:  # noqa: BLE001 - what is logged may be foreign, and must not disturb training
            text = f"{record.msg} (its arguments have no text: {type(error).__name__})"
        try:
            if sys.stderr is not None:  # as under pythonw, or where the training has taken it away
                sys.stderr.write(f"{record.levelname} {record.name}: {text}\n")
        except Exception:  # noqa: BLE001 - closed, full, or the training's own; no message may disturb training
            pass


_handler = _UnlessConfigured()


def follow_log_level(level: int | str, *, is_given: bool) -> None:
    """Let our loggers in this process log at a level.

    Args:
        level: The configuration's.
        is_given: Whether somebody chose it.
    """
    is_configured = bool(logging.getLogger().handlers)
    for name in _OURS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and (is_given or not is_configured):
            logger.setLevel(level)
        if not is_configured and not logger.handlers:
            logger.addHandler(_handler)
