"""Ask workers to end: the training itself, and what is around it once it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping

import attrs

from launcher.processes.handles import has_exited, open_pidfd, send_signal
from launcher.processes.proc import process_status
from launcher.workers.spawn import Launch, python_command

__all__ = ["EndRequests", "WorkerProcess", "ask_group"]


@attrs.define(eq=False)
class WorkerProcess:
    """One worker process. ``exit_code`` is None while it runs, negative for a signal."""

    local_rank: int
    pid: int
    pidfd: int
    exit_code: int | None = None
    ended_ns: int | None = None
    is_stuck: bool = False
    """It was killed and is not gone, as in uninterruptible sleep: it has failed, and is waited for within a bound."""


class EndRequests:
    """The requests to end that were sent to the workers of one generation.

    Args:
        launches: By local rank.
        owner: The pid of the process that reports for a local rank, None while there is none.
    """

    def __init__(self, launches: Mapping[int, Launch], owner: Callable[[int], int | None]) -> None:
        self._launches = launches
        self._owner = owner
        self.were_sent = False
        self._wrapped: dict[int, int] = {}
        """By local rank: a pidfd of the training that was asked to end inside of a worker that is not it."""
        self._outlived: set[int] = set()

    @property
    def has_wrapped(self) -> bool:
        """Return whether a training was asked inside of a worker that is not it."""
        return bool(self._wrapped)

    def ask(self, running: Collection[WorkerProcess], death_signal: signal.Signals, at_once: Collection[int]) -> None:
        """Signal the workers that still run, and do not wait; a second call does nothing.

        Args:
            running: Which.
            death_signal: What to ask with.
            at_once: Local ranks that are killed: condemned, stopped or overdue.
        """
        if self.were_sent:
            return
        for worker in running:
            self.were_sent = True
            target, pidfd = self._training(worker)
            if worker.local_rank in at_once or any(_is_stopped_by_signal(pid) for pid in {worker.pid, target}):
                send_signal(worker.pidfd, signal.SIGKILL)
            elif pidfd is not None:
                send_signal(pidfd, death_signal)
                self._wrapped[worker.local_rank] = pidfd
                continue
            elif target == worker.pid:
                send_signal(worker.pidfd, death_signal)
            else:
                ask_group(worker.pid, death_signal)
            if pidfd is not None:
                os.close(pidfd)

    def _training(self, worker: WorkerProcess) -> tuple[int, int | None]:
        """Return the pid of the process that trains, -1 where unknown, and a pidfd where it is not the worker."""
        owner = self._owner(worker.local_rank)
        if owner == worker.pid:
            return worker.pid, None
        if owner is not None and (pidfd := open_pidfd(owner)) is not None:
            if self._owner(worker.local_rank) == owner:
                return owner, pidfd
            os.close(pidfd)
        # Nobody has reported. A Python that runs a script is the training; any other program may be a shell around it,
        # which passes no signal on.
        is_python = self._launches[worker.local_rank].command[0] == python_command()
        return (worker.pid if is_python else -1), None

    def ask_wrappers(self, running: Collection[WorkerProcess], death_signal: signal.Signals) -> None:
        """Signal wrappers that still run although the training inside them has ended."""
        by_rank = {worker.local_rank: worker for worker in running}
        for local_rank, pidfd in list(self._wrapped.items()):
            if local_rank in self._outlived:
                os.close(self._wrapped.pop(local_rank))
                if local_rank in by_rank:
                    ask_group(by_rank[local_rank].pid, death_signal)
            elif has_exited(pidfd):
                self._outlived.add(local_rank)

    def close(self) -> None:
        """Close the descriptors."""
        for pidfd in self._wrapped.values():
            os.close(pidfd)
        self._wrapped = {}


def _is_stopped_by_signal(pid: int) -> bool:
    # One that a tracer has stopped is asked: a profiler lets it go on in milliseconds, and it may still save.
    status = process_status(pid)
    return status is not None and status.is_stopped and not status.is_traced


def ask_group(pid: int, death_signal: signal.Signals) -> None:
    """Signal the process group of a worker that was not collected yet."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, death_signal)  # running or a zombie, so the number is its own
