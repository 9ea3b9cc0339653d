"""In a real rank: what one section pair, one heartbeat and one pair of bus events cost. Prints one JSON object.

Each call is timed alone (its clock reads subtracted) for the p99, and in batches for the median.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clients import make_client

Call = Callable[[], object]
BATCH = 500


def main() -> None:
    contender, calls = sys.argv[1], int(sys.argv[2])
    client = make_client(contender)

    def pair() -> None:
        client.start_section("step")
        client.end_section("step")

    measured: dict[str, Any] = {"pair": timed(pair, calls)}
    subjects: dict[str, Call] = {"pair": pair}
    if contender == "ours":
        subjects["bus"] = bus_pair(client)
        measured["bus"] = timed(subjects["bus"], calls)
        for state, number in (("stopped", signal.SIGSTOP), ("dead", signal.SIGKILL)):
            for name, call in subjects.items():
                with monitor_struck(number):
                    measured[f"{name}_{state}"] = timed(call, calls // 4)
    subjects["heartbeat"] = client.send_heartbeat
    measured["heartbeat"] = timed(client.send_heartbeat, calls)
    measured["system_calls"] = {name: system_calls(call) for name, call in subjects.items()}
    client.shutdown_workload_monitoring()
    print("RESULT " + json.dumps(measured), flush=True)


def bus_pair(client: Any) -> Call:
    """One training step's two events, with the section monitor subscribed and warm-up over."""
    from resilience_core import EventBus, RunContext, SectionMonitor

    bus = EventBus()
    bus.register(SectionMonitor(client))
    bus.setup(context=RunContext.from_environment())

    def pair() -> None:
        bus.step_start(iteration=7)
        bus.step_end(iteration=7)

    for _ in range(3):
        pair()
    return pair


def timed(call: Call, calls: int) -> dict[str, list[float]]:
    """Nanoseconds per call: means of batches, and single calls."""
    clock = time.perf_counter_ns
    for _ in range(min(calls, 1000)):
        call()
    empty = sorted(-clock() + clock() for _ in range(1001))[500]
    singles = []
    for _ in range(calls):
        began = clock()
        call()
        singles.append(clock() - began - empty)
    batches = []
    for _ in range(max(1, calls // BATCH)):
        began = clock()
        for _ in range(BATCH):
            call()
        batches.append((clock() - began) / BATCH)
    singles.sort()
    return {"batches": batches, "p99": [float(singles[int(0.99 * (len(singles) - 1))])]}


@contextmanager
def monitor_struck(number: signal.Signals) -> Iterator[None]:
    """Our monitor stopped or dead; a new one is up again afterwards."""
    launcher = int(os.environ["FT_LAUNCHER_PID"])
    monitor = wait_for_monitor(launcher, unlike=0)
    os.kill(monitor, number)
    try:
        yield
    finally:
        if number == signal.SIGSTOP:
            try:
                os.kill(monitor, signal.SIGCONT)
            except ProcessLookupError:  # it has been replaced already
                wait_for_monitor(launcher, unlike=monitor)
        else:
            wait_for_monitor(launcher, unlike=monitor)


def wait_for_monitor(launcher: int, unlike: int) -> int:
    """The process id of the launcher's monitor, once there is one that is not ``unlike``."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != unlike:
                try:
                    with open(f"/proc/{name}/stat") as file:
                        head, _, tail = file.read().rpartition(")")
                except OSError:
                    continue
                if head.endswith("(ft_monitor") and int(tail.split()[1]) == launcher and tail.split()[0] != "Z":
                    return int(name)
        time.sleep(0.01)
    raise RuntimeError("the launcher has no monitor")


def system_calls(call: Call, times: int = 1000) -> float | None:
    """System calls per call, counted by strace; None where it is not installed or not allowed."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as trace:
        tracer = subprocess.Popen(
            ["strace", "-o", trace.name, "-p", str(os.getpid())], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not is_traced():
            if tracer.poll() is not None:
                return None
            time.sleep(0.01)
        os.getppid()
        for _ in range(times):
            call()
        os.getppid()
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        lines = trace.read().splitlines()
    first, last = (index for index, line in enumerate(lines) if line.startswith("getppid("))
    return (last - first - 1) / times


def is_traced() -> bool:
    with open("/proc/self/status") as file:
        return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)


if __name__ == "__main__":
    main()
