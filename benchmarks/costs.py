"""What the two measures of ``launcher.processes.process_marks`` and ``launcher.zygote.rehearsal`` cost, beside what was
compared with each.

    python -m benchmarks.costs               some seconds
    python -m benchmarks.costs --times 200

*A mark*: one call of ``leave_mark``, as each rank makes it. *A cgroup* (version 2): one write to ``cgroup.procs`` that
moves a process into a group made for this; left out, with the reason, where no group may be made. *A first line*:
processor time of a parked worker of a real zygote, by the kernel's account, from its order to the first line of an
empty script, with the rehearsal and without. The two of a pair take turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.__main__ import machine
from launcher.processes.handles import become_subreaper
from launcher.processes.process_marks import leave_mark
from launcher.zygote.protocol import (
    Forked,
    Order,
    Park,
    Parked,
    WorkerOrder,
    order_to_file,
    packet_pair,
    receive_message,
    send_message,
)
from resilience_core.environment import CELL_VARIABLE
from resilience_core.protocol.cell import Cell

_RLIMIT_LOCKS = 10
_PRELOAD = "torch,torch.distributed,resilience_core.monitoring.client,resilience_core.config.schema"
_ZYGOTE = """
import os, socket, sys
from launcher.zygote import zygote
from launcher.zygote.worker_bootstrap import run_as_main
if sys.argv[1] == "nothing":
    zygote.rehearse = lambda: None
run_as_main(zygote.serve(socket.socket(fileno=int(sys.argv[2])), os.getppid(), sys.argv[3].split(","), ()))
"""
_FIRST_LINE = """import os, sys, time
now = time.process_time_ns()
with open(sys.argv[1], 'w') as file:
    file.write(str(now))
os._exit(0)
"""
_ALONE_SECONDS = 0.05
"""Between two entries of a cgroup: one right after another is spared the wait for a grace period of RCU."""


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=60, metavar="COUNT", help="how often each is measured (60)")
    parser.add_argument("--preload", default=_PRELOAD, metavar="MODULES", help="what the zygote imports")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        mark = marks(options.times, folder)
        show("a mark (setrlimit)", mark)
        try:
            show("entering a cgroup in its place", cgroups(options.times), mark)
        except OSError as error:
            print(f"entering a cgroup in its place: not measured, no group may be made here ({error})")
        become_subreaper()
        nothing, rehearsed = first_lines(options.times, Path(folder), options.preload)
        show("order to first line, nothing rehearsed", nothing)
        show("order to first line, after a rehearsal", rehearsed, nothing)
    return 0


def show(what: str, seconds: Sequence[float], base: Sequence[float] = ()) -> None:
    """Print one line: median, maximum, and how many times another median."""
    median = statistics.median(seconds)
    unit, factor = ("us", 1e6) if median < 1e-4 else ("ms", 1e3)
    ratio = f", {median / statistics.median(base):.2f} times that before" if base else ""
    print(f"{what:40} {median * factor:8.2f} {unit} in the median, {max(seconds) * factor:8.2f} {unit} at most{ratio}")


def marks(times: int, folder: str) -> list[float]:
    """Seconds that a mark takes; the limit of this process is put back."""
    before = resource.getrlimit(_RLIMIT_LOCKS)
    try:
        return [_timed(lambda number=number: leave_mark(f"{folder}/cells/{number}")) for number in range(times)]
    finally:
        resource.setrlimit(_RLIMIT_LOCKS, before)


def cgroups(times: int) -> list[float]:
    """Seconds that it takes to enter a cgroup of version 2.

    Raises:
        OSError: None may be made.
    """
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if root is None:
        raise OSError("no cgroup of version 2 is mounted")
    group = root / f"ft_costs-{uuid.uuid4().hex[:12]}"
    group.mkdir()
    found = []
    try:
        for _ in range(times):
            time.sleep(_ALONE_SECONDS)
            with subprocess.Popen(["sleep", "600"]) as process:
                try:
                    found.append(_timed(lambda pid=process.pid: (group / "cgroup.procs").write_text(str(pid))))
                finally:
                    process.kill()
    finally:
        group.rmdir()
    return found


def first_lines(times: int, folder: Path, preload: str) -> tuple[list[float], list[float]]:
    """Seconds of processor time from the order to the first line: without a rehearsal, and with it."""
    (folder / "script.py").write_text(_FIRST_LINE)
    found: dict[str, list[float]] = {"nothing": [], "rehearsal": []}
    zygotes = {}
    for kind in found:
        ours, theirs = packet_pair()
        with theirs:
            command = [sys.executable, "-c", _ZYGOTE, kind, str(theirs.fileno()), preload]
            zygotes[kind] = ours, subprocess.Popen(command, pass_fds=[theirs.fileno()])
        if receive_message(ours) is None:
            raise RuntimeError("the zygote has ended; its standard error says why")
    try:
        for number in range(times):
            for kind, (channel, _) in zygotes.items():
                cell = Cell.create(str(folder / f"{kind}-{number}"), rank=0, generation=number)
                found[kind].append(_first_line(channel, folder, cell.path))
                cell.close()
    finally:
        for channel, zygote in zygotes.values():
            channel.close()
            zygote.wait()
    return found["nothing"], found["rehearsal"]


def _first_line(channel: socket.socket, folder: Path, cell: str) -> float:
    send_message(channel, Park(1))
    parked = receive_message(channel)
    assert parked is not None, "the zygote has ended"
    with socket.socket(fileno=parked.descriptors[0]) as link:
        pid = 0
        while (message := receive_message(link)) is not None and not isinstance(message.message, Parked):
            pid = message.message.pid if isinstance(message.message, Forked) else pid
        while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "S":
            assert state in "RD", f"the parked worker is in state {state}"
        before = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        arguments = (str(folder / "script.py"), str(folder / "now"))
        order = WorkerOrder(arguments, False, {**os.environ, CELL_VARIABLE: cell}, "", "")
        file = order_to_file(order)
        send_message(link, Order(), [file])
        os.close(file)
        while receive_message(link) is not None:
            pass
    os.waitpid(pid, 0)
    return (int((folder / "now").read_text()) - before) / 1e9


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e9


if __name__ == "__main__":
    sys.exit(main())
