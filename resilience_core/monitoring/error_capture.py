"""Record the exception that leaves a rank's loop in its cell; never raises into training.

A ``StopTraining`` on its way out ends the job only if nothing catches it, so its record says more:

- *uncaught*: the interpreter has asked it for its exit code, with no frame left. Whatever follows (threads that are
  waited for, ``atexit``, a signal), it is what ends the process.
- *withdrawn*: it was freed and is not uncaught, so something has caught it, and training went on. The record is
  removed; what ends the process later has nothing to do with it.
- *neither*: it is passing ``finally`` blocks, or it was caught and something still refers to it: the handler is
  running, or has kept it. The two cannot be told apart from outside. Only how the process ends does
  (:mod:`launcher.agent.deliberate_stops`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from resilience_core.environment import CELL_VARIABLE
from resilience_core.errors import ResilienceError, StopTraining
from resilience_core.monitoring.error_words import message_of, tells_of_loss, type_name
from resilience_core.monitoring.first_seen import FirstSeen, first_seen, links_of, mark_seen, root_of, seen_at
from resilience_core.monitoring.freed import call_when_freed
from resilience_core.monitoring.process_hooks import detach_clients
from resilience_core.monitoring.propagation import Propagation
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import LONGEST_EARLIER, ErrorRecord, as_text, parse_error
from resilience_core.protocol.figures import DONE

__all__ = [
    "keeping_on_record",
    "leave_error",
    "look_for_caught",
    "note_error",
    "record_errors_in",
    "stop_recording",
    "tell_of_errors",
]


class _Hooked:
    """One of Python's exception hooks with ours in front, put back when nobody has put another in front of it."""

    def __init__(self, module: Any, ours: Callable[..., None]) -> None:
        self.module = module
        self.ours = ours
        self.before: Callable[..., Any] | None = None

    def install(self) -> None:
        if self.before is None:
            self.before = self.module.excepthook
            self.module.excepthook = self.ours

    def remove(self) -> None:
        # Where another hook was put in front (torch does so), ours stays behind it and only passes on.
        if self.module.excepthook is self.ours:
            self.module.excepthook = self.before
            self.before = None


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    note_error(error, is_uncaught=True)
    (_main.before or sys.__excepthook__)(kind, error, trace)


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        note_error(arguments.exc_value, thread=arguments.thread.name if arguments.thread is not None else "?")
    (_threads.before or threading.__excepthook__)(arguments)


_main = _Hooked(sys, _uncaught)
_threads = _Hooked(threading, _uncaught_in_thread)

_cell: Cell | None = None
_figures: memoryview | None = None
"""Of the rank: they tell which step was done last."""
_pid = 0
_under_way: tuple[int, Propagation] | None = None
"""When the exception noted last was first seen, until it was caught; None where that cannot be told."""
_tell: Callable[[], None] | None = None
_writing = threading.RLock()
"""Held by the main thread while it notes an exception, and by the one that looks whether it was caught."""


def record_errors_in(cell: Cell, figures: memoryview | None = None) -> None:
    """Record exceptions of this process in its cell from now on, uncaught ones by themselves.

    Args:
        cell: The rank's.
        figures: What it tells of its steps; None where there is nothing.
    """
    global _cell, _figures, _pid
    _cell, _figures, _pid = cell, figures, os.getpid()
    _main.install()
    _threads.install()


def stop_recording() -> None:
    """Undo :func:`record_errors_in`; what was recorded stays."""
    global _cell, _figures, _under_way, _tell
    _cell = _figures = _under_way = _tell = None
    _main.remove()
    _threads.remove()


def tell_of_errors(call: Callable[[], None]) -> None:
    """Call something whenever an exception was noted that :func:`look_for_caught` should look after from then on."""
    global _tell
    _tell = call


def look_for_caught() -> bool:
    """Note that the exception noted last was caught, if it was, though something still refers to it.

    For a thread that runs while the one of the exception waits for its peers.

    Returns:
        Whether to look again after a while.
    """
    global _under_way
    with _writing, contextlib.suppress(Exception):  # the cell may be closed, or damaged
        if _under_way is None or _cell is None or os.getpid() != _pid:
            return False
        (at_ns, propagation), _under_way = _under_way, None
        noted = _current(_cell, _cell.view())
        if noted is not None and noted.at_ns == at_ns:
            if not propagation.has_ended(lambda error: seen_at(error) == at_ns):
                _under_way = at_ns, propagation
            elif not noted.is_deliberate:  # how the process ends tells of one that was kept
                _note_freed(at_ns, _pid)
        return _under_way is not None
    return False


def note_error(error: BaseException, *, thread: str | None = None, is_uncaught: bool = False) -> None:
    """Record an exception that is leaving a section, a step, the loop or the program.

    One exception may be noted several times on its way out: the first time counts for when and where. One that is
    caught afterwards does no harm: whoever reads the record sees that the rank went on. Without a cell, and in a
    process that was forked from the rank, nothing is recorded.

    Args:
        error: The exception.
        thread: The thread that it ended, unless that is the main thread.
        is_uncaught: It has left the outermost frame of the program.
    """
    if _cell is None:
        return
    if os.getpid() == _pid:
        _note(_cell, error, thread, is_uncaught=is_uncaught and not isinstance(error, StopTraining))
    else:  # sections closed on the way out are the parent's; a C library has forked, unseen by Python
        detach_clients()


@contextlib.contextmanager
def keeping_on_record(error: BaseException | None) -> Iterator[None]:
    """Make a ``with`` block around the beginning of a save, which may be part of handling an exception.

    A rank that has begun something since its exception was noted has caught it and gone on, as far as can be seen from
    outside. Where the exception is still being handled, and the rank had done nothing else, it has not.

    Args:
        error: The exception that is being handled; None where there is none.
    """
    noted = _last_noted(error) if error is not None else None
    yield
    if noted is not None and _cell is not None:
        with contextlib.suppress(Exception):
            _cell.write_text(ERROR_TEXT, as_text(noted._replace(noted_ns=time.monotonic_ns())))


def _last_noted(error: BaseException) -> ErrorRecord | None:
    """Return the record of an exception, if it is the one that this rank is on its way out with."""
    if _cell is not None and os.getpid() == _pid:
        with contextlib.suppress(Exception):
            view = _cell.view()
            noted, seen = _current(_cell, view), first_seen(links_of(error, view), view)
            return noted if noted is not None and seen is not None and noted.at_ns == seen.at_ns else None
    return None


def leave_error(error: BaseException, variable: str = CELL_VARIABLE) -> None:
    """Record an exception that ends the process, in a rank that is not monitored, or no more."""
    if _cell is not None:
        note_error(error, is_uncaught=True)
    elif (cell := _own_cell(variable)) is not None:
        _note(cell, error, None, is_uncaught=not isinstance(error, StopTraining))


def _own_cell(variable: str = CELL_VARIABLE) -> Cell | None:
    """Return the cell of this process, opened anew; None where it has none."""
    with contextlib.suppress(CellError, OSError, ValueError):
        cell = Cell(os.environ.get(variable, ""))
        if cell.view().pid in (0, os.getpid()):
            return cell
        cell.close()
    return None


def _note(cell: Cell, error: BaseException, thread: str | None, *, is_uncaught: bool = False) -> None:
    if isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return
    try:
        with _writing:
            view = cell.view()
            before = _current(cell, view)
            if thread is not None and before is not None:
                return  # one is on its way out of the main thread; threads often fail of what that takes down
            record = _record(view, error, thread)._replace(is_uncaught=is_uncaught)
            if before is not None and not before.is_deliberate and not record.is_deliberate:
                record = record.raised_after(before)
            if not is_uncaught:
                call_when_freed(error, _note_freed, record.at_ns, os.getpid())
            cell.write_text(ERROR_TEXT, as_text(record))
            _follow(error, record)
    except Exception:  # noqa: BLE001 - __str__ of a foreign exception may do anything; training must not notice
        return


def _follow(error: BaseException, record: ErrorRecord) -> None:
    """Have it looked after whether this exception is caught, where somebody does, and the exception can be known."""
    global _under_way
    is_known = record.thread is None and seen_at(error) == record.at_ns
    propagation = Propagation.of(error) if _tell is not None and is_known else None
    _under_way = None if propagation is None else (record.at_ns, propagation)
    if propagation is not None and _tell is not None:
        _tell()


def _current(cell: Cell, view: CellView) -> ErrorRecord | None:
    """Return the record of what is on its way out of the main thread."""
    noted = parse_error(cell.read_text(ERROR_TEXT))
    return noted if noted is not None and noted.thread is None and noted.is_current(view) else None


def _stopped(stop: StopTraining) -> None:
    """Record the ``StopTraining`` that ends the process, also where monitoring was shut down or never used."""
    cell = _own_cell() if _cell is None else _cell if os.getpid() == _pid else None
    if cell is not None:
        _note(cell, stop, None, is_uncaught=True)


StopTraining._when_uncaught = _stopped


def _note_freed(at_ns: int, pid: int) -> None:
    """Note that an exception was caught, and a ``StopTraining`` taken back, unless it is uncaught or was replaced."""
    cell = None if os.getpid() != pid else _cell if _cell is not None else _own_cell()
    if cell is None:
        return
    with contextlib.suppress(Exception):  # it may run anywhere, also while another record is being written
        noted = parse_error(cell.read_text(ERROR_TEXT))
        if noted is not None and noted.at_ns == at_ns and not noted.is_uncaught:
            if noted.is_deliberate:
                cell.write_text(ERROR_TEXT, "")
            elif noted.thread is None:
                cell.write_text(ERROR_TEXT, as_text(noted._replace(is_caught=True)))
    if cell is not _cell:
        cell.close()


def _record(view: CellView, error: BaseException, thread: str | None) -> ErrorRecord:
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    now_ns = time.monotonic_ns()
    done = _figures[DONE] if _figures is not None else -1
    here = (now_ns, youngest.name if youngest else None, view.iteration, done == view.iteration if done >= 0 else None)
    links = links_of(error, view)
    at_ns, section, iteration, is_step_done = first = first_seen(links, view) or FirstSeen(*here)
    mark_seen(error, first)
    root = root_of(links)
    return ErrorRecord(
        type=type_name(error),
        message=message_of(error),
        traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
        section=section,
        iteration=iteration if iteration >= 0 else None,
        at_ns=at_ns,
        noted_ns=now_ns,
        is_consequence=tells_of_loss(root),
        is_permanent=isinstance(error, ResilienceError) and error.is_permanent,
        is_deliberate=isinstance(error, StopTraining) and error.is_final,
        thread=thread,
        is_step_done=is_step_done,
        earlier=_first_line(links[1]) if isinstance(error, SystemExit) and len(links) > 1 else None,
    )


def _first_line(error: BaseException) -> str:
    return ErrorRecord(type_name(error), message_of(error)).first_line()[:LONGEST_EARLIER]
