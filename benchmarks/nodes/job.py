"""One job over the nodes: launchers that are started, signalled and started again, and what their ranks have noted."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.nodes.journal import Group, Journals, Note, groups
from benchmarks.nodes.namespaces import Machines
from benchmarks.nodes.process_table import children
from benchmarks.nodes.training import HOLD

__all__ = ["LAUNCHERS", "Job", "Launch", "TooLateError", "launcher_options", "lowest_count"]

_T = TypeVar("_T")
_LOOK_SECONDS = 0.02
_BEGIN_SECONDS = 120.0
_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = Path(__file__).resolve().with_name("training.py")
STORE_PORT = 29400

LAUNCHERS = {"ft": "launcher", "torchrun": "torch.distributed.run"}
"""Names of launchers, and the modules that they are started as."""


class TooLateError(Exception):
    """Something that was waited for did not happen within its bound; says what."""


class Launch:
    """A launcher on a node.

    Args:
        process: nsenter(1), whose only child it is.
        output: The file that has what it and its ranks have printed.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self.output = process, output
        deadline = time.monotonic() + 10
        while not (found := children(process.pid)) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        self.pid = found[0] if found else None
        """Its number outside; None if it has ended at once."""

    @property
    def exit_code(self) -> int | None:
        """As :attr:`subprocess.Popen.returncode`; None while it runs."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send the launcher, and nobody else, a signal.

        Raises:
            ProcessLookupError: It has ended.
        """
        if self.pid is None or self.exit_code is not None:
            raise ProcessLookupError("the launcher has ended")
        os.kill(self.pid, number)
        if number in (signal.SIGCONT, signal.SIGKILL):  # nsenter has stopped with a launcher that was stopped
            self.process.send_signal(signal.SIGCONT)

    def text(self) -> str:
        """What it and its ranks have printed so far."""
        return self.output.read_text(errors="replace")


class Job:
    """Launchers with the same arguments, each on a node of its own, and the training that they run.

    Args:
        machines: The nodes.
        folder: Shared by the nodes: checkpoints and journals.
        launcher: A name of :data:`LAUNCHERS`.
        members: How many nodes the job has; those after them are spares.
        options: Of the launcher, laid over the standard ones (:func:`launcher_options`).
        training: Arguments of ``training.py`` after its folder.
    """

    def __init__(
        self,
        machines: Machines,
        folder: Path,
        *,
        launcher: str = "ft",
        members: int = 3,
        options: Sequence[str] = (),
        training: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.machines, self.folder, self.members = machines, folder, members
        self.options = launcher_options(members, options)
        self._launcher = launcher
        self._command = [sys.executable, "-m", LAUNCHERS[launcher], *self.options]
        self._training = [str(_TRAINING), str(folder), *training]
        self._journals = Journals(folder, {node.name: node.clock_ahead for node in machines.nodes})
        self.launches: dict[int, list[Launch]] = {}
        """Of each node, oldest first."""
        self.fault_ns: list[int] = []
        """When each fault was made, ``CLOCK_MONOTONIC``."""

    def start(self, index: int, **environment: str) -> Launch:
        """Start a launcher on a node, with more variables in its environment."""
        node = self.machines.nodes[index]
        own = self.launches.setdefault(index, [])
        output = node.folder / f"output-{len(own)}.txt"
        logs = ["--log-dir", str(node.folder / "logs")] if self._launcher == "ft" else []
        with output.open("wb") as file:
            process = node.start(
                [*self._command, *logs, *self._training],
                output=file, environment={**_environment(self._launcher), **environment}, folder=node.folder,
            )  # fmt: skip
        own.append(Launch(process, output))
        return own[-1]

    def begin(self, steps: int = 30) -> None:
        """Start the members, then the spares, and wait until spares are connected and the training goes on.

        The ranks wait before their first step until the spares are there: on a loaded machine the training could
        otherwise be over before a spare's launcher has started.

        Args:
            steps: How many the newest group must do once the spares are there.

        Raises:
            TooLateError: One of these has not happened within two minutes.
        """
        hold = self.folder / HOLD
        hold.touch()
        for index in range(self.members):
            self.start(index)
        self.wait_for(self.groups, _BEGIN_SECONDS, "the first group")
        spares = range(self.members, self.machines.count)
        for index in spares:
            self.start(index)
        self.wait_for(
            lambda: all(self.is_connected(index) for index in spares), _BEGIN_SECONDS, "the spares' connection"
        )
        hold.unlink()
        self.wait_for(lambda: self.groups()[-1].steps >= steps, _BEGIN_SECONDS, f"{steps} steps")

    def is_completed(self) -> bool:
        """Whether every rank of the newest group has come to the end of the training."""
        met = self.groups()
        return bool(met) and len(met[-1].digests) == met[-1].world

    def running(self) -> list[int]:
        """The nodes whose newest launcher runs."""
        return [index for index, own in self.launches.items() if own[-1].exit_code is None]

    def notes(self) -> list[Note]:
        """What all ranks have noted so far."""
        return self._journals.notes()

    def groups(self) -> list[Group]:
        """The groups that have met so far."""
        return groups(self.notes())

    def wait_for(self, happened: Callable[[], _T | None], seconds: float, what: str) -> _T:
        """Wait until a question has an answer that is true.

        Raises:
            TooLateError: It had none within ``seconds``, or every launcher has ended without it.
        """
        deadline = time.monotonic() + seconds
        while True:
            is_over = bool(self.launches) and not self.running()
            if answer := happened():
                return answer
            if is_over:
                raise TooLateError(f"every launcher has ended, but {what} did not happen")
            if time.monotonic() > deadline:
                raise TooLateError(f"{what} did not happen within {seconds:g} s")
            time.sleep(_LOOK_SECONDS)

    def is_connected(self, index: int) -> bool:
        """Whether anything on a node has a connection to another node."""
        pid = self.launches[index][-1].pid
        found = set()
        for family in ("tcp", "tcp6"):
            try:
                lines = Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]
            except OSError:
                continue
            found |= {_ipv4(fields[2]) for line in lines if (fields := line.split())[3] == "01"}
        return bool(found & {node.address for node in self.machines.nodes if node.index != index})

    def victims(self, count: int = 1) -> list[int]:
        """Return nodes of the newest group other than node 0, which serves the store.

        Raises:
            LookupError: There are not so many.
        """
        names = self.groups()[-1].nodes
        found = [node.index for node in self.machines.nodes if node.name in names and node.index != 0]
        if len(found) < count:
            raise LookupError(f"the newest group has {len(found)} node(s) besides node 0, the fault needs {count}")
        return found[:count]

    def stamp(self) -> None:
        """Note that a fault is made now."""
        self.fault_ns.append(time.monotonic_ns())

    def kill_rank(self, index: int, local_rank: int) -> None:
        """SIGKILL the newest rank with this number on a node.

        Raises:
            ProcessLookupError: It has ended.
        """
        name = self.machines.nodes[index].name
        started = [note for note in self.notes() if note.event == "started" and note.node == name]
        pid = next(note.pid for note in reversed(started) if note.local_rank == local_rank)
        outside = self.machines.nodes[index].outside(pid)
        if outside is None:
            raise ProcessLookupError(f"rank {local_rank} of {name} has ended")
        self.stamp()
        os.kill(outside, signal.SIGKILL)

    def signal_launcher(self, index: int, number: signal.Signals) -> None:
        """Send a node's newest launcher, and nobody else, a signal."""
        self.stamp()
        self.launches[index][-1].signal(number)

    def power_off(self, *indices: int) -> None:
        """Power nodes off at the same time: all links are cut before anything is killed."""
        self.stamp()
        for index in indices:
            self.machines.nodes[index].cut()
        for index in indices:
            self.machines.nodes[index].power_off()

    def cut(self, index: int, seconds: float) -> None:
        """Cut a node's link for some seconds, and heal it."""
        self.stamp()
        self.machines.nodes[index].cut()
        time.sleep(seconds)
        self.machines.nodes[index].heal()

    def come_back(self, index: int) -> Launch:
        """Start a launcher on a node whose launcher has ended, powering it on before if it is off."""
        if not self.machines.nodes[index].is_on:
            self.machines.nodes[index].power_on()
        return self.start(index)


def launcher_options(members: int, given: Sequence[str]) -> list[str]:
    """Return the options of every launcher: what is given, after what it does not name.

    The rendezvous is c10d on node 0 unless ``--rdzv-backend`` or ``--rdzv-endpoint`` is given.
    """
    standard = {
        "nnodes": str(members),
        "nproc-per-node": "2",
        "max-restarts": "10",
        "rdzv-id": "nodes",
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"node0:{STORE_PORT}",
    }
    named = {word[2:].partition("=")[0].replace("_", "-") for word in given if word.startswith("--")}
    if named & {"rdzv-backend", "rdzv-endpoint"}:
        del standard["rdzv-backend"], standard["rdzv-endpoint"]
    words = [word for name, value in standard.items() if name not in named for word in (f"--{name}", value)]
    return [*words, *given]


def lowest_count(options: Sequence[str]) -> int:
    """Return the smallest number of nodes that ``--nnodes`` admits."""
    text = "1"
    for word, following in zip(options, [*options[1:], ""], strict=True):
        if word == "--nnodes":
            text = following
        elif word.startswith("--nnodes="):
            text = word.partition("=")[2]
    return int(text.partition(":")[0])


def _environment(launcher: str) -> dict[str, str]:
    ours = ("FT_", "TORCHELASTIC_", "PYTEST_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
    if launcher == "torchrun":
        # Without it restarts fail or hang more often than not (pytorch#135712); ours needs no such help.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return environment


def _ipv4(place: str) -> str:
    """Return the IPv4 address of ``/proc/net/tcp`` and ``tcp6`` (where it is mapped): words of native byte order."""
    return socket.inet_ntoa(struct.pack("=I", int(place.partition(":")[0][-8:], 16)))
