"""How soon many launchers have started the next generation after a failure. Real ones, all on this machine.

    python -m benchmarks.nodes.agents --agents 8,32 --failures 10

Each launcher has one rank, which says that it has started and waits. One of them is killed with SIGKILL, and the time
is taken from that until the last rank of the next generation runs its first line. All share this machine's processors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["Agents", "main"]

_ROOT = Path(__file__).resolve().parents[2]
_BOUND_SECONDS = 300.0
_LOOK_SECONDS = 0.005
_RANK = """
import os, signal, sys, time
now = time.monotonic_ns()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # an interpreter with torch needs its time to end
name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
with open(os.path.join(sys.argv[1], "." + name), "w") as file:
    file.write(f"{now} {os.getpid()}")
os.rename(file.name, os.path.join(sys.argv[1], name))
while True:
    signal.pause()
"""


class Agents:
    """Launchers of one job, each with one rank.

    Args:
        count: How many.
        failures: How many generations may fail.
        folder: For their files.
    """

    def __init__(self, count: int, failures: int, folder: Path) -> None:
        self.count = count
        self._said = folder / "said"
        self._said.mkdir(parents=True)
        script = folder / "rank.py"
        script.write_text(_RANK)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "launcher", "--nnodes", str(count), "--nproc-per-node", "1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "agents"]
        command += ["--max-restarts", str(failures)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
        self.launchers: list[subprocess.Popen[bytes]] = []
        for index in range(count):
            own = [*command, "--log-dir", str(folder / f"logs-{index}"), str(script), str(self._said)]
            with (folder / f"output-{index}.txt").open("wb") as output:
                self.launchers.append(
                    subprocess.Popen(own, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
                )

    def started(self, generation: int) -> dict[int, tuple[int, int]]:
        """Wait until every rank of a generation runs.

        Returns:
            When each ran its first line, ``CLOCK_MONOTONIC`` in nanoseconds, and its pid, by rank.

        Raises:
            TimeoutError: They do not within five minutes, or a launcher has ended.
        """
        deadline = time.monotonic() + _BOUND_SECONDS
        paths = {rank: self._said / f"{generation}-{rank}" for rank in range(self.count)}
        while not all(path.exists() for path in paths.values()):
            missing = [rank for rank, path in paths.items() if not path.exists()]
            if time.monotonic() > deadline or any(each.poll() is not None for each in self.launchers):
                raise TimeoutError(f"generation {generation}: ranks {missing} have not started")
            time.sleep(_LOOK_SECONDS)
        facts = {rank: path.read_text().split() for rank, path in paths.items()}
        return {rank: (int(ns), int(pid)) for rank, (ns, pid) in facts.items()}

    def close(self) -> list[int]:
        """End the job as a scheduler does; return the exit codes."""
        for each in self.launchers:
            each.terminate()
        try:
            return [each.wait(_BOUND_SECONDS) for each in self.launchers]
        finally:
            for each in self.launchers:
                each.kill()


def seconds_to_the_next(count: int, failures: int, folder: Path) -> list[float]:
    """Kill a rank several times, and return the seconds from each to the last start of the next generation.

    Raises:
        TimeoutError: A generation has not started.
        RuntimeError: The launchers did not end well.
    """
    agents = Agents(count, failures, folder)
    try:
        found = []
        ranks = agents.started(0)
        for generation in range(1, failures + 1):
            time.sleep(2.0)  # let what the start has put off be done
            began = time.monotonic_ns()
            os.kill(ranks[generation % count][1], signal.SIGKILL)
            ranks = agents.started(generation)
            found.append((max(ns for ns, _ in ranks.values()) - began) / 1e9)
    finally:
        codes = agents.close()
    if any(codes):
        raise RuntimeError(f"launchers ended with {codes}; their outputs: {folder}")
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes.agents", description=__doc__.split("\n")[0])
    parser.add_argument("--agents", default="4,32", help="comma list (default: %(default)s)")
    parser.add_argument("--failures", type=int, default=10, help="of each job (default: %(default)s)")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("| launchers | failures | median s | max s |\n|---|---|---|---|")
    for count in map(int, options.agents.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="agents-"))
        seconds = seconds_to_the_next(count, options.failures, folder)
        shutil.rmtree(folder, ignore_errors=True)
        print(f"| {count} | {len(seconds)} | {statistics.median(seconds):.3f} | {max(seconds):.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
