"""What is logged in the launcher's process goes to its console; ``log_level`` decides how much."""

from __future__ import annotations

import functools
import logging

from launcher.records import console

__all__ = ["take_over_logging", "warn_once"]

logger = logging.getLogger(__name__)


class _Handler(logging.Handler):
    """Log records, said."""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - a record of somebody else's that cannot be formatted
            text = f"{record.levelname} {record.name}: {record.msg!r}"
        console.announce(text, level=max(record.levelno, console.threshold()))


def take_over_logging(level: int | str) -> None:
    """Send what is logged in this process to the console: ours from ``level`` on, others' from WARNING on.

    Python's own last resort writes to standard error itself, and waits for it. Where handlers were set up
    already, this process is a guest in somebody's program, and they are left alone.

    Args:
        level: The ``log_level`` of the configuration, a name or a number.
    """
    ours = logging.getLogger("launcher")
    ours.setLevel(level)
    console.set_level(ours.level)
    root = logging.getLogger()
    if not root.handlers:
        handler = _Handler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        logging.captureWarnings(True)


@functools.lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a warning, and nothing when the same text is given again in this process."""
    logger.warning(text)
