"""``log_level`` and ``log_format`` in a rank, which never override the training's own logging.

Three rules. A logger of ours that the training has given a level keeps it. Where the training has configured logging
(the root logger has handlers), our records go there; our loggers then get the level only if somebody chose one, since
the default must not open a log that was meant for warnings. Where nobody has configured logging, Python shows warnings
alone, whatever a level says; there our loggers get the level and one handler on standard error, which stops writing as
soon as the root logger has a handler of its own.

That handler names the rank first, with its node where the job has several: ``rank 3[node1]: WARNING ...``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

__all__ = ["follow_log_settings"]

_OURS = ("resilience_core", "adapters", "straggler")
_LONGEST_OBJECT = 4096
"""A longer line may be torn by what others write into the same pipe (PIPE_BUF)."""


class _UnlessConfigured(logging.Handler):
    """Writes to standard error as long as nobody has configured logging."""

    def __init__(self) -> None:
        super().__init__()
        self.log_format = "text"

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            try:
                text = record.getMessage()
            except Exception as error:  # noqa: BLE001 - what is logged may be foreign, and must not disturb training
                text = f"{record.msg} (its arguments have no text: {type(error).__name__})"
            if sys.stderr is not None:  # as under pythonw, or where the training has taken it away
                line = _as_json(record, text) if self.log_format == "json" else _as_text(record, text)
                sys.stderr.write(line)
        except Exception:  # noqa: BLE001 - closed, full, or the training's own; no message may disturb training
            pass


_handler = _UnlessConfigured()


def follow_log_settings(level: int | str, log_format: str, *, is_given: bool) -> None:
    """Let our loggers in this process log at a level, and in a form.

    Args:
        level: The configuration's.
        log_format: Likewise, ``text`` or ``json``.
        is_given: Whether somebody chose the level.
    """
    is_configured = bool(logging.getLogger().handlers)
    _handler.log_format = log_format
    for name in _OURS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and (is_given or not is_configured):
            logger.setLevel(level)
        if not is_configured and not logger.handlers:
            logger.addHandler(_handler)


def _as_text(record: logging.LogRecord, text: str) -> str:
    """Return a record as lines that begin with the rank, where this is one; lines that follow are indented."""
    rank = os.environ.get("RANK", "")
    node = f"[{os.uname().nodename}]" if _has_other_nodes() else ""
    prefix = f"rank {rank}{node}: " if rank.isdigit() else ""
    return f"{prefix}{record.levelname} {record.name}: " + text.replace("\n", f"\n{prefix}    ") + "\n"


def _as_json(record: logging.LogRecord, text: str) -> str:
    """Return a record as one JSON object, with the fields of ``launcher.records.console_lines``."""
    at = time.localtime(record.created)
    zone = time.strftime("%z", at)
    document = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', at)}.{int(record.msecs):03d}{zone[:3]}:{zone[3:]}",
        "level": record.levelname,
        "source": "client",
        "node": os.uname().nodename,
        "rank": int(rank) if (rank := os.environ.get("RANK", "")).isdigit() else None,
        "event": "log",
        "logger": record.name,
        "text": text,
    }
    line = json.dumps(document) + "\n"
    while len(line) > _LONGEST_OBJECT and len(text) > 1:
        text = text[: len(text) // 2]
        line = json.dumps({**document, "text": f"{text} ...", "is_cut": True}) + "\n"
    return line


def _has_other_nodes() -> bool:
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")
    return nodes.isdigit() and int(nodes) > 1
