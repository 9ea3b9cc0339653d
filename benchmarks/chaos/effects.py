"""What each kind of fault does, from outside; one function per kind, each given the job and the fault.

An effect strikes, waits until its immediate consequence is there (bounded), and undoes what is undone after a while.
Whether the job then goes on as it should is for ``benchmarks.chaos.job`` to see.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chaos.plan import Fault
from benchmarks.chaos.surroundings import mount_tmpfs, processes, stop_all, unmount

if TYPE_CHECKING:
    from benchmarks.chaos.job import Job

__all__ = ["EFFECTS", "ImpossibleHereError"]

_BOUND_SECONDS = 15.0


class ImpossibleHereError(Exception):
    """The fault cannot be made on this machine, or in this job at this moment; says why."""


def kill(pid: int, *numbers: int) -> None:
    """Signal a process of the namespace, which may just have ended."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# ---- ranks ----------------------------------------------------------------------------------------------


def _rank(number: int) -> Callable[[Job, Fault], None]:
    return lambda job, fault: kill(job.rank_pid(fault.rank), number)


def _own(job: Job, fault: Fault) -> None:
    job.wait_for(lambda: (job.folder / "fired" / str(fault.index)).exists(), "the rank to commit its fault")


def _kill_twice(job: Job, fault: Fault) -> None:
    before = job.job_events.generation
    kill(job.rank_pid(fault.rank), signal.SIGKILL)
    job.wait_for(lambda: job.job_events.generation > before, "the next generation")
    job.pause(fault.seconds / 10)
    second = fault.detail % job.plan.ranks
    job.expect(before + 1, second)
    kill(job.job_events.pids(before + 1)[second], signal.SIGKILL)


def _stop_rank_kill_monitor(job: Job, fault: Fault) -> None:
    kill(job.rank_pid(fault.rank), signal.SIGSTOP)
    kill(job.one_named("ft_monitor"), signal.SIGKILL)


# ---- the launcher and its helpers -----------------------------------------------------------------------


def _helper(name: str, number: int) -> Callable[[Job, Fault], None]:
    def strike(job: Job, fault: Fault) -> None:
        for pid in _chosen(job, name, fault):
            kill(pid, number)

    return strike


def _helper_paused(name: str) -> Callable[[Job, Fault], None]:
    def strike(job: Job, fault: Fault) -> None:
        pids = _chosen(job, name, fault)
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        job.pause(fault.seconds)
        for pid in pids:
            kill(pid, signal.SIGCONT)

    return strike


def _chosen(job: Job, name: str, fault: Fault) -> list[int]:
    """All of that name, or, of parked workers, by chance one."""
    job.wait_for(lambda: job.named(name), f"a process called {name}")
    pids = job.named(name)
    return [pids[fault.detail // 2 % len(pids)]] if fault.detail % 2 else pids


def _monitor(number: int) -> Callable[[Job, Fault], None]:
    def strike(job: Job, fault: Fault) -> None:
        before = job.one_named("ft_monitor")
        kill(before, number)
        job.wait_for(
            lambda: any(pid != before for pid in job.named("ft_monitor")), "another monitor", seconds=_BOUND_SECONDS
        )

    return strike


def _parked_stopped_rank_killed(job: Job, fault: Fault) -> None:
    job.wait_for(lambda: len(job.named("ft_parked")) >= job.plan.ranks, "as many parked workers as ranks")
    for pid in job.named("ft_parked"):
        kill(pid, signal.SIGSTOP)
    kill(job.rank_pid(fault.rank), signal.SIGKILL)


def _launcher_paused(job: Job, fault: Fault) -> None:
    kill(job.launcher, signal.SIGSTOP)
    job.pause(fault.seconds)
    kill(job.launcher, signal.SIGCONT)


def _launcher_paused_rank_killed(job: Job, fault: Fault) -> None:
    kill(job.launcher, signal.SIGSTOP)
    job.pause(0.02)
    kill(job.rank_pid(fault.rank), signal.SIGKILL)
    job.pause(fault.seconds)
    kill(job.launcher, signal.SIGCONT)


# ---- folders --------------------------------------------------------------------------------------------


def _run_removed(job: Job, fault: Fault) -> None:
    for path in job.run_parent.iterdir():
        shutil.rmtree(path)


def _cells_removed(job: Job, fault: Fault) -> None:
    for path in [path for path in job.run_parent.glob("*/*") if path.is_dir()]:
        shutil.rmtree(path)


def _mapped_by(job: Job, rank: int) -> Path:
    """A file of the run folder that a rank has mapped."""
    maps = Path(f"/proc/{job.rank_pid(rank)}/maps").read_text().splitlines()
    paths = {line.partition("/")[1] + line.partition("/")[2] for line in maps if f" {job.run_parent}/" in line}
    there = sorted(path for path in paths if os.path.exists(path))
    if not there:
        raise ImpossibleHereError("the rank has mapped no file of the run folder that is there by name")
    return Path(there[0])


def _cell_random(job: Job, fault: Fault) -> None:
    path = _mapped_by(job, fault.rank)
    with path.open("r+b") as file:
        file.write(random.Random(fault.detail).randbytes(path.stat().st_size))


def _cell_truncated(job: Job, fault: Fault) -> None:
    os.truncate(_mapped_by(job, fault.rank), 0)


def _run_full(job: Job, fault: Fault) -> None:
    filler = job.run_parent / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"\0" * size)
        kill(job.rank_pid(fault.rank), signal.SIGKILL)
        job.pause(fault.seconds)
    finally:
        os.close(descriptor)
        filler.unlink(missing_ok=True)


def _log_removed(job: Job, fault: Fault) -> None:
    for path in job.logs.iterdir():
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)


def _log_read_only(job: Job, fault: Fault) -> None:
    """An empty read-only file system over the log folder until the stopped rank has been replaced.

    Of a log folder that was removed before, the launcher opens another one at its next line, and loses what it cannot
    write: there would be nothing to go by. So it gets a line to write first.
    """
    if job.job_events.is_removed:
        _monitor(signal.SIGKILL)(job, fault)
        job.wait_for(lambda: not job.job_events.is_removed, "another file of events", seconds=_BOUND_SECONDS)
    before = job.job_events.generation
    mount_tmpfs(job.logs, 1, read_only=True)
    try:
        kill(job.rank_pid(fault.rank), signal.SIGSTOP)
        job.wait_for(lambda: job.job_events.generation > before, "the next generation, with the log folder read-only")
    finally:
        unmount(job.logs)


# ---- resources ------------------------------------------------------------------------------------------


def _pids_max(job: Job, fault: Fault) -> None:
    """No new process or thread until the hung rank is gone: killing it must need none."""
    if not job.pids:
        raise ImpossibleHereError(job.pids.why_not)
    victim = job.rank_pid(fault.rank)
    job.pids.set(job.pids.read("pids.current").strip())
    try:
        kill(victim, signal.SIGSTOP)
        job.wait_for(
            lambda: victim not in (now := processes()) or now[victim].state in "ZX",
            "the hung rank to be killed at pids.max",
            seconds=_BOUND_SECONDS,
        )
    finally:
        job.pids.set("max")


def _stderr_stopped(job: Job, fault: Fault) -> None:
    before = job.job_events.generation
    job.output.stop_reading()
    try:
        kill(job.rank_pid(fault.rank), signal.SIGKILL)
        job.wait_for(
            lambda: job.job_events.generation > before,
            "the next generation while nobody reads the launcher's stderr",
            seconds=_BOUND_SECONDS,
        )
    finally:
        job.output.go_on_reading()


def _frozen(job: Job, fault: Fault) -> None:
    if not job.freezer:
        raise ImpossibleHereError(job.freezer.why_not)
    job.freezer.set("FROZEN" if job.freezer.is_v1 else "1")
    try:
        job.pause(fault.seconds)
    finally:
        job.freezer.set("THAWED" if job.freezer.is_v1 else "0")


def _all_stopped(job: Job, fault: Fault) -> None:
    pids = stop_all(processes)
    job.pause(fault.seconds)
    for pid in pids:
        kill(pid, signal.SIGCONT)


EFFECTS: dict[str, Callable[[Job, Fault], None]] = {
    "rank-kill": _rank(signal.SIGKILL),
    "rank-stop": _rank(signal.SIGSTOP),
    "rank-segv": _rank(signal.SIGSEGV),
    "rank-crash": _own,
    "rank-hang": _own,
    "rank-raise": _own,
    "rank-raise-slow": _own,
    "rank-exit0": _own,
    "rank-skip": _own,
    "rank-kill-twice": _kill_twice,
    "rank-stop-monitor-kill": _stop_rank_kill_monitor,
    "monitor-kill": _monitor(signal.SIGKILL),
    "monitor-stop": _monitor(signal.SIGSTOP),
    "monitor-pause": _helper_paused("ft_monitor"),
    "zygote-kill": _helper("ft_zygote", signal.SIGKILL),
    "zygote-stop": _helper("ft_zygote", signal.SIGSTOP),
    "zygote-pause": _helper_paused("ft_zygote"),
    "parked-kill": _helper("ft_parked", signal.SIGKILL),
    "parked-stop": _helper("ft_parked", signal.SIGSTOP),
    "parked-stop-kill": _parked_stopped_rank_killed,
    "parked-pause": _helper_paused("ft_parked"),
    "launcher-pause": _launcher_paused,
    "launcher-pause-kill": _launcher_paused_rank_killed,
    "run-removed": _run_removed,
    "cells-removed": _cells_removed,
    "cell-random": _cell_random,
    "cell-truncated": _cell_truncated,
    "run-full": _run_full,
    "log-removed": _log_removed,
    "log-readonly": _log_read_only,
    "pids-max": _pids_max,
    "stderr-stopped": _stderr_stopped,
    "freeze-cgroup": _frozen,
    "freeze-signals": _all_stopped,
}
