"""What a rank leaves when an exception leaves its loop: type, message, traceback, and where it was raised.

The record goes into the rank's cell, where monitor and launcher find it before the process has ended: a rank that
raises and takes seconds to tear down is known as the cause while its peers, which wait for it, already fail or hang.
Recording happens on the error path only and never raises into training.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.figures import CHECKPOINTING

__all__ = [
    "LONGEST_EARLIER",
    "VERSION",
    "ErrorRecord",
    "as_text",
    "error_from_json",
    "is_consequence",
    "parse_error",
]

VERSION = 5
"""Of the text in a cell; raised with every change of its keys."""

_AT_LENGTH_NS = 60_000_000_000
"""What a rank raises this long after another exception has hardly to do with that."""

LONGEST_EARLIER = 300

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
    """It only says that a peer was lost or did not answer, so this rank is a victim."""
    is_permanent: bool = False
    """A restart cannot fix it: a mistake in how the job was configured."""
    is_deliberate: bool = False
    """It ends training on purpose (``StopTraining``), so a restart would only come to the same end.

    As long as it is neither ``is_uncaught`` nor withdrawn it is on its way out, or something still refers to it.
    """
    is_uncaught: bool = False
    """Nothing has caught it: it has left the outermost frame of the process."""
    thread: str | None = None
    """The thread that it ended, where that is not the main thread."""
    is_step_done: bool | None = None
    """The training step that the rank had begun last had ended when it was first seen; None where steps are not told
    of, or none has ended yet."""
    earlier: str | None = None
    """What the rank had raised, and caught, right before, or was handling when it exited: the first line of that."""
    is_caught: bool = False
    """The rank has caught it, and has ended handling it; something may still refer to it."""

    def first_line(self) -> str:
        """Type and first line of the message, the thread, unless that is the main one, and what was raised before."""
        lines = self.message.strip().splitlines()
        where = f" (in thread {self.thread!r})" if self.thread is not None else ""
        before = f" (after {self.earlier})" if self.earlier is not None else ""
        return (f"{self.type}: {lines[0]}" if lines else self.type) + where + before

    def is_current(self, view: CellView) -> bool:
        """Return whether the rank has done nothing since; it caught the exception and went on otherwise.

        Without sections and iterations its heartbeats tell, once it has caught the exception. One that saves after it
        has lost a peer has not gone on: the handler of the exception does that.
        """
        if self.is_caught and not self.is_consequence and view.last_heartbeat_ns > self.noted_ns:
            return False
        since = {section.name for section in view.sections if section.opened_ns > self.noted_ns}
        is_as_before = not since or (self.is_consequence and since == {CHECKPOINTING})
        return is_as_before and view.iteration in (-1, self.iteration)

    def may_be_why(self, view: CellView, exit_code: int | None) -> bool:
        """Return whether a rank may fail, or have failed, by it.

        A rank that has caught it, and has shown no other sign since, may wait for others as they do: then it fails by
        it only where it ends with 1, as a script does that has given up. The loss of a peer tells of a victim though it
        was caught.
        """
        return self.is_current(view) and (not self.is_caught or exit_code == 1 or self.is_consequence)

    def raised_after(self, before: ErrorRecord) -> ErrorRecord:
        """Return the record with what the rank had raised, and caught, right before.

        A script that keeps its exception, leaves the loop and ends by another one has failed by the first. Where that
        only said that a peer was lost, this rank is a victim.
        """
        if before.at_ns == self.at_ns or before[:2] == self[:2]:  # the same, on its way out, or raised in its course
            is_victim = before.is_consequence and before.earlier is not None
            return self._replace(
                earlier=before.earlier or self.earlier, is_consequence=self.is_consequence or is_victim
            )
        if self.at_ns - before.noted_ns > _AT_LENGTH_NS:
            return self
        earlier = before.earlier or before.first_line()[:LONGEST_EARLIER]
        return self._replace(earlier=earlier, is_consequence=self.is_consequence or before.is_consequence)


def is_consequence(kind: str, message: str) -> bool:
    """Return whether an exception of torch's communication only says that a peer was lost or did not answer."""
    return (kind == "RuntimeError" or kind.startswith("torch.")) and bool(_CONSEQUENCES.search(message))


# ---- in the rank ----------------------------------------------------------------------------------------


def as_text(record: ErrorRecord) -> str:
    """As JSON that fits into the cell; a traceback that is too long loses its middle."""
    for room in (12_000, 6_000, 2_000, 0):
        text = _json(record._replace(traceback=_without_middle(record.traceback, room)))
        if len(text) <= ERROR_TEXT.size:
            return text
    return _json(record._replace(traceback="", message=record.message[:200]))


def _json(record: ErrorRecord) -> str:
    return json.dumps({"version": VERSION, **record._asdict()})


def _without_middle(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[: room // 3]}\n  ... {len(text) - room} characters ...\n{text[len(text) - (room - room // 3) :]}"


# ---- in monitor and launcher ----------------------------------------------------------------------------


_TEXT, _TEXT_OR_NONE, _NUMBER, _TRUTH = (str,), (str, type(None)), (int,), (bool,)

_TYPES: dict[str, tuple[type, ...]] = {
    "type": _TEXT,
    "message": _TEXT,
    "traceback": _TEXT,
    "section": _TEXT_OR_NONE,
    "iteration": (int, type(None)),
    "at_ns": _NUMBER,
    "noted_ns": _NUMBER,
    "is_consequence": _TRUTH,
    "is_permanent": _TRUTH,
    "is_deliberate": _TRUTH,
    "is_uncaught": _TRUTH,
    "thread": _TEXT_OR_NONE,
    "is_step_done": (bool, type(None)),
    "earlier": _TEXT_OR_NONE,
    "is_caught": _TRUTH,
}


def parse_error(text: str | None) -> ErrorRecord | None:
    """Read the text of a cell; None if there is none, or if it is not what :func:`as_text` of this version writes."""
    try:
        plain = json.loads(text or "null")
        if not isinstance(plain, dict) or type(plain.get("version")) is not int or plain["version"] != VERSION:
            return None
        return error_from_json(plain)
    except (ValueError, TypeError, RecursionError):
        return None


def error_from_json(document: Mapping[str, Any]) -> ErrorRecord:
    """Return the inverse of ``_asdict()``; keys that are not known are ignored.

    Raises:
        TypeError: It is no record: a key is missing, or a value has the wrong type.
    """
    record = ErrorRecord(**{key: document[key] for key in ErrorRecord._fields if key in document})
    for name, value in record._asdict().items():
        if type(value) not in _TYPES[name]:
            raise TypeError(f"{name} is {reprlib.repr(value)}, a {type(value).__name__}")
    return record
