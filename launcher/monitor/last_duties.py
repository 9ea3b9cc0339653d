"""What the monitor does when its launcher has died: end the ranks, remove the run folders, tell the other nodes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from launcher.processes.handles import end_sessions, send_signal, wait_for_exit
from launcher.processes.leftovers import end_marked
from launcher.processes.proc import session_members
from launcher.records.console import ERROR, announce

if TYPE_CHECKING:
    from launcher.nodes.farewell import LastMessage

__all__ = ["clean_up", "remove_folders"]

_FAREWELL_SECONDS = 1.0
_SLOWEST_EXIT_SECONDS = 1.0


def clean_up(pidfds: Collection[int], sessions: Collection[int], run_folders: Sequence[str]) -> None:
    """End what a launcher that owned its ranks has left, and say good-bye for it once none of them lives.

    Args:
        pidfds: Of the ranks.
        sessions: That their workers lead.
        run_folders: The last one is in use.
    """
    message = _last_message(run_folders)
    for pidfd in pidfds:
        send_signal(pidfd, signal.SIGKILL)
    end_sessions(sessions, timeout_seconds=5.0)
    remove_folders(run_folders)
    # Last, since to look at a process that is stuck may take for ever.
    left = end_marked(run_folders, timeout_seconds=5.0)
    if message is None:
        return
    # A process whose threads are not all gone looks like a zombie; its pidfd does not say that it has ended.
    if left or session_members(sessions) or not _have_exited(pidfds, _SLOWEST_EXIT_SECONDS):
        said = "the launcher is dead, but not all of its ranks are gone: other nodes wait for the end of the lease"
        announce(said, level=ERROR, event="not_gone")
        return
    message.send(_FAREWELL_SECONDS)


def _have_exited(pidfds: Collection[int], timeout_seconds: float) -> bool:
    """Wait until all of them have ended, or the time is up."""
    end = time.monotonic() + timeout_seconds
    pending = set(pidfds)
    while pending:
        left = end - time.monotonic()
        pending -= wait_for_exit(pending, max(0.0, left))
        if left <= 0:
            break
    return not pending


def remove_folders(paths: Collection[str]) -> None:
    """Remove run folders with all that is in them, as far as they are there."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _last_message(run_folders: Sequence[str]) -> LastMessage | None:
    for folder in reversed(run_folders):
        if not os.path.lexists(os.path.join(folder, "farewell")):
            continue
        # Only a job of several nodes has the file; others do without what reads it.
        from launcher.nodes.farewell import DamagedError, read_farewell

        try:
            return read_farewell(folder)
        except DamagedError as error:
            said = f"other nodes are not told that this one has ended, and wait for its lease: {error}"
            announce(said, event="warning")
    return None
