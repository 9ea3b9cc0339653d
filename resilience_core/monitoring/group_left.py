"""Note when the rank destroys its process group, and what it handles at that moment.

Its peers lose their connections then, and may fail within milliseconds. A rank that has raised often destroys its group
on the way out, in a ``finally`` within the step, say, and then waits for a thread that writes, or for a queue: its own
exception is noted only when it leaves the step, long after those of its victims.

Two alternatives were considered. *The monitor asks the ranks that live, when one has failed.* The restart would wait
for answers that a rank which keeps the GIL cannot give. *A function of ours in place of torch's* is missed by who has
imported torch's before, and changes what others patch as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from typing import Any

from resilience_core.monitoring.error_capture import note_error
from resilience_core.monitoring.exception_links import chain_of
from resilience_core.monitoring.first_seen import is_of_before
from resilience_core.monitoring.handled import exception
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import LEFT_GROUP

__all__ = ["DefaultGroupWatch"]

_C10D = "torch.distributed.distributed_c10d"
_HANDLED = "_ft_handled_before"


class DefaultGroupWatch:
    """Sees the end of the default process group that there is when it is asked to look.

    torch keeps a store for each group, which nothing else refers to from Python and which is freed as the group is
    taken out of torch's books, before its connections are closed. The group itself is often kept by a model.

    Args:
        cell: The rank's.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell, self._pid = cell, os.getpid()
        self._watched: weakref.ref[Any] | None = None

    def look(self) -> None:
        """Watch the default group from here on, if there is one."""
        with contextlib.suppress(Exception):  # torch's own books, which may change
            store = _store_of_default_group()
            if store is not None and (self._watched is None or self._watched() is not store):
                self._watched = weakref.ref(store)
                weakref.finalize(store, self._has_ended).atexit = False
                _mark_handled(exception())

    def _has_ended(self) -> None:
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            return
        with contextlib.suppress(Exception):  # monitoring was shut down: the cell is closed
            self._cell.words[LEFT_GROUP] = time.monotonic_ns()
            error = exception()
            if error is not None and not hasattr(error, _HANDLED) and not is_of_before(error, self._cell.view()):
                note_error(error)


def _mark_handled(error: BaseException | None) -> None:
    """Mark what is handled as the watch begins: who trains in a handler still handles that when it has done."""
    for each in chain_of(error) if error is not None else ():
        with contextlib.suppress(AttributeError, TypeError):  # one that refuses attributes
            setattr(each, _HANDLED, True)


def _store_of_default_group() -> Any:
    world = getattr(sys.modules.get(_C10D), "_world", None)
    group = getattr(world, "default_pg", None)
    return world.pg_map[group][1] if world is not None and group is not None else None
