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
from collections.abc import Callable
from typing import Any

from resilience_core.monitoring.error_capture import note_error
from resilience_core.monitoring.first_seen import seen_at
from resilience_core.monitoring.handled import exception
from resilience_core.monitoring.propagation import handled_by
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import LEFT_GROUP

__all__ = ["DefaultGroupWatch"]

_C10D = "torch.distributed.distributed_c10d"
_HANDLED = "_ft_handled_before"


class DefaultGroupWatch:
    """Sees the end of the default process group that there is when it is asked to look.

    torch keeps a store for each group, which nothing else refers to from Python and which is freed as the group is
    removed from torch's registry, before its connections are closed. The group itself is often kept by a model.

    Args:
        cell: The rank's.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell, self._pid = cell, os.getpid()
        self._watched: weakref.ref[Any] | None = None
        self.when_ended: Callable[[], None] = lambda: None
        """Called when a group has ended: :meth:`look_again` should be, from then on."""

    def look(self) -> None:
        """Watch the default group from here on, if there is one."""
        with contextlib.suppress(Exception):  # torch's own registry, which may change
            store = _store_of_default_group()
            if store is not None and (self._watched is None or self._watched() is not store):
                self._watched = weakref.ref(store)
                weakref.finalize(store, self._has_ended).atexit = False
                self._cell.words[LEFT_GROUP] = 0
                _mark_handled()

    def look_again(self) -> bool:
        """Watch the group that was made after the one before it had ended, from any thread.

        Returns:
            Whether to ask again after a while: there is none yet.
        """
        if self._watched is None or self._watched() is not None:
            return False
        self.look()
        return self._watched() is None

    def _has_ended(self) -> None:
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(Exception):  # monitoring was shut down: the cell is closed
            self._cell.words[LEFT_GROUP] = time.monotonic_ns()
            self.when_ended()
            error = exception() if threading.current_thread() is threading.main_thread() else None
            # One that was noted before is on record, or the rank has gone on since.
            if error is not None and not hasattr(error, _HANDLED) and seen_at(error) is None:
                note_error(error)


def _mark_handled() -> None:
    """Mark what is handled as the watch begins: who trains in a handler still handles that when it has done."""
    for each in handled_by(threading.main_thread().ident):
        with contextlib.suppress(AttributeError, TypeError):  # one that refuses attributes
            setattr(each, _HANDLED, True)


def _store_of_default_group() -> Any:
    world = getattr(sys.modules.get(_C10D), "_world", None)
    group = getattr(world, "default_pg", None)
    return world.pg_map[group][1] if world is not None and group is not None else None
