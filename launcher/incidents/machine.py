"""What the machine itself tells of a failure: the kernel's log, kills for want of memory, full disks, links, GPUs.

Read when a rank dies or hangs, within a bound, and kept in the incident: an hour later the counters have moved on. What
cannot be read is left out. Decides nothing.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from launcher.health.check import Machine
from launcher.incidents.gpus import GpuEvidence
from launcher.incidents.kernel_log import KernelLog
from launcher.incidents.memory_kills import MemoryKills
from launcher.processes.background import Background, NotDoneError
from launcher.processes.control_groups import read_number, read_text
from launcher.processes.evidence import uses_a_gpu
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["LONGEST_MACHINE_SECONDS", "MachineEvidence"]

LONGEST_MACHINE_SECONDS = 0.05
"""How long a signal or a restart waits for a file system that may hang."""
_BEFORE_NS = 60 * NS_PER_SECOND
"""How long before a failure a line of the kernel may be what has led to it."""
_MOST_LINES = 10
_LEAST_FREE_BYTES = 16 << 20
_LEAST_INODES = 16
_LINKS_NS = 10 * NS_PER_SECOND
_LINK_CHANGE_COUNTS_NS = 900 * NS_PER_SECOND
"""A hang is found long after the link that has caused it has changed."""
_NET_COUNTERS = ("rx_errors", "tx_errors", "tx_carrier_errors")
"""Without packets that were dropped: most machines drop some all the time."""
_PORT_COUNTERS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards")


class MachineEvidence:
    """Looks at one machine, now and then, and when something has failed.

    Args:
        folders: Whose file systems ranks need: the log folder, say.
        proc: Where proc(5) is mounted.
        sys: Where sysfs is.
        kernel_log: The device of the kernel's log.
        shared_memory: The folder of shared memory.
        nvml_bindings: As for :class:`launcher.incidents.gpus.GpuEvidence`.
    """

    def __init__(
        self,
        folders: Sequence[str] = (),
        proc: str = Machine().proc,
        sys: str = Machine().sys,
        kernel_log: str = "/dev/kmsg",
        shared_memory: str = "/dev/shm",
        nvml_bindings: str | None = None,
    ) -> None:
        self._folders = tuple(dict.fromkeys([shared_memory, *folders]))
        self._sys = sys
        self._kernel = KernelLog(kernel_log)
        self._memory = MemoryKills(proc, sys)
        self._background = Background("ft_machine", 4)
        self._background.start()
        self._gpus = GpuEvidence(nvml_bindings)
        self.gpu_users: set[int] = set()
        """Local ranks that were seen with a GPU: one that has ended shows nothing of it any more."""
        self._links: dict[str, int] = {}
        self._looked_at_links_ns = 0
        self._link_states: collections.deque[tuple[int, str]] = collections.deque(maxlen=_MOST_LINES)
        self._link_errors: collections.deque[tuple[int, str]] = collections.deque(maxlen=_MOST_LINES)

    def look(self, pids: Mapping[int, int]) -> None:
        """Note what has to be known before a rank dies; once a second is often enough.

        Args:
            pids: Local rank to process; of ranks that live.
        """
        self._kernel.read()
        self._memory.watch(pids)
        self.gpu_users.update(n for n, pid in pids.items() if n not in self.gpu_users and uses_a_gpu(pid))
        now_ns = time.monotonic_ns()
        if self._background.is_started and now_ns - self._looked_at_links_ns >= _LINKS_NS:
            self._looked_at_links_ns = now_ns
            self._background.submit(self._note_links)  # no room: the last look hangs

    def begin_anew(self) -> None:
        """Forget the ranks of a generation that is over."""
        self._kernel.read()
        self._memory.begin_anew()
        self.gpu_users.clear()

    def memory_kill(self, local_rank: int, pid: int, *, was_killed: bool) -> str | None:
        """Return what the kernel has done for want of memory, to a rank that has just failed or to what it needed.

        Args:
            local_rank: Of the rank.
            pid: Of its process.
            was_killed: By SIGKILL, and not by us.
        """
        self._kernel.read()
        if was_killed:
            told = self._kernel.memory_kill_of(pid, time.monotonic_ns() - _BEFORE_NS)
            if told is not None:
                (group,) = told
                # That kill is this one, whatever the counts tell.
                counted = self._memory.of(local_rank, was_killed=True, is_named=True)
                return (counted if group is None else self._memory.of_group(group)) or "out of memory"
            if self._kernel.tells_of_all_kills:
                return None
        return self._memory.of(local_rank, was_killed=was_killed)

    def facts(
        self, timeout_seconds: float, ranks: Mapping[int, str] | None = None, began_ns: int = 0
    ) -> tuple[str, ...]:
        """Return what may explain a failure of now, a line each, the surest last.

        Args:
            timeout_seconds: How long file systems and the driver of GPUs may take to answer.
            ranks: Process to what people call it, of the ranks whose GPUs are looked at.
            began_ns: When the generation began (``CLOCK_MONOTONIC``): a kill before, for want of memory, is not its.
        """
        gpus = self._gpus.begin(ranks or {}, timeout_seconds, were_used=bool(self.gpu_users))
        lines: list[str] = []
        with contextlib.suppress(NotDoneError, OSError, ValueError):
            lines += self._background.call(lambda: [*self._changes(), *self._full()], timeout_seconds)
        self._kernel.read()
        logged = self._kernel.since(time.monotonic_ns() - _BEFORE_NS, began_ns)
        return (*gpus.told(), *lines, *logged[-_MOST_LINES:])

    def close(self) -> None:
        """Let go of the kernel's log."""
        self._kernel.close()

    def _full(self) -> Iterator[str]:
        for folder in self._folders:
            try:
                found = os.statvfs(folder)
            except OSError as error:
                yield f"{folder} cannot be looked at: {error.strerror}"
                continue
            free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
            if size and free < min(_LEAST_FREE_BYTES, size // 100):  # some file systems tell nothing
                yield f"{folder} is full: {free >> 10} KiB of {size >> 20} MiB are free"
            elif found.f_files and found.f_favail < min(_LEAST_INODES, found.f_files // 100):
                yield f"{folder} is full: it has room for {found.f_favail} more files (inodes)"

    def _note_links(self) -> None:
        """Note which links have changed their state, or whose errors have grown, since they were looked at last."""
        before, now_ns = self._links, time.monotonic_ns()
        self._links = dict(self._link_counters())
        for key, value in self._links.items() if before else ():
            link, _, name = key.rpartition("/")
            was = before.get(key, value)
            if name in ("carrier", "state") and was != value:
                self._link_states.append((now_ns, f"{link}: {name} became {value}, and was {was} before"))
            elif name not in ("carrier", "state") and value > was:
                self._link_errors.append((now_ns, f"{link}: {name} has grown by {value - was}"))

    def _changes(self) -> list[str]:
        self._note_links()
        now_ns = time.monotonic_ns()
        changes = (*self._link_errors, *self._link_states)
        lately = [(at_ns, text) for at_ns, text in changes if now_ns - at_ns <= _LINK_CHANGE_COUNTS_NS]
        return [f"{text}, {(now_ns - at_ns) / NS_PER_SECOND:.0f} s ago" for at_ns, text in lately]

    def _link_counters(self) -> Iterator[tuple[str, int]]:
        net = os.path.join(self._sys, "class", "net")
        for interface in _listed(net):
            folder = os.path.join(net, interface)
            if not os.path.exists(os.path.join(folder, "device")):
                continue  # loopback, bridges, ends of containers: not the machine's links
            # It cannot be read while the interface is switched off.
            yield f"interface {interface}/carrier", read_number(os.path.join(folder, "carrier")) or 0
            yield from _numbers(os.path.join(folder, "statistics"), f"interface {interface}", _NET_COUNTERS)
        for device in _listed(os.path.join(self._sys, "class", "infiniband")):
            ports = os.path.join(self._sys, "class", "infiniband", device, "ports")
            for port in _listed(ports):
                state = read_text(os.path.join(ports, port, "state")).partition(":")[0]
                if state.isdigit():
                    yield f"port {device}/{port}/state", int(state)
                yield from _numbers(os.path.join(ports, port, "counters"), f"port {device}/{port}", _PORT_COUNTERS)


def _numbers(folder: str, what: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        if (value := read_number(os.path.join(folder, name))) is not None:
            yield f"{what}/{name}", value


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
