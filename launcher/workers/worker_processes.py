"""The worker processes of one generation: started, watched by pidfd, and stopped to the last descendant.

A subclass of torch's ``PContext``, which contributes what torchrun's users know: log redirection, ``--tee`` and
error files. Starting is behind one small function type, so that processes may come from elsewhere than ``exec``.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.processes.evidence import state_phrase
from launcher.processes.handles import KillDeadline, end_sessions, let_end, send_signal, wait_for_exit
from launcher.processes.proc import handles_signal, session_members
from launcher.workers.end_requests import EndRequests, WorkerProcess, ask_group
from launcher.workers.spawn import Launch
from launcher.workers.tee import keep_bytes
from launcher.workers.torch_processes import QuietContext, check_error_file
from resilience_core.system import prctl

__all__ = ["StartWorkers", "WorkerProcess", "WorkerProcesses"]

logger = logging.getLogger(__name__)

_WRAPPER_SECONDS = 0.5
"""How often is looked whether a wrapper has outlived the training inside it: once is fine, twice is not."""


StartWorkers = Callable[[Mapping[int, Launch]], dict[int, int]]
"""Starts all workers of a generation, or none, each as leader of a session of its own and as this process's child;
returns their pids, by local rank."""


class WorkerProcesses(QuietContext):
    """All workers of one generation on this node.

    Args:
        launches: How to start each, by local rank.
        start_all: What starts them.
        orphaned_sessions: Which sessions, beside the workers' own, have to end with them.
        owner: The pid of the process that reports for a local rank, None while there is none. Most often it is the
            worker; with a shell around the training it is not.
        context_arguments: Handed to torch's ``PContext``.
    """

    def __init__(
        self,
        launches: Mapping[int, Launch],
        start_all: StartWorkers,
        orphaned_sessions: Callable[[], Collection[int]],
        owner: Callable[[int], int | None],
        **context_arguments: Any,
    ) -> None:
        super().__init__(**context_arguments)
        keep_bytes(self)
        self._orphaned_sessions = orphaned_sessions
        self._launches = launches
        self._start_all = start_all
        self.workers: dict[int, WorkerProcess] = {}
        self.left: set[int] = set()
        """Pids that were killed and were not gone when :meth:`stop` had waited for as long as it may."""
        self.condemned: set[int] = set()
        """Local ranks that the monitor has condemned: whatever their exit codes, they have failed."""
        self._verdicts_ns: dict[int, int] = {}
        self._requests = EndRequests(launches, owner)

    # ---- torch's PContext ------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        redirected = {
            local_rank: attrs.evolve(
                launch,
                environment={**launch.environment, **self.envs[local_rank]},
                stdout=self.stdouts[local_rank],
                stderr=self.stderrs[local_rank],
            )
            for local_rank, launch in self._launches.items()
        }
        for local_rank, pid in self._start_all(redirected).items():
            self.workers[local_rank] = WorkerProcess(local_rank, pid, os.pidfd_open(pid))

    def _poll(self) -> RunProcsResult | None:
        self.collect_exits()
        if self.running and not self.failed:
            return None
        return RunProcsResult(failures={w.local_rank: self.failure(w) for w in self.failed})

    def pids(self) -> dict[int, int]:
        """Return the pid of each local rank."""
        return {worker.local_rank: worker.pid for worker in self.workers.values()}

    def unreaped(self) -> set[int]:
        """Return the pids of workers that run, or have ended and are still to be collected."""
        return {worker.pid for worker in self.workers.values() if worker.pidfd >= 0}

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        if any(worker.pidfd >= 0 for worker in self.workers.values()):
            self.stop(death_sig, timeout, kill_seconds=timeout)

    # ---- what the agent works with -----------------------------------------------------------------------

    @property
    def running(self) -> list[WorkerProcess]:
        """Those that have not ended, and are not stuck."""
        return [worker for worker in self.workers.values() if worker.exit_code is None and not worker.is_stuck]

    @property
    def _unended(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.exit_code is None and worker.pidfd >= 0]

    @property
    def failed(self) -> list[WorkerProcess]:
        """Those that ended with anything but 0, were condemned before they ended, or are stuck; first death first."""
        ended = [worker for worker in self.workers.values() if worker.exit_code is not None or worker.is_stuck]
        failed = [worker for worker in ended if worker.exit_code != 0 or worker.local_rank in self.condemned]
        return sorted(failed, key=lambda worker: worker.ended_ns or 0)

    def condemn(self, local_ranks: Collection[int], seen_ns: int) -> None:
        """Note a verdict of the monitor's, and when that was."""
        self.condemned.update(local_ranks)
        self._verdicts_ns |= dict.fromkeys(local_ranks, seen_ns)

    def failed_ns(self, now_ns: int) -> int:
        """Return when a failure was seen: at the first verdict that stands, or else now.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` when it is noticed that ranks have ended.
        """
        return min([now_ns, *(self._verdicts_ns.get(local_rank, now_ns) for local_rank in self.condemned)])

    def failure(self, worker: WorkerProcess, error_file: str | None = None) -> ProcessFailure:
        """Return Torch's record of a failed worker, with what it left in its error file (another may be named).

        Raises:
            OSError: The error file cannot be read.
            ValueError: It is not what torch's ``@record`` writes.
        """
        assert worker.exit_code is not None or worker.is_stuck
        exit_code = worker.exit_code if worker.exit_code is not None else -signal.SIGKILL
        path = self.error_files[worker.local_rank] if error_file is None else error_file
        check_error_file(path)
        return ProcessFailure(local_rank=worker.local_rank, pid=worker.pid, exitcode=exit_code, error_file=path)

    def collect_exits(self) -> list[WorkerProcess]:
        """Note who has ended since the last look.

        The processes stay zombies until the generation is stopped. Until then their pids, which are also the
        numbers of their sessions, cannot be reused.
        """
        ended = []
        for worker in self._unended:
            state = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                worker.exit_code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
                worker.ended_ns = time.monotonic_ns()
                ended.append(worker)
        return ended

    def stop(
        self,
        death_signal: signal.Signals,
        timeout_seconds: float,
        *,
        kill_seconds: float,
        rest_seconds: float = 0.0,
        at_once: Collection[int] = (),
        spares_leftovers: bool = False,
        wait: Callable[[Collection[int], float], set[int]] = wait_for_exit,
        is_forced: Callable[[], bool] = lambda: False,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """End every worker and everything that the workers started.

        Args:
            death_signal: What to ask with.
            timeout_seconds: How long to wait before SIGKILL.
            kill_seconds: How long to wait for what was killed to be gone.
            rest_seconds: How long, within ``timeout_seconds``, what a worker has started may go on after the worker
                has ended; it is asked then. By default it is killed at once.
            at_once: Local ranks that are not asked: condemned, stopped or overdue.
            spares_leftovers: Leave alone what workers that ended by themselves have left running.
            wait: How to wait for pidfds; the agent's own also hears signals.
            is_forced: Whether somebody wants it over now.
            is_hurried: Whether to wait no longer than a second for what was killed.
        """
        self.request_stop(death_signal, at_once)
        end = time.monotonic() + timeout_seconds
        while self.running and (left := end - time.monotonic()) > 0 and not is_forced():
            wait([w.pidfd for w in self.running], min(left, _WRAPPER_SECONDS) if self._requests.has_wrapped else left)
            self.collect_exits()
            self._requests.ask_wrappers(self.running, death_signal)
        if self._requests.were_sent or not spares_leftovers:
            seconds = min(rest_seconds, end - time.monotonic())
            if not self.running and seconds > 0 and not is_forced():
                self._let_the_rest_end(death_signal, seconds, wait)
            self._end_sessions(kill_seconds, wait, is_hurried)
        self._requests.close()
        self._reap()

    def request_stop(self, death_signal: signal.Signals, at_once: Collection[int] = ()) -> None:
        """Signal the workers that still run, and do not wait; for the arguments see :meth:`stop`.

        The training itself is asked, and nobody else. torchrun signals the whole process group (``killpg`` in its
        ``SubprocessHandler.close``): DataLoader workers then die before the training can save, which fails.
        """
        self.collect_exits()
        self._requests.ask(self.running, death_signal, at_once)

    def _let_the_rest_end(
        self,
        death_signal: signal.Signals,
        seconds: float,
        wait: Callable[[Collection[int], float], set[int]],
    ) -> None:
        """Ask the process groups of ended workers to end, and wait for up to ``seconds``."""
        for worker in self.workers.values():
            ask_group(worker.pid, death_signal)
        let_end(session_members([worker.pid for worker in self.workers.values()]), seconds, wait)

    def tell(self, number: signal.Signals) -> list[int]:
        """Send a signal to the workers that handle it.

        Returns:
            Their local ranks.
        """
        return [w.local_rank for w in self.running if handles_signal(w.pid, number) and send_signal(w.pidfd, number)]

    def _end_sessions(
        self,
        seconds: float,
        wait: Callable[[Collection[int], float], set[int]],
        is_hurried: Callable[[], bool],
    ) -> None:
        for worker in self.running:
            logger.warning("local rank %s (pid %s) did not end when asked; killed", worker.local_rank, worker.pid)
            send_signal(worker.pidfd, signal.SIGKILL)
        deadline = KillDeadline(seconds, is_hurried)
        left = end_sessions(
            [worker.pid for worker in self.workers.values()],
            seconds,
            more=self._orphaned_sessions,
            wait=wait,
            is_hurried=is_hurried,
        )
        self.collect_exits()
        # A process whose first thread is a zombie is in no session any more, but is not gone before the others are.
        while waited_for := [w for w in self._unended if w.pid not in left]:
            if (seconds_left := deadline.seconds_left()) <= 0:
                left |= {worker.pid for worker in waited_for}
                break
            wait([worker.pidfd for worker in waited_for], seconds_left)
            self.collect_exits()
        self.left |= left
        for worker in self.running:
            worker.is_stuck = True
        if left:
            ranks = {worker.pid: f"local rank {worker.local_rank}, " for worker in self.workers.values()}
            logger.error(
                "killed, but not gone after %g s: %s. What they hold (memory of a GPU, files, ports) may still be held",
                seconds,
                "; ".join(f"{ranks.get(pid, '')}pid {pid} ({state_phrase(pid)})" for pid in sorted(left)),
            )

    def _reap(self) -> None:
        for worker in self.workers.values():
            if worker.pidfd >= 0 and (worker.exit_code is not None or worker.is_stuck):
                if worker.exit_code is not None:  # else it is collected as an orphan when it ends
                    os.waitpid(worker.pid, 0)
                os.close(worker.pidfd)
                worker.pidfd = -1


prctl.load()  # a child between fork and exec must not
