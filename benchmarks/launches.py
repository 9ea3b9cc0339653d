"""Starting a contender for a measurement, and making sure that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import Contender, launch_command, launch_environment
from launcher.records.event_files import read_events

__all__ = ["Launch", "LaunchFailedError", "descendants", "launched", "pss_kilobytes", "run_nanoseconds"]


class LaunchFailedError(Exception):
    """A contender did not do what was to be measured; the row says so."""


class Launch:
    """A started contender.

    Args:
        process: The launcher.
        folder: Its scratch folder.
        began_ns: ``CLOCK_MONOTONIC`` just before it was started.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, began_ns: int) -> None:
        self.process = process
        self.folder = folder
        self.began_ns = began_ns

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the launcher's end.

        Returns:
            ``CLOCK_MONOTONIC`` of its end, nanoseconds, seen through its pidfd.

        Raises:
            LaunchFailedError: It did not end in time, or not with 0.
        """
        pidfd = os.pidfd_open(self.process.pid)
        try:
            ended, _, _ = select.select([pidfd], [], [], timeout_seconds)
            ended_ns = time.monotonic_ns()
        finally:
            os.close(pidfd)
        if not ended:
            raise LaunchFailedError(f"not done after {timeout_seconds:g} s")
        if self.process.wait() != 0:
            raise LaunchFailedError(f"exit code {self.process.returncode}: {self.last_words()}")
        return ended_ns

    def last_words(self) -> str:
        """The last line of its output."""
        lines = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def timeline(self) -> list[dict[str, Any]]:
        """What the ranks have noted (``ranks/job.py``), oldest first."""
        path = self.folder / "timeline"
        notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sorted(notes, key=lambda note: note["t_ns"])

    def events(self) -> list[dict[str, Any]]:
        """Our launcher's own event log."""
        return read_events(str(self.folder / "logs" / "latest"))


@contextlib.contextmanager
def launched(contender: Contender, script: str, *arguments: str, **options: Any) -> Iterator[Launch]:
    """Start a script under a contender; whatever is left of it at the end of the block is killed.

    Args:
        contender: Who launches.
        script: A file of ``benchmarks/ranks``.
        *arguments: The script's; ``FOLDER`` in them becomes the scratch folder.
        **options: Of :func:`benchmarks.peers.launch_command`.
    """
    folder = Path(tempfile.mkdtemp(prefix="resilience-bench-"))
    given = [argument.replace("FOLDER", str(folder)) for argument in arguments]
    command = launch_command(contender, script, *given, folder=folder, **options)
    try:
        with (folder / "output.txt").open("wb") as output:
            began_ns = time.monotonic_ns()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launch_environment(contender),
                cwd=folder,
                start_new_session=True,
            )
        try:
            yield Launch(process, folder, began_ns)
        finally:
            _end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def descendants(pid: int) -> set[int]:
    """All that a process has started and what they have started."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            found.add(child)
            pending.append(child)
    return found


def pss_kilobytes(pid: int) -> float:
    """Proportional set size: private memory and its share of what is shared."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return float(next(line for line in file if line.startswith("Pss:")).split()[1])


def run_nanoseconds(pid: int) -> int:
    """Time on a processor so far, all threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    left = {process.pid, *descendants(process.pid)}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
