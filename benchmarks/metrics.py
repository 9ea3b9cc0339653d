"""What a scrape every 10 ms does to detection and restart: the same job with it and without any metrics, taking turns.

    python -m benchmarks.metrics                     some minutes
    python -m benchmarks.metrics --pairs 16 --hangs 8

Each job has two ranks, of which one hangs in several generations. *Detection* is from when it had passed its limit to
the verdict, *signal* from the same moment to the signal (incident and stacks are taken in between), *restart* from when
the launcher saw the exit to the start of the next ranks, *recovery* from the same moment to when both had shown their
first sign of life; all by the launcher's own event log. The jobs of a pair take turns in who comes first, so that both
see the same machine. Whoever asks for metrics is most often another machine; here it is a thread at nice 19.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.__main__ import machine
from launcher.records.event_files import read_events

RANK = Path(__file__).parent / "ranks" / "hanging.py"
WHAT = ("detection", "signal", "restart", "recovery")
_REQUEST = b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text\r\n\r\n"


class Measured(NamedTuple):
    """One job: milliseconds by what was measured, and how it was asked."""

    times: dict[str, list[float]]
    sent: int
    pages: int
    slowest_seconds: float


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metrics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8, metavar="COUNT", help="pairs of jobs (8)")
    parser.add_argument("--hangs", type=int, default=4, metavar="COUNT", help="hangs in each job (4)")
    parser.add_argument(
        "--interval", type=float, default=0.01, metavar="SECONDS", help="between two scrapes (0.01); 1000: hardly any"
    )
    options = parser.parse_args()
    print(machine())
    found: dict[bool, list[Measured]] = {False: [], True: []}
    for pair in range(options.pairs):
        for is_scraped in (False, True) if pair % 2 == 0 else (True, False):
            found[is_scraped].append(measure(options.hangs, options.interval if is_scraped else None))
    print(f"a scrape every {options.interval:g} s")
    show(found[False], found[True])
    return 0


def measure(hangs: int, interval: float | None) -> Measured:
    """Run one job.

    Args:
        hangs: How many of its generations hang.
        interval: Seconds between two scrapes; None for a job without metrics.

    Raises:
        RuntimeError: It did not end with 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        asked = Asked(logs, interval or 0.0)
        line = command(hangs, interval is not None, logs)
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with contextlib.nullcontext() if interval is None else asked:
            _, said = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"a job ended with {process.returncode}:\n{said.decode(errors='replace')}")
        return Measured(times(read_events(logs / "latest")), asked.sent, asked.pages, asked.slowest_seconds)


def command(hangs: int, is_scraped: bool, logs: Path) -> list[str]:
    """One launcher that restarts at once, as often as ranks hang."""
    ours = ["--ft-restart-backoff-after", "0", "--ft-max-no-progress-cycles", "0"]
    ours += ["--ft-rank-section-timeouts", "setup:600,step:0.5,checkpointing:600"]
    ours += ["--ft-metrics-port", "0"] if is_scraped else []
    group = ["--nproc-per-node", "2", "--max-restarts", str(hangs), "--log-dir", str(logs)]
    return [sys.executable, "-m", "launcher", *group, *ours, str(RANK), str(hangs)]


def times(events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Milliseconds of every hang of a job, by what was measured."""
    found: dict[str, list[float]] = {what: [] for what in WHAT}
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        first.setdefault((event["event"], event.get("generation", -1)), event)
    for (name, generation), event in first.items():
        if name != "hang":
            continue
        seen_ns = first["seen", generation]["t_ns"]
        signs = [stamps["first_sign_ns"] for stamps in first["phases", generation + 1]["ranks"].values()]
        for what, from_ns, to_ns in (
            ("detection", event["deadline_ns"], event["seen_ns"]),
            ("signal", event["deadline_ns"], first["signalled", generation]["signalled_ns"]),
            ("restart", seen_ns, first["started", generation + 1]["t_ns"]),
            ("recovery", seen_ns, max(signs)),
        ):
            found[what].append((to_ns - from_ns) / 1e6)
    return found


class Asked:
    """Asks for metrics again and again, whether or not the answers before have come, in a thread.

    Args:
        logs: Where the job has its log folder, whose events name the port.
        interval: Seconds between two scrapes.
    """

    def __init__(self, logs: Path, interval: float) -> None:
        self._interval = interval
        self.sent = self.pages = 0
        self.answered = threading.Semaphore(0)
        """Released for each page."""
        self.slowest_seconds = 0.0
        self._logs = logs
        self._ends = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asked:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._close(key.data)
        self._selector.close()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        port = None
        while port is None and not self._ends.wait(0.01):
            with contextlib.suppress(OSError):
                port = next((e["port"] for e in read_events(self._logs / "latest") if e["event"] == "metrics"), None)
        due = time.monotonic()
        while not self._ends.is_set() and port is not None:
            if (now := time.monotonic()) >= due:
                due = max(due + self._interval, now - 1)
                self._send(port)
            for key, _ in self._selector.select(min(0.1, max(0.0, due - time.monotonic()))):
                self._go_on(key.data)

    def _send(self, port: int) -> None:
        request = _Request()
        request.connection.connect_ex(("127.0.0.1", port))
        self._selector.register(request.connection, selectors.EVENT_WRITE, request)
        self.sent += 1

    def _go_on(self, request: _Request) -> None:
        try:
            if not request.is_sent:
                request.connection.send(_REQUEST)
                request.is_sent = True
                self._selector.modify(request.connection, selectors.EVENT_READ, request)
                return
            if piece := request.connection.recv(1 << 20):
                request.end = (request.end + piece)[-6:]
                return
        except OSError:  # refused, or closed since there were too many
            pass
        if request.end == b"# EOF\n":
            self.pages += 1
            self.answered.release()
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - request.began)
        self._close(request)

    def _close(self, request: _Request) -> None:
        self._selector.unregister(request.connection)
        request.connection.close()


class _Request:
    """One of them."""

    def __init__(self) -> None:
        self.connection = socket.socket()
        self.connection.setblocking(False)
        self.began = time.monotonic()
        self.is_sent = False
        self.end = b""


def show(plain: list[Measured], scraped: list[Measured]) -> None:
    """Print medians side by side."""
    sent, pages = sum(each.sent for each in scraped), sum(each.pages for each in scraped)
    hangs = sum(len(each.times["detection"]) for each in plain)
    print(f"load {os.getloadavg()[0]:.1f} at the end; {len(plain)} pairs of jobs, {hangs} hangs each way")
    slowest = max(each.slowest_seconds for each in scraped)
    print(f"{sent} scrapes, {pages} answered with a whole page, the slowest after {slowest:.2f} s")
    print(f"{'':10} {'without':>20} {'scraped':>22}   median of the pairs' differences")
    for what in WHAT:
        ways = [[ms for each in way for ms in each.times[what]] for way in (plain, scraped)]
        cells = [f"{statistics.median(ms):8.1f} (p90 {sorted(ms)[int(len(ms) * 0.9)]:7.1f})" for ms in ways]
        differences = [
            statistics.median(after.times[what]) - statistics.median(before.times[what])
            for before, after in zip(plain, scraped, strict=True)
        ]
        print(f"{what:10} {cells[0]:>20} {cells[1]:>22}   {statistics.median(differences):+.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
