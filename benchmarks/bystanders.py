"""Whether a job is delayed by whoever looks on: readers that are stopped, commands that hang, a disk that is full.

    python -m benchmarks.bystanders                            all of them, some ten minutes
    python -m benchmarks.bystanders --rounds 2 --only plain,scraped

Two ranks; rank 0 kills itself, or stays in a section for longer than its limit, again and again. What is measured is
the time from the death, or from the deadline, to the first ``all_reduce`` of the next generation. In each round every
condition has its turn, and the ratio of its median to that of the plain job of the same round is taken.

* ``plain``: nothing else
* ``on event``: ``--ft-on-event`` with a command that never ends
* ``scraped``: ``--ft-metrics-port``, scraped every 10 ms
* ``full``: the log folder is a file system that has no room left since the first generation (needs root)
* ``read-only``: the log folder is an ext4 that turns read-only then, as after an error of the disk (root, loop devices)
* ``unread``: standard error is a pipe that nobody reads
* ``stopped``: an ``ft_top`` that was stopped while it was reading

Everything runs in PID and mount namespaces of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.chaos.__main__ import unshare_command

RANK = Path(__file__).parent / "ranks" / "restarting.py"
_INSIDE = "FT_BENCH_INSIDE"
_PORT = 29871
_PAGE = f"http://127.0.0.1:{_PORT}/metrics"
_LONGEST_JOB_SECONDS = 300.0
_LONGEST_START_SECONDS = 60.0


class Job:
    """One launcher whose rank 0 fails again and again.

    Args:
        folder: For its files.
        how: ``kill`` or ``hang``.
        restarts: How often.
    """

    def __init__(self, folder: Path, how: str, restarts: int) -> None:
        self.stamps, self.log_dir = folder / "stamps", folder / "log"
        self.stamps.mkdir()
        self.log_dir.mkdir()
        self._how, self._restarts = how, restarts
        self.said = folder / "said"

    def run(self, options: list[str], *, is_read: bool = True, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run it to its end.

        Args:
            options: Of ft_launcher, more.
            is_read: Somebody reads its standard error.
            meanwhile: Called when the first generation has formed its group.
        """
        limits = ["--ft-rank-section-timeouts", "step:0.5"] if self._how == "hang" else []
        ours = ["--ft-restart-backoff-after", "0", "--ft-max-no-progress-cycles", "0", *limits, *options]
        group = ["--nproc-per-node", "2", "--max-restarts", str(self._restarts), "--rdzv-id", "run"]
        script = [str(RANK), str(self.stamps), str(self._restarts), self._how]
        command = [sys.executable, "-m", "launcher", *group, "--log-dir", str(self.log_dir), *ours, *script]
        with (
            open(self.said, "wb") as said,
            subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=said if is_read else subprocess.PIPE
            ) as launcher,
        ):
            deadline = time.monotonic() + _LONGEST_JOB_SECONDS
            try:
                while not (self.stamps / "0-0").exists() and launcher.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                meanwhile()
                code = launcher.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SystemExit(
                    f"the launcher has not ended within {_LONGEST_JOB_SECONDS:g} s; see {self.said}"
                ) from None
            finally:
                if launcher.poll() is None:
                    launcher.kill()
            if code != 0:
                raise SystemExit(f"the launcher has ended with {code}; see {self.said}")

    def seconds(self) -> list[float]:
        """Return how long each restart took, from the death or the deadline to the all_reduce of all ranks."""
        found = []
        for generation in range(self._restarts):
            failed = int((self.stamps / f"died-{generation}").read_text())
            done = [int((self.stamps / f"{generation + 1}-{rank}").read_text().split()[-1]) for rank in range(2)]
            found.append((max(done) - failed) / 1e9)
        return found


def _plain(job: Job) -> None:
    job.run([])


def _on_event(job: Job) -> None:
    job.run(["--ft-on-event", "sleep 1000"])


def _scraped(job: Job) -> None:
    ended = threading.Event()
    counts = [0]

    def scrape() -> None:
        while not ended.wait(0.01):
            with (
                contextlib.suppress(OSError, http.client.HTTPException),  # the launcher may end in the middle of one
                urllib.request.urlopen(_PAGE, timeout=5) as page,
            ):
                counts[0] += bool(page.read())

    thread = threading.Thread(target=scrape)
    try:
        job.run(["--ft-metrics-port", str(_PORT)], meanwhile=thread.start)
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
    if not counts[0]:
        raise SystemExit("no scrape was answered")


def _full(job: Job) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(job.log_dir)], check=True)

    def fill() -> None:
        with contextlib.suppress(OSError), open(job.log_dir / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        job.run([], meanwhile=fill)
    finally:
        subprocess.run(["umount", "--lazy", str(job.log_dir)], check=True)


def _read_only(job: Job) -> None:
    image = job.log_dir.with_name("image")
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(job.log_dir)], check=True)

    def fail() -> None:
        subprocess.run(["mount", "-o", "remount,abort", str(job.log_dir)], check=True)

    try:
        job.run([], meanwhile=fail)
    finally:
        subprocess.run(["umount", "--lazy", str(job.log_dir)], check=True)


def _unread(job: Job) -> None:
    job.run([], is_read=False)


def _stopped(job: Job) -> None:
    with contextlib.ExitStack() as stack:

        def look() -> None:
            top = [sys.executable, "-m", "launcher.top", str(job.log_dir / "run")]
            primary, secondary = os.openpty()
            reader = stack.enter_context(subprocess.Popen(top, stdin=secondary, stdout=secondary, stderr=secondary))
            stack.callback(reader.kill)
            os.close(secondary)
            stack.callback(os.close, primary)
            if not select.select([primary], [], [], _LONGEST_START_SECONDS)[0]:
                raise SystemExit(f"ft_top has drawn nothing within {_LONGEST_START_SECONDS:g} s")
            reader.send_signal(signal.SIGSTOP)

        job.run([], meanwhile=look)


CONDITIONS: dict[str, Callable[[Job], None]] = {
    "plain": _plain,
    "on event": _on_event,
    "scraped": _scraped,
    "full": _full,
    "read-only": _read_only,
    "unread": _unread,
    "stopped": _stopped,
}


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="COUNT", help="how often each has its turn (5)")
    parser.add_argument("--restarts", type=int, default=8, metavar="COUNT", help="of each job (8)")
    parser.add_argument("--only", default=",".join(CONDITIONS), metavar="NAMES", help="conditions, with commas between")
    arguments = parser.parse_args()
    chosen = ["plain", *(name for name in arguments.only.split(",") if name != "plain")]
    if unknown := [name for name in chosen if name not in CONDITIONS]:
        parser.error(f"there is no condition {', '.join(unknown)}; there are {', '.join(CONDITIONS)}")
    if _INSIDE not in os.environ:
        if (inside := unshare_command()) is None:
            parser.error("namespaces cannot be made here; it takes root, or user namespaces")
        command = [*inside, sys.executable, "-m", "benchmarks.bystanders", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode
    medians: dict[tuple[str, str], list[float]] = {}
    worst: dict[tuple[str, str], float] = {}
    with _folder() as folder:
        for number in range(arguments.rounds):
            order = chosen if number % 2 == 0 else chosen[::-1]
            for name in order:
                for how in ("kill", "hang"):
                    place = folder / f"{number}-{name.replace(' ', '-')}-{how}"
                    place.mkdir()
                    job = Job(place, how, arguments.restarts)
                    CONDITIONS[name](job)
                    seconds = job.seconds()
                    medians.setdefault((name, how), []).append(statistics.median(seconds))
                    worst[name, how] = max(worst.get((name, how), 0.0), *seconds)
    print(f"{arguments.rounds} rounds of {arguments.restarts} restarts each; load {os.getloadavg()[0]:.1f}")
    print(*table(chosen, medians, worst), sep="\n")
    return 0


def table(
    chosen: list[str], medians: dict[tuple[str, str], list[float]], worst: dict[tuple[str, str], float]
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        chosen: The conditions.
        medians: Of each condition and kind of fault, one for each round (seconds).
        worst: The longest restart of all rounds.
    """
    yield "condition   after a death: median, most, ratio    after a deadline: median, most, ratio"
    for name in chosen:
        cells = []
        for how in ("kill", "hang"):
            mine, plain = medians[name, how], medians["plain", how]
            ratio = statistics.median(one / other for one, other in zip(mine, plain, strict=True))
            cells.append(f"{statistics.median(mine) * 1e3:7.1f} ms {worst[name, how] * 1e3:7.1f} ms {ratio:5.2f}")
        yield f"{name:10}  {cells[0]:37} {cells[1]}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
