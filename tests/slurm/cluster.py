"""Slurm's own daemons on the nodes of one machine (:mod:`benchmarks.nodes.namespaces`), for as long as a test takes.

slurmctld and munged run on the last node and a slurmd on each other one, as root, with configuration, keys, state, logs
and sockets in a folder of the test: nothing is in ``/etc``, ``/var`` or ``/run``. A node's PID namespace holds all of
its processes, Slurm's and the job's, and ends with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from benchmarks.nodes.namespaces import Machines, Node
from benchmarks.nodes.namespaces import why_impossible as why_no_nodes

__all__ = ["Cluster", "version", "why_impossible"]

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
_LOOK_SECONDS = 0.1
_CALL_SECONDS = 60.0
_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel")

# Nothing that needs a cgroup: the machine's own are left alone. The times are short, since tests wait for them.
_CONFIGURATION = """\
ClusterName=trial
SlurmctldHost={controller}({controller_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2
MpiDefault=none
ReturnToService=2
SlurmdTimeout={node_timeout}
KillWait={kill_wait}
MinJobAge=3600
BatchStartTimeout=20
NodeName=node[0-{last}] NodeAddr={addresses} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=UNLIMITED
"""


def why_impossible() -> str | None:
    """Return why no Slurm can be brought up here; None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs Slurm and munge: there is no {', '.join(missing)} (Debian: slurm-wlm, munge)"
    return why_no_nodes()


def version() -> str:
    """Return the version of Slurm that is installed."""
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.strip()


class Cluster:
    """A cluster of nodes, up in the block of a ``with`` statement and gone after it.

    Args:
        count: How many nodes run jobs.
        node_timeout: After how many seconds without a word slurmctld takes a node to be down.
        kill_wait: How many seconds Slurm leaves between SIGTERM and SIGKILL.
    """

    def __init__(self, count: int, node_timeout: int = 10, kill_wait: int = 30) -> None:
        # A path of a socket may have 107 bytes: pytest's own folders can be longer.
        self.folder = Path(tempfile.mkdtemp(prefix="ft_slurm_"))
        self.folder.chmod(0o755)  # munged refuses a socket that others cannot reach
        self.machines = Machines(count + 1, self.folder / "machines")
        *self.nodes, self.controller = self.machines.nodes
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FT_", "SLURM", "TORCHELASTIC_", "PYTEST_", "MASTER_"))
        }
        self._environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
        }
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                controller=self.controller.name,
                controller_address=self.controller.address,
                last=count - 1,
                addresses=",".join(node.address for node in self.nodes),
                node_timeout=node_timeout,
                kill_wait=kill_wait,
            )
        )
        (self.folder / "state").mkdir()
        (self.folder / "munge").mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self.work = self.folder / "work"
        """Where jobs are submitted: the nodes share it."""
        self.work.mkdir()
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            self.machines.__enter__()
            munge = self.folder / "munge"
            own = (f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed"))
            self._daemon(self.controller, ["munged", "--foreground", f"--socket={munge / 'socket'}", *own])
            self.wait_for(lambda: (munge / "socket").exists(), "munged")
            self._daemon(self.controller, ["slurmctld", "-D", "-c", "-f", str(self.folder / "slurm.conf")])
            for node in self.nodes:
                self.start_slurmd(node)
            self.wait_for(lambda: set(self.node_states()) == {"idle"}, "idle nodes")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of all nodes, and remove the folder."""
        self.machines.close()
        for daemon in self._daemons:
            daemon.wait()
        shutil.rmtree(self.folder)

    def start_slurmd(self, node: Node) -> None:
        """Start a node's slurmd."""
        self._daemon(node, ["slurmd", "-D", "-N", node.name, "-f", str(self.folder / "slurm.conf")])

    def call(self, *command: str, folder: Path | None = None, **environment: str) -> str:
        """Run a command, as Slurm's own, on the controller's node, and return what it says.

        Raises:
            RuntimeError: It has failed; says what it said.
        """
        with tempfile.TemporaryFile(dir=self.folder) as output:
            started = self.controller.start(
                command, output=output, environment={**self._environment, **environment}, folder=folder or self.folder
            )
            code = started.wait(_CALL_SECONDS)
            output.seek(0)
            said = output.read().decode(errors="replace")
        if code != 0:
            raise RuntimeError(f"{' '.join(command)} has ended with {code}: {said}")
        return said.strip()

    def submit(self, script: Path, *arguments: str, options: Sequence[str] = (), **environment: str) -> str:
        """Submit a batch script from a folder that all nodes see, and return the job's number."""
        own = ("--parsable", "--output", "output", *options)
        return self.call("sbatch", *own, str(script), *arguments, folder=self.work, **environment)

    def job(self, number: str) -> dict[str, str]:
        """Return what slurmctld knows of a job."""
        words = self.call("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, number: str) -> str:
        """Return the state of a job, as ``RUNNING``."""
        return self.job(number)["JobState"]

    def node_state(self, name: str) -> str:
        """Return the state of a node, in lower case, with its marks."""
        return self.call("sinfo", "--noheader", "--nodes", name, "--format", "%T")

    def node_states(self) -> list[str]:
        """Return each node's state, in lower case and without its marks."""
        said = self.call("sinfo", "--noheader", "--Node", "--format", "%T").split()
        return [state.strip("*~#!%$@^-") for state in said]

    def logs(self) -> str:
        """Return the last lines of each daemon's log."""
        found = []
        for log in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            lines = log.read_text(errors="replace").splitlines()[-40:]
            found.append("\n".join([f"---- {log.name}", *lines]))
        return "\n".join(found)

    def wait_for(self, happened: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Wait for what processes of other namespaces do: there is no event to wait for.

        Raises:
            TimeoutError: It has not happened in time; has the daemons' logs.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                answer = happened()
            except RuntimeError:  # slurmctld does not listen yet, or does not know the job yet
                answer = None
            if answer:
                return answer
            if time.monotonic() > end:
                raise TimeoutError(f"{what} did not happen within {seconds:g} s\n{self.logs()}")
            time.sleep(_LOOK_SECONDS)

    def _daemon(self, node: Node, command: Sequence[str]) -> None:
        name = f"{command[0]}.{node.name}.out"
        with (self.folder / name).open("ab") as output:
            started = node.start(command, output=output, environment=self._environment, folder=self.folder)
        self._daemons.append(started)
