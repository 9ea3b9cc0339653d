"""Read proc(5): processes, their threads and their descriptors. All of the launcher reads it through this module.

A test in ``tests/repository`` lists the exceptions.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import (
    ENDED_STATES,
    STOPPED_STATES,
    own_pid_namespace,
    process_start_time,
    read_proc,
    stat_fields,
)

__all__ = [
    "ProcessStatus",
    "all_pids",
    "boot_id",
    "child_pids",
    "descriptor_path",
    "descriptors",
    "environment_entries",
    "handles_signal",
    "in_first_pid_namespace",
    "is_resource_tracker",
    "largest_pid",
    "link_to_working_folder",
    "memory_map",
    "open_files",
    "own_start_ns",
    "process_name",
    "process_status",
    "runs_our_program",
    "session_members",
    "state_of_thread",
    "status_of",
    "system_call_of",
    "thread_ids",
    "wait_channel",
]


class ProcessStatus(NamedTuple):
    """What proc(5) says of a process."""

    state: str
    """One letter: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie."""
    session: int
    flags: int
    """The kernel's, ``PF_*``."""
    exit_status: int
    """Once it is ending: its wait status."""

    @property
    def is_stopped(self) -> bool:
        """Stopped by a signal or by a tracer; it answers nothing until it is continued."""
        return self.state in STOPPED_STATES

    @property
    def is_traced(self) -> bool:
        """Stopped by a tracer: a debugger for as long as its user wants, a profiler such as py-spy for milliseconds."""
        return self.state == "t"

    @property
    def has_ended(self) -> bool:
        """A zombie, which its parent has yet to collect, or dead."""
        return self.state in ENDED_STATES


def all_pids() -> list[int]:
    """List the processes that proc(5) shows.

    Raises:
        OSError: It is not mounted, or no descriptor is left.
    """
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def process_status(pid: int) -> ProcessStatus | None:
    """Read what ``stat`` says of a process; None when there is none, or it may not be looked at."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    try:
        return ProcessStatus(fields[0].decode(), int(fields[3]), flags=int(fields[6]), exit_status=int(fields[49]))
    except (ValueError, IndexError):
        return None


def process_name(pid: int) -> str:
    """Read the kernel's name of a process, at most 15 bytes; empty when there is none."""
    try:
        return read_proc(f"/proc/{pid}/comm").decode("utf-8", errors="replace").strip("\n")
    except OSError:
        return ""


def status_of(pid: int) -> dict[str, str]:
    """Read the lines of ``status`` by their names, without colon and blanks around; empty when there are none."""
    try:
        text = read_proc(f"/proc/{pid}/status").decode("utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def wait_channel(pid: int) -> str | None:
    """Read the kernel function that a process sleeps in; None where there is none, or it may not be read."""
    try:
        return read_proc(f"/proc/{pid}/wchan").decode("utf-8", errors="replace").strip("0 \n") or None
    except OSError:
        return None


def system_call_of(pid: int) -> int | None:
    """Read the number of the system call in which the main thread of a process sleeps.

    May wait: for as long as the process starts another program and closes, for that, files that do not answer.

    Returns:
        None: it is in none, since it runs or waits for memory that is on a disk, or that may not be read.
    """
    try:
        number = int(read_proc(f"/proc/{pid}/syscall").split()[0])  # "running" where it is not asleep
    except (OSError, ValueError, IndexError):
        return None
    return number if number >= 0 else None


def environment_entries(pid: int) -> list[bytes]:
    """Read what a process was started with, as ``NAME=value``. May wait for the process's memory.

    Raises:
        OSError: There is no such process, or it may not be looked at.
    """
    with open(f"/proc/{pid}/environ", "rb") as file:  # may be longer than one read
        return file.read().split(b"\0")


def memory_map(pid: int) -> bytes:
    """Read what a process has mapped, one mapping a line. May wait for the process's memory.

    Raises:
        OSError: There is no such process, or it may not be looked at.
    """
    with open(f"/proc/{pid}/maps", "rb") as file:  # may be longer than one read
        return file.read()


def runs_our_program(pid: int) -> bool:
    """Return whether a process runs the same executable file as this one.

    Raises:
        OSError: There is no such process, it has none (a kernel thread), or it may not be looked at.
    """
    return os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe")


def link_to_working_folder() -> str:
    """Read the path of this process's working folder; one that was deleted ends with `` (deleted)``.

    Raises:
        OSError: proc(5) is not mounted.
    """
    return os.readlink("/proc/self/cwd")


def largest_pid() -> int | None:
    """Read how many process numbers this machine has (kernel.pid_max); None where that is not shown."""
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def thread_ids(pid: int | None = None) -> list[int]:
    """List the threads of a process, native ones included; those of this one when it is None.

    Raises:
        OSError: There is no such process, or no descriptor is left.
    """
    return [int(name) for name in os.listdir(f"/proc/{'self' if pid is None else pid}/task")]


def child_pids(pid: int, threads: Collection[int]) -> list[int]:
    """List the children that these threads of a process have; as far as the kernel keeps this list and shows it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # may be longer than one read
                found += map(int, file.read().split())
    return found


def descriptors() -> list[int]:
    """List the descriptors of this process; the one that is used for the listing is among them.

    Raises:
        OSError: They cannot be listed.
    """
    return [int(name) for name in os.listdir("/proc/self/fd")]


def open_files(pid: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield each descriptor of a process with what it refers to; of this one when it is None.

    Raises:
        OSError: They cannot be listed.
    """
    folder = f"/proc/{'self' if pid is None else pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile, as the one that did the listing
            yield int(name), os.readlink(f"{folder}/{name}")


def state_of_thread(thread: int) -> str | None:
    """Return state, as in :class:`ProcessStatus`, of a thread of this process; None when it has ended."""
    try:
        return read_proc(f"/proc/self/task/{thread}/stat").rpartition(b")")[2].split()[0].decode()
    except OSError:
        return None


def handles_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal (SigCgt in proc(5))."""
    try:
        return bool(int(status_of(pid)["SigCgt"], 16) >> (number - 1) & 1)
    except (KeyError, ValueError):
        return False


def is_resource_tracker(pid: int) -> bool | None:
    """Return whether this is multiprocessing's helper that unlinks shared memory after its last user.

    Its command line tells. Reading that may wait for the process's memory, and never returns where a thread of it is
    stuck in the kernel. So it is not read where the process sleeps uninterruptibly or has a second thread, which a
    tracker has not.

    Returns:
        None: it cannot be told now. Its only thread sleeps uninterruptibly, as while its program is read from a disk,
        or it has no command line yet.
    """
    status = status_of(pid)
    state, threads = status.get("State", "")[:1], status.get("Threads")
    if state not in ("S", "R") or threads != "1":
        return None if state == "D" and threads == "1" else False
    try:
        command = read_proc(f"/proc/{pid}/cmdline")
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command if command else None


def session_members(sessions: Collection[int]) -> list[int]:
    """Return live processes of the sessions; a zombie has ended, and is its parent's to collect."""
    if not sessions:
        return []
    looks = ((pid, process_status(pid)) for pid in all_pids())
    return [pid for pid, look in looks if look is not None and look.session in sessions and not look.has_ended]


def in_first_pid_namespace() -> bool:
    """Return whether processes have the numbers here by which the kernel itself calls them, as outside containers."""
    return own_pid_namespace() == 4026531836  # PROC_PID_INIT_INO in linux/proc_ns.h


def boot_id() -> str | None:
    """Read what identifies this start of the machine, and so its monotonic clock; None where it is not shown."""
    try:
        return read_proc("/proc/sys/kernel/random/boot_id").decode("ascii", errors="replace").strip()
    except OSError:
        return None


def own_start_ns() -> int:
    """Return when this process was started, as ``CLOCK_MONOTONIC`` nanoseconds; now where that cannot be told.

    The kernel counts it in ticks of 10 ms of the clock that goes on while the machine is suspended (proc(5)).
    """
    if (ticks := process_start_time(os.getpid())) is None:
        return time.monotonic_ns()
    # Suspended for so long since the machine was booted; of several looks the one that was interrupted least.
    asleep_ns = min(-time.monotonic_ns() + time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(5))
    started_ns, now_ns = ticks * (NS_PER_SECOND // os.sysconf("SC_CLK_TCK")) - asleep_ns, time.monotonic_ns()
    return started_ns if 0 < started_ns <= now_ns else now_ns


def descriptor_path(descriptor: int, pid: int | None = None) -> str:
    """Return a path by which what a descriptor refers to can be opened anew; of this process when ``pid`` is None."""
    return f"/proc/{'self' if pid is None else pid}/fd/{descriptor}"
