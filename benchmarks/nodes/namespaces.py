"""Nodes on one machine: a network, a PID, a UTS and a mount namespace each, joined by a bridge.

Nothing has a name outside the namespaces: no entry in ``/run/netns``, no bridge and no address in the network
namespace of the caller. Every namespace lives as long as the process that holds it, and each holder is killed by the
kernel when the thread that started it ends (``PR_SET_PDEATHSIG``). A test that is killed therefore leaves nothing, and
tests that run at the same time cannot meet: each has a bridge of its own, with the same addresses.

Needs Linux, root (``CAP_NET_ADMIN``, ``CAP_SYS_ADMIN``), iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from benchmarks.nodes.process_table import all_pids, children, is_running, number_inside, pid_namespace

__all__ = ["Machines", "Node", "why_impossible"]

_TOOLS = ("ip", "bridge", "unshare", "nsenter", "setpriv", "mount", "sh", "env")
_TIED = ("setpriv", "--pdeathsig", "KILL")
_NAMESPACES = ("unshare", "--net", "--uts", "--pid", "--mount", "--time", "--fork", "--kill-child", "--mount-proc")
_NETWORK = "10.77.0"
_BOUND_SECONDS = 10.0
_DISABLED, _FORWARDING = 0, 3
"""States of a bridge's port, of ``BR_STATE_*`` in ``linux/if_bridge.h``."""

# Number 1 of a node: a shell that becomes sleep(1), with SIGCHLD ignored so that the kernel reaps what the node's
# launchers leave behind. A node has its own /dev/shm, as a machine has: a launcher's run folder is there.
_FIRST_PROCESS = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
ip link set lo up
trap '' CHLD
echo ready
exec sleep infinity
"""


def why_impossible() -> str | None:
    """Return why this process cannot make nodes; None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"nodes need {', '.join(missing)} (iproute2, util-linux)"
    if os.geteuid() != 0:
        return "nodes need root: network, PID, UTS and mount namespaces and a bridge"
    made = subprocess.run(
        [*_NAMESPACES, "sh", "-c", "ip link add type bridge && ip link add type veth && mount -t tmpfs tmpfs /dev/shm"],
        capture_output=True, text=True, check=False, timeout=_BOUND_SECONDS,
    )  # fmt: skip
    if made.returncode == 0:
        return None
    said = made.stderr.strip().splitlines()
    return f"nodes need namespaces, a bridge and veth: {said[-1] if said else f'exit code {made.returncode}'}"


class Node:
    """One node. Made by :class:`Machines`.

    Args:
        index: Its place, from 0; its name is ``node`` and the index.
        folder: Its own files, ``tmp`` among them; kept when it is powered off, as a disk is.
        machines: Where it is.
        clock_ahead: Seconds by which its ``CLOCK_MONOTONIC`` is ahead of this machine's.
    """

    def __init__(self, index: int, folder: Path, machines: Machines, clock_ahead: int = 0) -> None:
        self.index, self.folder, self.clock_ahead = index, folder, clock_ahead
        self.name, self.address = f"node{index}", _address(index)
        self._machines = machines
        self._holder: subprocess.Popen[str] | None = None
        self.first_process = 0
        """Number 1 of the node, by its number outside; 0 while it is off."""
        self._times_on = 0
        self._started: list[subprocess.Popen[bytes]] = []
        (folder / "tmp").mkdir(parents=True, exist_ok=True)

    @property
    def is_on(self) -> bool:
        """Whether it has been powered on, and not off since."""
        return self._holder is not None

    def power_on(self) -> None:
        """Give the node a fresh kernel state (network stack, processes, memory file system) and plug it in."""
        if self._holder is not None:
            raise RuntimeError(f"{self.name} is on already")
        clock = (f"--monotonic={self.clock_ahead}", f"--boottime={self.clock_ahead}")
        start = ("sh", "-c", _FIRST_PROCESS, "sh", self.name, str(self._machines.hosts))
        self._holder = _hold([*_NAMESPACES, *clock, *start])
        (self.first_process,) = children(self._holder.pid)
        self._times_on += 1
        peer = f"name eth0 address {_hardware(self.index)} netns {self.first_process}"
        self._machines.switch(
            f"link add {self._port} type veth peer {peer}",
            f"link set {self._port} master bridge up",
        )
        others = [index for index in range(self._machines.count) if index != self.index]
        # Neighbours are permanent: a lost one is silent, as behind a router, and no failed ARP says that it is gone.
        lines = (
            "link set eth0 addrgenmode none",
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            *(
                f"neighbour replace {_address(other)} lladdr {_hardware(other)} dev eth0 nud permanent"
                for other in others
            ),
        )
        _run(self.first_process, lines)

    def power_off(self) -> None:
        """Cut the link, then kill every process at once: no peer receives a FIN, a RST or a last word."""
        if self._holder is not None:
            self.cut()
            self.kill_everything()

    def kill_everything(self) -> None:
        """Kill number 1 of the node, and with it, by the kernel, all others; return when none is left."""
        if self._holder is None:
            return
        pids = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first_process, signal.SIGKILL)
        deadline = time.monotonic() + _BOUND_SECONDS
        while self._holder.poll() is None or any(is_running(pid) for pid in pids):
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of {self.name} are left after {_BOUND_SECONDS:g} s")
            for started in self._started:  # nsenter stops with a command that is stopped, and would not reap it
                started.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        _close_output(self._holder)
        for started in self._started:
            started.wait(_BOUND_SECONDS)
        self._holder, self.first_process, self._started = None, 0, []

    def cut(self) -> None:
        """Drop every frame to and from the node; its interface stays up and established connections see silence."""
        self._machines.switch(f"link set dev {self._port} state {_DISABLED}", program="bridge")

    def heal(self) -> None:
        """Undo :meth:`cut`."""
        self._machines.switch(f"link set dev {self._port} state {_FORWARDING}", program="bridge")

    def start(
        self, command: Sequence[str], *, output: IO[bytes], environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        """Start a command on the node.

        Its parent is outside: inside, what it leaves behind becomes a child of the node's number 1, as on a machine.

        Args:
            command: Program and arguments.
            output: Where both of its output streams go.
            environment: All of its environment; ``TMPDIR`` is added.
            folder: Its working folder.

        Returns:
            nsenter(1), which ends as the command ends; the command is its only child.
        """
        if self._holder is None:
            raise RuntimeError(f"{self.name} is off")
        enter = ["nsenter", "--target", str(self.first_process), "--net", "--uts", "--pid", "--mount", "--time", "--"]
        started = subprocess.Popen(
            [*enter, "env", "-C", str(folder), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "TMPDIR": str(self.folder / "tmp")},
            start_new_session=True,
        )
        self._started.append(started)
        return started

    def run(self, program: str, *lines: str) -> None:
        """Run lines of ip(8), bridge(8) or nft(8) in its network."""
        _run(self.first_process, lines, program)

    def processes(self) -> list[int]:
        """The node's processes, by their numbers outside, without its number 1."""
        if self._holder is None:
            return []
        if (namespace := pid_namespace(self.first_process)) is None:
            return []
        return [pid for pid in all_pids() if pid != self.first_process and pid_namespace(pid) == namespace]

    def outside(self, pid: int) -> int | None:
        """Return the number outside of a process that is ``pid`` on the node; None if it is not there."""
        return next((found for found in self.processes() if number_inside(found) == pid), None)

    @property
    def _port(self) -> str:
        return f"p{self.index}-{self._times_on}"


class Machines:
    """A bridge and its nodes, all powered on in the block of a ``with`` statement and gone after it.

    Args:
        count: How many nodes.
        folder: For their files; each has a subfolder.
        clocks: Seconds by which each node's ``CLOCK_MONOTONIC`` is ahead of this machine's; none by default.
    """

    def __init__(self, count: int, folder: Path, clocks: Sequence[int] = ()) -> None:
        self.count, self.folder = count, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{_address(index)} node{index}" for index in range(count))]
        self.hosts.write_text("".join(f"{line}\n" for line in lines))
        numbered = enumerate(clocks or [0] * count)
        self.nodes = [Node(index, folder / f"node{index}", self, ahead) for index, ahead in numbered]
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Machines:
        try:
            self._switch = _hold(["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"])
            self.switch(
                "link add bridge type bridge stp_state 0 forward_delay 0 mcast_snooping 0", "link set bridge up"
            )
            for node in self.nodes:
                node.power_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def switch(self, *lines: str, program: str = "ip") -> None:
        """Run lines of ip(8), or of bridge(8), where the bridge is."""
        if self._switch is None:
            raise RuntimeError("the bridge is not there")
        _run(self._switch.pid, lines, program)

    def holders(self) -> list[int]:
        """The processes that hold the namespaces: the bridge's and the number 1 of each node that is on."""
        nodes = [node.first_process for node in self.nodes if node.is_on]
        return [*([] if self._switch is None else [self._switch.pid]), *nodes]

    def close(self) -> None:
        """Kill all processes of all nodes, then the bridge. May be called twice."""
        with contextlib.ExitStack() as each:  # whatever one of them raises
            each.callback(self._close_switch)
            for node in self.nodes:
                each.callback(node.kill_everything)

    def _close_switch(self) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait(_BOUND_SECONDS)
            _close_output(self._switch)
            self._switch = None


def _hold(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start what holds a namespace, and wait until it says that it is ready."""
    holder = subprocess.Popen(
        [*_TIED, *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline() != "ready\n":
        holder.kill()
        said = holder.stderr.read().strip()
        holder.wait(_BOUND_SECONDS)
        _close_output(holder)
        raise OSError(f"no namespace: {said}")
    return holder


def _close_output(holder: subprocess.Popen[str]) -> None:
    for stream in (holder.stdout, holder.stderr):
        if stream is not None:
            stream.close()


def _run(pid: int, lines: Sequence[str], program: str = "ip") -> None:
    """Run lines of ip(8), bridge(8) or nft(8) in the network namespace of a process."""
    command = ["nsenter", "--target", str(pid), "--net", program, *(["-f"] if program == "nft" else ["-batch"]), "-"]
    ran = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=_BOUND_SECONDS
    )
    if ran.returncode != 0:
        raise OSError(f"{program}, {'; '.join(lines)}: {ran.stderr.strip()}")


def _address(index: int) -> str:
    return f"{_NETWORK}.{index + 1}"


def _hardware(index: int) -> str:
    return f"02:00:00:00:00:{index + 1:02x}"
