"""What a rank leaves when an exception leaves its loop: type, message, traceback, and where it was raised.

The record goes into the rank's cell, where monitor and launcher find it before the process has ended: a rank that
raises and then takes seconds to tear down is known for what it is while its peers already fail or hang for want of
it. Recording happens on the error path only and never raises into training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.cell_view import CellView

__all__ = [
    "ErrorRecord",
    "as_text",
    "error_from_json",
    "is_consequence",
    "parse_error",
]

_CONSEQUENCES = re.compile(
    r"gloo/transport/|Connection (closed|reset) by peer|Broken pipe|monitoredBarrier"
    r"|failed to recv, got 0 bytes|Connection was likely closed|client socket has timed out|[Ss]ocket [Tt]imeout"
    r"|wait timeout after \d+ ?ms|[Tt]imed out (after|waiting)|Watchdog caught collective operation timeout"
    r"|NCCL communicator was aborted|ncclRemoteError|remote process exited or there was a network error"
)


class ErrorRecord(NamedTuple):
    """One exception, as the rank that raised it wrote it down."""

    type: str
    message: str
    traceback: str = ""
    section: str | None = None
    """The section opened last when it was first seen; None when out of section."""
    iteration: int | None = None
    at_ns: int = 0
    """``CLOCK_MONOTONIC`` when it was first seen: leaving a section, a step, the loop or the program."""
    noted_ns: int = 0
    """When it was noted last, on its way out."""
    is_consequence: bool = False
    """It only says that a peer was lost or did not answer: the mark of a victim."""
    is_permanent: bool = False
    """A restart cannot mend it: a mistake in how the job was configured."""
    thread: str | None = None
    """The thread that it ended, where that is not the main thread."""

    def first_line(self) -> str:
        """Type and first line of the message, and the thread, unless that is the main one."""
        lines = self.message.strip().splitlines()
        where = f" (in thread {self.thread!r})" if self.thread is not None else ""
        return (f"{self.type}: {lines[0]}" if lines else self.type) + where

    def is_current(self, view: CellView) -> bool:
        """Whether the rank has done nothing since; it caught the exception and went on otherwise."""
        opened_ns = max((section.opened_ns for section in view.sections), default=0)
        return opened_ns <= self.noted_ns and view.iteration in (-1, self.iteration)


def is_consequence(kind: str, message: str) -> bool:
    """Whether an exception of torch's communication says no more than that a peer was lost or did not answer."""
    return (kind == "RuntimeError" or kind.startswith("torch.")) and bool(_CONSEQUENCES.search(message))


# ---- in the rank ----------------------------------------------------------------------------------------


def as_text(record: ErrorRecord) -> str:
    """As JSON that fits into the cell; a traceback that is too long loses its middle."""
    for room in (12_000, 6_000, 2_000, 0):
        text = json.dumps(record._replace(traceback=_without_middle(record.traceback, room))._asdict())
        if len(text) <= ERROR_TEXT.size:
            return text
    return json.dumps(record._replace(traceback="", message=record.message[:200])._asdict())


def _without_middle(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[: room // 3]}\n  ... {len(text) - room} characters ...\n{text[len(text) - (room - room // 3) :]}"


# ---- in monitor and launcher ----------------------------------------------------------------------------


def parse_error(text: str | None) -> ErrorRecord | None:
    """Read a record; None when there is none, or it is not one."""
    if not text:
        return None
    try:
        return error_from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        return None


def error_from_json(document: Mapping[str, Any]) -> ErrorRecord:
    """Return the inverse of ``_asdict()``; keys of another version are passed over.

    Raises:
        TypeError: It is no record.
    """
    record = ErrorRecord(**{key: document[key] for key in ErrorRecord._fields if key in document})
    for value, kind in ((record.type, str), (record.message, str), (record.traceback, str), (record.at_ns, int)):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return record
