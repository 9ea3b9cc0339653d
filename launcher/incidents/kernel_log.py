"""What the kernel has logged that may explain a failure: kills for want of memory, GPU, storage, network, hardware.

Source: the kernel's ``Documentation/ABI/testing/dev-kmsg``. Reading needs a right that containers seldom have; where it
is missing there is no evidence from here, and nothing else changes. Nothing here waits.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import time
from typing import NamedTuple

from launcher.processes.proc import in_first_pid_namespace
from launcher.records.readable import readable
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["KernelLine", "KernelLog"]

_RECORD_BYTES = 1 << 13
_MOST_AT_ONCE = 20_000
_MOST_KEPT = 200
_LONGEST_LINE = 300
_LOST_NS = 60 * NS_PER_SECOND
_TELLING = re.compile(
    r"NVRM: |nvidia-\w+: .*[Ff]ail"
    r"|[Oo]ut of memory: Kill(ed)? process|SXid"
    r"|I/O error|critical \w+ error|controller is down"
    r"|EXT4-fs error|XFS .*([Ee]rror|[Ss]hutdown|[Cc]orruption)|BTRFS.*error|Remounting filesystem read-only"
    r"|nfs: server .* not responding|LustreError|ceph: .*(hung|lost)"
    r"|Hardware Error|Machine check|mce: |EDAC .*: \d+ [CU]E|AER: .*([Ff]atal|[Uu]ncorrect)|PCIe Bus Error"
    r"|NETDEV WATCHDOG|[Ll]ink (is )?(DOWN|[Dd]own)|(mlx\d_core|bnxt_en|ena|irdma|hfi1)\b.*([Ee]rror|[Tt]imeout|fail)"
    r"|blocked for more than \d+ seconds|soft lockup|hard LOCKUP|rcu.*self-detected stall"
    r"|segfault at|general protection|trap invalid opcode|traps: "
)


_MEMORY_KILL = re.compile(
    r"oom-kill:constraint=.*?(?:oom_memcg=(?P<group>.*?),)?task_memcg=.*,pid=(?P<pid>\d+)(?:,uid=\d+)?$"
)
_KILLED = re.compile(r"\bKilled process (?P<pid>\d+)")
_WHOSE = " (the number is the machine's, not of this PID namespace; it may be a process of another job)"
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")


class KernelLine(NamedTuple):
    """One line that may matter."""

    text: str
    at_ns: int
    """``CLOCK_MONOTONIC`` when it was logged, as nearly as that is known."""
    is_kill: bool = False
    """A process was killed for want of memory."""


class KernelLog:
    """Reads what is logged from now on.

    Args:
        path: The device; tests have another file.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._descriptor: int | None = None
        self._kept: collections.deque[KernelLine] = collections.deque(maxlen=_MOST_KEPT)
        self._memory_kills: collections.deque[tuple[int, str | None, int]] = collections.deque(maxlen=_MOST_KEPT)
        """Process, the group whose limit it was killed for where that is told, and when."""
        self._lost_ns: int | None = None
        """When lines were found to have been overwritten."""
        self._read_ns = time.monotonic_ns()
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev:  # what some containers put in its place
                    raise OSError(errno.ENODEV, "it is the null device", path)
                os.lseek(descriptor, 0, os.SEEK_END)
            except OSError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    @property
    def tells_of_all_kills(self) -> bool:
        """Return whether every kill of a process of ours is found here: the log is read, and its pids are ours."""
        is_whole = self._lost_ns is None or time.monotonic_ns() - self._lost_ns > _LOST_NS
        return self._descriptor is not None and is_whole and in_first_pid_namespace()

    def read(self) -> None:
        """Take in what was logged since the last time."""
        if self._descriptor is None:
            return
        before_ns, self._read_ns = self._read_ns, time.monotonic_ns()
        for _ in range(_MOST_AT_ONCE):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # lines that nobody had read were overwritten; the next read goes on after them
                self._lost_ns = self._read_ns
                continue
            except OSError:
                self.close()
                return
            if not record:
                return
            self._take(record.decode("utf-8", errors="replace"), before_ns)

    def _take(self, record: str, before_ns: int) -> None:
        # "priority,number,microseconds,flags;text", and details on lines of their own that begin with a blank.
        head, _, rest = record.partition(";")
        text, stamp = rest.partition("\n")[0], [*head.split(","), "", "", ""][2]
        # The kernel's own clock is not adjusted as CLOCK_MONOTONIC is: the times of our reads bound it.
        at_ns = int(stamp) * 1000 if stamp.isdigit() else self._read_ns
        at_ns = min(max(at_ns, before_ns), self._read_ns)
        if (kill := _MEMORY_KILL.search(text)) is not None:
            group = _ESCAPED.sub(_unescaped, kill["group"] or "")
            self._memory_kills.append((int(kill["pid"]), group, at_ns))
        elif (killed := _KILLED.search(text)) is not None:  # the line above is left out where many are killed at once
            self._memory_kills.append((int(killed["pid"]), None, at_ns))
        if _TELLING.search(text):
            is_kill = kill is not None or _KILLED.search(text) is not None
            self._kept.append(KernelLine(readable(text[:_LONGEST_LINE]), at_ns, is_kill))

    def since(self, at_ns: int, kills_since_ns: int = 0) -> list[str]:
        """Return the telling lines that were logged since an instant of ``CLOCK_MONOTONIC``, the oldest first.

        Args:
            at_ns: The instant.
            kills_since_ns: Kills for want of memory before this instant are left out: those concern others.
        """
        now_ns = time.monotonic_ns()
        whose = "" if in_first_pid_namespace() else _WHOSE
        return [
            f"kernel, {(now_ns - line.at_ns) / NS_PER_SECOND:.1f} s ago: {line.text}{whose if line.is_kill else ''}"
            for line in self._kept
            if line.at_ns >= (max(at_ns, kills_since_ns) if line.is_kill else at_ns)
        ]

    def memory_kill_of(self, pid: int, since_ns: int) -> tuple[str | None] | None:
        """Return the control group whose limit a process was killed for, empty for the machine as a whole.

        The group is None where it is not told. Nothing is returned where the kernel has not said that it has killed the
        process, out of memory, or counts processes otherwise than this PID namespace does.

        Args:
            pid: Of the process.
            since_ns: ``CLOCK_MONOTONIC``; a number is used again at some time.
        """
        if not in_first_pid_namespace():
            return None
        found = [group for killed, group, at_ns in self._memory_kills if killed == pid and at_ns >= since_ns]
        return (next((group for group in reversed(found) if group is not None), None),) if found else None

    def close(self) -> None:
        """Read no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _unescaped(escaped: re.Match[str]) -> str:
    return bytes.fromhex(escaped[0].replace("\\x", "")).decode("utf-8", errors="replace")
