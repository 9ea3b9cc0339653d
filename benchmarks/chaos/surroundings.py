"""What surrounds one job: a tmpfs, control groups, a reader of its output, a view of its processes.

Everything here is done by a process that is number 1 of a PID namespace and has a mount namespace of its own; what it
mounts is gone with it, and whatever else runs in the namespace belongs to the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "ControlGroup",
    "Output",
    "Process",
    "bind",
    "hide_py_spy",
    "mount_tmpfs",
    "processes",
    "reap",
    "stop_all",
    "unmount",
]

_libc = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_BIND, _MNT_DETACH = 1, 4096, 2


class Process(NamedTuple):
    """One process of the namespace."""

    pid: int
    parent: int
    name: str
    """As ps shows it; the launcher's helpers are called ft_monitor, ft_zygote and ft_parked."""
    state: str


def processes() -> dict[int, Process]:
    """Everything in the namespace but this process, zombies included."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                head, _, tail = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
                state, parent = tail.split()[:2]
                found[int(entry)] = Process(int(entry), int(parent), head.partition("(")[2], state)
    return found


def stop_all(find: Callable[[], Collection[int]]) -> set[int]:
    """Stop processes by SIGSTOP until all that are found are stopped.

    One that is just being started is in no list yet, and a signal takes a moment: a new monitor that ran on while its
    ranks were stopped would rightly condemn them.

    Args:
        find: Pids of those that are to be stopped, as of now.

    Returns:
        Whom to continue.
    """
    done: set[int] = set()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        table, wanted = processes(), set(find())
        for pid in wanted - done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        done |= wanted
        if all(pid in table and table[pid].state in "TtZX" for pid in wanted):
            break
    return done


def reap(pid: int) -> int | None:
    """Collect whatever has ended; the exit code of one process, negative for a signal, if it was among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


# ---- mounts ---------------------------------------------------------------------------------------------


def mount_tmpfs(place: Path, megabytes: int, read_only: bool = False) -> None:
    """Mount a file system in memory."""
    _mount("tmpfs", place, "tmpfs", _MS_RDONLY if read_only else 0, f"size={megabytes}m")


def bind(source: str, place: str) -> None:
    """Let one file stand in the place of another."""
    _mount(source, place, "", _MS_BIND, "")


def unmount(place: Path) -> None:
    """Undo a mount, at once, whoever uses it."""
    if _libc.umount2(os.fsencode(place), _MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), f"cannot unmount {place}")


def _mount(source: str, place: object, kind: str, flags: int, options: str) -> None:
    words = [os.fsencode(str(word)) for word in (source, place, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {source} at {place}: {os.strerror(number)}")


def hide_py_spy() -> None:
    """Put a file that cannot be executed where py-spy is, for this mount namespace only."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    while (found := beside if os.access(beside, os.X_OK) else shutil.which("py-spy")) is not None:
        bind("/dev/null", found)


# ---- control groups -------------------------------------------------------------------------------------

_LONGEST_REMOVAL_SECONDS = 5.0


class ControlGroup:
    """A group of the ``freezer`` or ``pids`` controller, of version 1 or 2; falsy where none can be made."""

    def __init__(self, controller: str, file_v1: str, file_v2: str) -> None:
        self.why_not = f"no cgroup with {file_v2} can be made"
        self._folder: Path | None = None
        for root, name in (
            (Path("/sys/fs/cgroup") / controller, file_v1),
            (Path("/sys/fs/cgroup"), file_v2),
            (Path("/sys/fs/cgroup/unified"), file_v2),
        ):
            folder = root / f"chaos-{os.urandom(6).hex()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            if (folder / name).exists():
                self._folder, self._name, self.is_v1 = folder, name, name == file_v1 and root.name == controller
                return
            folder.rmdir()

    def __bool__(self) -> bool:
        return self._folder is not None

    def enter(self) -> None:
        """Put the calling process in, and whatever it starts from now on."""
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text("0")

    def set(self, word: str) -> None:
        """Write the controlling file."""
        assert self._folder is not None
        (self._folder / self._name).write_text(word)

    def read(self, name: str) -> str:
        """Read another of its files."""
        assert self._folder is not None
        return (self._folder / name).read_text()

    def remove(self) -> None:
        """Remove it; whoever is still ending in it is waited for."""
        end = time.monotonic() + _LONGEST_REMOVAL_SECONDS
        while self._folder is not None:
            try:
                self._folder.rmdir()
                self._folder = None
            except OSError:  # busy: a zombie counts until it is collected
                if time.monotonic() >= end:
                    return
                time.sleep(0.05)


# ---- output ---------------------------------------------------------------------------------------------


class Output:
    """A pipe that is read into a file, and for a while not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_end, self.write_end = os.pipe()
        fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, 4096)
        self._reads = threading.Event()
        self._reads.set()
        self._is_over = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def stop_reading(self) -> None:
        """Stop reading, and fill the pipe: the next who writes will wait."""
        self._reads.clear()
        writer = os.open(f"/proc/self/fd/{self.write_end}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while True:
                os.write(writer, b"." * 64)
        except BlockingIOError:
            pass
        finally:
            os.close(writer)

    def go_on_reading(self) -> None:
        """Read again."""
        self._reads.set()

    def close(self) -> None:
        """Read what is there, and end."""
        self._is_over = True
        self._reads.set()
        os.close(self.write_end)
        self._thread.join(5)

    def tail(self, lines: int) -> list[str]:
        """The last lines."""
        return self.path.read_text(errors="replace").splitlines()[-lines:]

    def _copy(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            while True:
                ready, _, _ = select.select([self._read_end], [], [], 0.1)
                self._reads.wait()
                if not ready:
                    if self._is_over:
                        return
                    continue
                # A reader that was stopped between select and here finds what it was woken for.
                taken = os.read(self._read_end, 4096)
                if not taken:
                    return
                file.write(taken)
