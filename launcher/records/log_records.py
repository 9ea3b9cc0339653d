"""What is logged in the launcher's process goes to its console; ``log_level`` decides how much."""

from __future__ import annotations

import functools
import logging

from launcher.records import console

__all__ = ["take_over_logging", "warn_once"]

logger = logging.getLogger(__name__)

_TORCH = "torch"


class _Handler(logging.Handler):
    """Log records, said."""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - a record of somebody else's that cannot be formatted
            text = f"a record that cannot be formatted (line {record.lineno} of {record.pathname})"
        console.announce(text, level=record.levelno, event="log", facts={"logger": record.name})


def take_over_logging(level: int | str) -> None:
    """Send what is logged in this process to the console: ours from ``level`` on, others' from WARNING on at most.

    Python's own last resort, and torch's handlers, write to standard error themselves, and wait for it. Where handlers
    were set up already, this process is a guest in somebody's program, and they are left alone.

    Args:
        level: The ``log_level`` of the configuration, a name or a number.
    """
    ours = logging.getLogger("launcher")
    ours.setLevel(level)
    console.set_level(ours.level)
    root = logging.getLogger()
    if not root.handlers:
        handler = _Handler()
        root.addHandler(handler)
        logging.captureWarnings(True)
        _take_over_torchs()


def _take_over_torchs() -> None:
    """Let torch's loggers pass their records on instead of writing them; their levels stay (``LOGLEVEL``, TORCH_LOGS).

    Ranks are not touched: they are new interpreters, or forks of a process that has not come here.
    """
    for name in list(logging.Logger.manager.loggerDict):
        if name.partition(".")[0] == _TORCH:
            torchs = logging.getLogger(name)
            for handler in list(torchs.handlers):
                if type(handler) is logging.StreamHandler:
                    torchs.removeHandler(handler)
                    torchs.propagate = True


@functools.lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a warning, and nothing when the same text is given again in this process."""
    logger.warning(text)
