"""The cells of the matrix: real launchers of one environment, and what must be seen of each."""

from __future__ import annotations

import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

RANK = Path(__file__).parent / "rank.py"
_COMMON = ("--max-restarts", "4", "--ft-rank-section-timeouts", "step:5", "--ft-capture-stacks", "false")


class CellError(Exception):
    """What was not as it must be, with the last that the launcher said."""


class Environment:
    """One environment that a launcher runs in.

    Args:
        python: Its interpreter.
        environ: The variables that its processes get.
        seconds: How long one launch may take.
    """

    def __init__(self, python: Path, environ: Mapping[str, str], seconds: float) -> None:
        self.python, self._environ, self._seconds = python, dict(environ), seconds

    def run(self, *arguments: str) -> str:
        """Run Python, and return what it prints."""
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=self._seconds, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise CellError(f"{' '.join(arguments)[:60]} ended with {done.returncode}: {done.stderr[-800:]}")
        return done.stdout

    def launch(self, folder: Path, how: str, failures: int, nodes: Sequence[Sequence[str]], ranks: int) -> list[str]:
        """Start one launcher per node, wait for all, and return what the ranks of each said at their end."""
        folder.mkdir()
        running = []
        for number, options in enumerate(nodes):
            ours = ["--nproc-per-node", str(ranks), "--log-dir", str(folder / f"logs{number}"), *_COMMON, *options]
            output = (folder / f"output{number}").open("w")
            with output:
                running.append(
                    subprocess.Popen(
                        [str(self.python), "-m", "launcher", *ours, str(RANK), how, str(failures)],
                        env=self._environ,
                        cwd=folder,
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        end = time.monotonic() + self._seconds
        try:
            codes = [launcher.wait(max(0.1, end - time.monotonic())) for launcher in running]
        except subprocess.TimeoutExpired:
            raise CellError(f"not over after {self._seconds:g} s: {_last_words(folder)}") from None
        finally:
            for launcher in running:
                if launcher.poll() is None:
                    launcher.send_signal(signal.SIGKILL)  # its ranks go with it
                    launcher.wait()
        if any(codes):
            raise CellError(f"ended with {codes}: {_last_words(folder)}")
        said = [(folder / f"output{number}").read_text(errors="replace") for number in range(len(nodes))]
        for text in said:
            found = re.findall(rf"generation {failures}, sum (\d+)", text)
            if found != [str(ranks * len(nodes))] * ranks:
                raise CellError(f"not every rank ended in generation {failures}: {_last_words(folder)}")
        return said


def install(environment: Environment, folder: Path) -> None:
    """Everything of ours is found, and the command line is torchrun's with ours."""
    if "is sound" not in environment.run("-m", "torch_resilience"):
        raise CellError("python -m torch_resilience does not find it sound")
    if "--ft-rank-section-timeouts" not in environment.run("-m", "launcher", "--help"):
        raise CellError("--help does not name our options")


def hang(environment: Environment, folder: Path) -> None:
    """A rank that never returns is found and replaced."""
    (said,) = environment.launch(folder, "hang", 1, [()], ranks=2)
    if "step" not in said or "limit" not in said:
        raise CellError(f"the hang was not told: {said[-800:]}")


def kill(environment: Environment, folder: Path) -> None:
    """A rank that is killed is replaced; by warm workers, then by spawned ones."""
    environment.launch(folder, "kill", 1, [()], ranks=2)
    environment.launch(folder.with_name("spawn"), "kill", 1, [("--ft-worker-start", "spawn")], ranks=2)


def fixed_port(environment: Environment, folder: Path) -> None:
    """Three restarts in a row on a port that the user named."""
    port = unused_port()
    (said,) = environment.launch(folder, "kill", 3, [("--master-port", str(port))], ranks=2)
    if said.count(f"port {port}") < 2:
        raise CellError(f"the ranks did not meet on port {port}: {said[-800:]}")


def two_nodes(environment: Environment, folder: Path) -> None:
    """Two launchers, by the static backend and by c10d; each loses its rank once."""
    port = str(unused_port())
    static = [
        ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "localhost", "--master-port", port)
        for node in range(2)
    ]
    environment.launch(folder, "kill", 2, static, ranks=1)
    port = str(unused_port())
    endpoint = ("--rdzv-backend", "c10d", "--rdzv-id", "matrix", "--rdzv-endpoint", f"localhost:{port}")
    dynamic = ("--nnodes", "2", "--local-addr", "127.0.0.1", *endpoint)
    environment.launch(folder.with_name("c10d"), "kill", 2, [dynamic, dynamic], ranks=1)


COLUMNS: dict[str, Callable[[Environment, Path], None]] = {
    "install": install,
    "hang": hang,
    "SIGKILL": kill,
    "fixed port": fixed_port,
    "two nodes": two_nodes,
}


def unused_port() -> int:
    """A port that nobody listens on, below those that the system hands out for connections."""
    while True:
        port = random.randrange(10_000, 30_000)
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            continue


def _last_words(folder: Path) -> str:
    return "\n".join(
        f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(folder.glob("output*"))
    )
