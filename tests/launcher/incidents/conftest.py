"""Files as the kernel shows them, a clock that stands until it is moved, and real control groups of memory."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.incidents.kernel_log import KernelLog
from launcher.processes.proc import in_first_pid_namespace
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import PF_EXITING

MIB = 1 << 20
EATS_MEMORY = """
import sys
print("ready", flush=True)
sys.stdin.readline()
eaten = [b"x" * (8 << 20) for _ in range(64)]
print("let live", flush=True)
"""
"""Waits for a line, then takes 512 MiB and no more, where nobody stops it."""


class Clock:
    """Stands in for the module ``time`` of whoever reads ``CLOCK_MONOTONIC``."""

    def __init__(self) -> None:
        self.now_ns = 1000 * NS_PER_SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def move(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_SECOND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the time, on a machine whose processes have the numbers by which its kernel calls them."""
    clock = Clock()
    monkeypatch.setattr("launcher.incidents.kernel_log.in_first_pid_namespace", lambda: True)
    for module in ("memory_kills", "kernel_log", "machine"):
        monkeypatch.setattr(f"launcher.incidents.{module}.time", clock)
    return clock


class Kernel:
    """A machine of 16 GiB with control groups of one version, below a folder."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self._folder = folder
        self._counts: dict[str, dict[str, int]] = {}
        self.proc, self.sys = str(folder / "proc"), str(folder / "sys")
        self.limit_file = "memory.max" if version == 2 else "memory.limit_in_bytes"
        self.write("proc/meminfo", f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nHugePages_Total: 0\n")
        self.put("self", "/launcher")

    def write(self, path: str, text: str) -> Path:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def put(self, pid: int | str, group: str) -> None:
        """Have a process be in a group."""
        lines = f"0::{group}\n" if self.version == 2 else f"4:cpu,memory:{group}\n1:name=systemd:/\n0::/\n"
        self.write(f"proc/{pid}/cgroup", lines)
        self.write(f"proc/{pid}/stat", f"{pid} (python) S 1 1 1 0 -1 4194304 0 0\n")

    def begin_to_end(self, pid: int) -> None:
        """Have a process be ending, which one of version 1 does in no group; one of version 2 stays in its own."""
        if self.version == 1:
            self.put(pid, "/")
        self.write(f"proc/{pid}/stat", f"{pid} (python) Z 1 1 1 0 -1 {4194304 | PF_EXITING} 0 0\n")

    def group(self, name: str) -> Path:
        """Return where a group is shown."""
        return Path(self.sys) / "fs" / "cgroup" / ("" if self.version == 2 else "memory") / name.strip("/")

    def set(
        self,
        name: str,
        *,
        kills: int | None = None,
        hits: int | None = None,
        limit: int | None = None,
        peak: int | None = None,
        together: int | None = None,
    ) -> None:
        """Have a group count so many kills and so many hits of its limit, be limited to and come to so many bytes.

        In version 1 memory and swap may have a limit together, too.
        """
        folder = self.group(name)
        folder.mkdir(parents=True, exist_ok=True)
        counts = self._counts.setdefault(name, {"kills": 0, "hits": 0})
        counts.update({key: value for key, value in (("kills", kills), ("hits", hits)) if value is not None})
        text = f"oom_kill {counts['kills']}\n"
        if self.version == 2:
            text = f"low 0\nhigh 0\nmax {9 * counts['hits']}\noom {counts['hits']}\n{text}oom_group_kill 0\n"
            (folder / "memory.events").write_text(text)
        else:
            (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\n{text}")
            (folder / "memory.failcnt").write_text(f"{counts['hits']}\n")
        if limit is not None:
            (folder / self.limit_file).write_text(f"{limit}\n")
        if together is not None and self.version == 1:
            (folder / "memory.memsw.limit_in_bytes").write_text(f"{together}\n")
        if peak is not None:
            name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
            (folder / name).write_text(f"{peak}\n")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, request.param)


@pytest.fixture
def memory_groups() -> Iterator[Callable[[int], Path]]:
    """Make real groups with a limit each, which the test leaves empty; skip where this user may make none."""
    made: list[Path] = []

    def make(limit_bytes: int) -> Path:
        version_1 = Path("/sys/fs/cgroup/memory")
        group = (version_1 if version_1.is_dir() else version_1.parent) / f"ft_test-{uuid.uuid4().hex[:12]}"
        try:
            group.mkdir()
            made.append(group)
            limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
            limit, swap = limits if version_1.is_dir() else ("memory.max", "memory.swap.max")
            (group / limit).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"no control group of memory can be made here: {error}")
        if len(Path("/proc/swaps").read_text().splitlines()) > 1:
            with contextlib.suppress(OSError):  # there may be no account of swap
                (group / swap).write_text("0" if swap == "memory.swap.max" else str(limit_bytes))
        return group

    yield make
    for group in made:
        group.rmdir()


@pytest.fixture
def real_kernel_log() -> Iterator[KernelLog]:
    """Open the kernel's log of this machine; skip where this user may not, or where it has other numbers for ours."""
    try:
        with open("/dev/kmsg", "rb", buffering=0) as file:
            file.seek(0, os.SEEK_END)
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read here: {error}")
    if not in_first_pid_namespace():
        pytest.skip("this is a PID namespace of its own, whose numbers the kernel's log does not have")
    log = KernelLog()
    yield log
    log.close()
