"""Processes held by pidfd, sessions ended to the last member. No torch, no subprocess: the monitor uses it too."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable

from launcher.processes.proc import is_resource_tracker, session_members
from resilience_core.system import prctl

__all__ = [
    "KillDeadline",
    "become_subreaper",
    "is_subreaper",
    "end_processes",
    "end_sessions",
    "has_exited",
    "let_end",
    "open_pidfd",
    "send_signal",
    "send_to_main_thread",
    "wait_for_exit",
]

_HURRIED_SECONDS = 1.0
_LONGEST_POLL_MILLISECONDS = 2**31 - 1  # 24 days; poll(2) takes no more
_LONGEST_ROUND_SECONDS = 1.0
_LONGEST_UNLINK_SECONDS = 1.0
"""What a resource tracker gets to unlink what nobody uses any more, once all others are gone; it takes milliseconds.

For the same time, possible trackers are rechecked every ``_LOOK_AGAIN_SECONDS``."""
_LOOK_AGAIN_SECONDS = 0.02


class KillDeadline:
    """The time until which to wait for processes that were killed.

    Args:
        timeout_seconds: From now on.
        is_hurried: Whether to wait no longer than a second. Asked at each look until it is true once.
    """

    def __init__(self, timeout_seconds: float, is_hurried: Callable[[], bool]) -> None:
        self._end = time.monotonic() + timeout_seconds
        self._is_hurried = is_hurried
        self._is_shortened = False

    def seconds_left(self) -> float:
        """Return for how long to wait yet; 0 or less once the time is up."""
        if not self._is_shortened and self._is_hurried():
            self._is_shortened = True
            self._end = min(self._end, time.monotonic() + _HURRIED_SECONDS)
        return self._end - time.monotonic()

    @property
    def has_passed(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self._end


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, which refers to this process even after its pid is reused; None when the process is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # the number of a thread, or no pid at all
            return None
        raise


def send_signal(pidfd: int, number: int) -> bool:
    """Signal a process.

    Returns:
        Whether it was still there to take it.
    """
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_to_main_thread(pidfd: int, pid: int, number: int) -> bool:
    """Signal the main thread of a process: of a signal to the process any thread may be the one that handles it.

    Args:
        pidfd: Of the process.
        pid: Its number here.
        number: The signal.

    Returns:
        Whether it was still there to take it.
    """
    tgkill = getattr(prctl.load(), "tgkill", None)  # glibc has it from 2.30 on
    if tgkill is None:
        return send_signal(pidfd, number)
    # The number is that of this process for as long as that has not ended, and a moment longer.
    return not has_exited(pidfd) and tgkill(pid, pid, int(number)) == 0


def has_exited(pidfd: int) -> bool:
    """Return whether the process has ended (it may still be a zombie)."""
    return bool(wait_for_exit([pidfd], 0))


def wait_for_exit(pidfds: Iterable[int], timeout_seconds: float) -> set[int]:
    """Wait until one of the processes has ended, or the time is up.

    Returns:
        The pidfds of those that have ended.
    """
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    milliseconds = min(timeout_seconds * 1000 + 0.5, _LONGEST_POLL_MILLISECONDS)
    return {pidfd for pidfd, _ in poller.poll(max(0, round(milliseconds)))}


def end_sessions(
    sessions: Collection[int],
    timeout_seconds: float,
    *,
    more: Callable[[], Collection[int]] = frozenset,
    wait: Callable[[Collection[int], float], set[int]] = wait_for_exit,
    is_hurried: Callable[[], bool] = lambda: False,
) -> set[int]:
    """Kill every process of these sessions and wait until none is left.

    Each worker leads a session of its own, so this reaches what it started (DataLoader workers, forked children,
    shells), also what outlived it. A resource tracker of multiprocessing is killed last, after up to a second: killed
    with the others, it would leave named shared memory behind.

    Args:
        sessions: Session numbers; that of the caller is left alone.
        timeout_seconds: Give up after so long; a process in uninterruptible sleep cannot be ended by anybody.
        more: Asked at each look: other sessions that have to be ended by now.
        wait: How to wait for pidfds.
        is_hurried: Whether to wait no longer than a second.

    Returns:
        The pids that were still there when time was up.
    """
    targets = {session for session in sessions if session > 1} - {os.getsid(0)}
    end = time.monotonic() + timeout_seconds
    is_tracker: dict[int, bool] = {}
    unknown_since: dict[int, float] = {}
    patience = min(_LONGEST_UNLINK_SECONDS, timeout_seconds)

    def members() -> set[int]:
        return set(session_members(targets | set(more()) - {os.getsid(0)}))

    def others() -> set[int]:
        found = members()
        for pid in found - is_tracker.keys():
            known = is_resource_tracker(pid)
            if known is not None or time.monotonic() >= unknown_since.setdefault(pid, time.monotonic()) + patience:
                is_tracker[pid] = bool(known)
        return {pid for pid in found if not is_tracker.get(pid, True)}

    left = end_processes(others, timeout_seconds, wait=wait, is_hurried=is_hurried)
    while unknown := members() & (unknown_since.keys() - is_tracker.keys()):
        let_end(unknown, _LOOK_AGAIN_SECONDS, wait)
        left |= end_processes(others, max(0.0, end - time.monotonic()), wait=wait, is_hurried=is_hurried)
    if any(is_tracker.values()):
        let_end([pid for pid in members() if is_tracker.get(pid)], patience, wait)
        left |= end_processes(members, max(0.0, end - time.monotonic()), wait=wait, is_hurried=is_hurried)
    return left


def let_end(pids: Collection[int], seconds: float, wait: Callable[[Collection[int], float], set[int]]) -> None:
    """Wait until these have ended by themselves, or the time is up."""
    end = time.monotonic() + seconds
    pidfds = {pidfd for pid in pids if (pidfd := open_pidfd(pid)) is not None}
    pending = set(pidfds)
    while pending and (left := end - time.monotonic()) > 0:
        pending -= wait(pending, left)
    for pidfd in pidfds:
        os.close(pidfd)


def end_processes(
    find: Callable[[], Collection[int]],
    timeout_seconds: float,
    *,
    wait: Callable[[Collection[int], float], set[int]] = wait_for_exit,
    is_hurried: Callable[[], bool] = lambda: False,
) -> set[int]:
    """Kill what is found and wait until it is gone.

    Repeated until nothing is found, since a process may fork while we look.

    Args:
        find: The pids of live processes that have to end.
        timeout_seconds: Give up after so long.
        wait: How to wait for pidfds.
        is_hurried: Whether to wait no longer than a second.

    Returns:
        The pids that were still there when time was up, or that may not be signalled.
    """
    deadline = KillDeadline(timeout_seconds, is_hurried)
    out_of_reach: set[int] = set()  # another user's: a program with the set-user-ID bit
    while found := set(find()) - out_of_reach:
        pidfds = {pidfd: pid for pid in found if (pidfd := open_pidfd(pid)) is not None}
        try:
            pending = set(pidfds)
            for pidfd, pid in pidfds.items():
                if not send_signal(pidfd, signal.SIGKILL) and not has_exited(pidfd):
                    out_of_reach.add(pid)
                    pending.discard(pidfd)
            while pending:
                if (left := deadline.seconds_left()) <= 0:
                    break
                ended = wait(pending, min(left, _LONGEST_ROUND_SECONDS))
                pending -= ended
                if not ended:  # one of them is stuck, or takes long: what was started meanwhile is not to wait for it
                    break
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
        if deadline.has_passed:
            return set(find())
    return out_of_reach


def become_subreaper() -> None:
    """Become the parent of whatever our descendants leave behind (child subreaper, prctl(2))."""
    global _adopter
    prctl.become_subreaper()
    _adopter = os.getpid()


def is_subreaper() -> bool:
    """Return whether this process has called :func:`become_subreaper`; a fork of it has not."""
    return _adopter == os.getpid()


_adopter = 0
