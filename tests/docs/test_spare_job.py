"""The batch script of a job with a spare, run with stand-ins for Slurm's commands: its nodes are this machine.

``tests/slurm`` runs it under Slurm itself, where that is installed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "spare.sbatch"
PATIENCE = 120.0

SCONTROL = """#!/bin/sh
printf '%s\\n' 127.0.0.1 127.0.0.2 127.0.0.3
"""

SRUN = """#!/bin/bash
# One command for each node; as of the real one, the highest exit code counts.
echo "${@//$'\\n'/ }" >> "$CALLS"
if [ "$1" = --job-name=look ]; then exit; fi    # it acts when the first node is lost: here there is one node in all
while [ "${1#-}" != "$1" ]; do shift; done
tasks=()
for node in 0 1 2; do
    SLURMD_NODENAME=node$node SLURM_NODEID=$node "$@" & tasks+=($!)
done
worst=0
for task in "${tasks[@]}"; do
    wait "$task" || worst=$?
done
exit $worst
"""

TRAINING = """
import os, signal, sys, time

def save(*_):
    open(f"saved_{os.environ['RANK']}", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
name = f"up_{os.environ['RANK']}_of_{os.environ['WORLD_SIZE']}"
with open(f"{name}.new", "w") as file:
    file.write(os.environ["SLURMD_NODENAME"])
os.replace(f"{name}.new", name)
while not os.path.exists("complete"):
    time.sleep(0.05)
open(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"], "w").close()
"""


def put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class SpareJob:
    """The script, as Slurm would run it on three nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        put(folder / "bin" / "scontrol", SCONTROL)
        put(folder / "bin" / "srun", SRUN)
        put(folder / "bin" / "squeue", "#!/bin/sh\necho 'RUNNING node[0-2]'\n")
        put(folder / "bin" / "scancel", '#!/bin/sh\necho scancel "$@" >> "$CALLS"\n')
        put(folder / "train.py", TRAINING)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("FT_", "SLURM"))}
        self.environment |= {
            "PATH": f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_NNODES": "3",
            "SLURM_JOB_NODELIST": "node[0-2]",
            "SLURMD_NODENAME": "node0",
            "GPUS_PER_NODE": "1",
            "PORT": str(free_port()),
            "CALLS": str(folder / "calls"),
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self, **environment: str) -> subprocess.Popen[str]:
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                ["bash", str(SCRIPT), "train.py"],
                cwd=self.folder,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        return self.process

    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    def wait_for(self, *names: str) -> None:
        """Wait for files."""
        self.wait_until(lambda: all((self.folder / name).exists() for name in names))

    def has_spare(self) -> bool:
        """Whether the third node has met the others: it says that they run without it."""
        return "this node waits to take part: generation 0 runs without it" in self.output()

    def wait_until(self, happens: Callable[[], bool]) -> None:
        """Wait for what other processes do: there is no event to wait for."""
        end = time.monotonic() + PATIENCE
        while not happens():
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.05)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SpareJob]:
    made = SpareJob(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()


@pytest.mark.e2e
@pytest.mark.long
def test_two_nodes_train_and_one_is_a_spare(job: SpareJob) -> None:
    process = job.start()
    job.wait_for("up_0_of_2", "up_1_of_2")
    (job.folder / "complete").touch()

    assert process.wait(PATIENCE) == 0, job.output()
    assert "training is complete" in job.output()
    assert (job.folder / "job_7" / "secret").stat().st_mode & 0o077 == 0
    calls = (job.folder / "calls").read_text().splitlines()
    launched = next(call for call in calls if call.startswith("--job-name=launchers"))
    endpoints = ",".join(f"127.0.0.{last}:{job.environment['PORT']}" for last in (1, 2, 3))
    assert "--no-kill" in launched
    assert "--nnodes 2:3 --nproc-per-node 1 --max-restarts 10 --ft-membership fixed" in launched
    assert f"--rdzv-endpoint {endpoints} " in launched


@pytest.mark.e2e
@pytest.mark.long
def test_a_launcher_that_is_killed_is_replaced_by_the_spare(job: SpareJob) -> None:
    process = job.start()
    job.wait_for("up_0_of_2", "up_1_of_2")
    job.wait_until(job.has_spare)
    lost = (job.folder / "up_1_of_2").read_text()
    for name in ("up_0_of_2", "up_1_of_2"):
        (job.folder / name).unlink()
    os.kill(int((job.folder / "job_7" / f"launcher.{lost}").read_text()), signal.SIGKILL)
    job.wait_for("up_0_of_2", "up_1_of_2")
    (job.folder / "complete").touch()

    assert process.wait(PATIENCE) == 0, job.output()
    assert "training is complete" in job.output()
    assert (job.folder / "up_1_of_2").read_text() != lost


@pytest.mark.e2e
@pytest.mark.long
def test_ranks_save_before_the_time_is_up(job: SpareJob) -> None:
    process = job.start()
    job.wait_for("up_0_of_2", "up_1_of_2")
    job.wait_until(job.has_spare)  # a launcher that has not begun to take part would end with 128 and the signal
    os.kill(process.pid, signal.SIGUSR1)

    assert process.wait(PATIENCE) == 0, job.output()
    assert (job.folder / "saved_0").exists()
    assert (job.folder / "saved_1").exists()
    assert {path.suffix for path in (job.folder / "job_7").glob("signalled.*")} == {".node0", ".node1", ".node2"}
    assert not any(call.startswith("scancel") for call in (job.folder / "calls").read_text().splitlines())
    assert "training is complete" not in job.output()


def test_half_of_the_nodes_cannot_be_spares(job: SpareJob) -> None:
    process = job.start(SPARES="2")

    assert process.wait(PATIENCE) == 2
    assert "more than half of the nodes must take part" in job.output()
    assert not (job.folder / "calls").exists()
