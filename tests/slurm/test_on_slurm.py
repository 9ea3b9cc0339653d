"""The batch scripts under Slurm's own daemons, on four nodes that are network and PID namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.nodes.namespaces import Node
from tests.slurm.cluster import Cluster, version, why_impossible

ROOT = Path(__file__).resolve().parents[2]
SPARE, AUTORESUME = ROOT / "examples" / "slurm" / "spare.sbatch", ROOT / "examples" / "slurm" / "autoresume.sbatch"
LIVING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

_WHY_NOT = why_impossible()
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.skipif(bool(_WHY_NOT), reason=str(_WHY_NOT))]


class Trial:
    """One job and its nodes.

    Args:
        cluster: Where it runs.
        script: Its batch script.
        ranks: How many it has.
        options: Further ones of sbatch.
    """

    def __init__(self, cluster: Cluster, script: Path, ranks: int, *options: str) -> None:
        self.cluster, self.work, self.ranks = cluster, cluster.work, ranks
        shutil.copy(ROOT / "tests" / "slurm" / "training.py", self.work)
        settings = {"GPUS_PER_NODE": "1", "LOOK_SECONDS": "2", "MAX_FAILURES": "2"}
        self.number = cluster.submit(script, "training.py", options=options, **settings)
        self.folder = self.work / f"job_{self.number}"

    def meet(self) -> None:
        """Wait until all ranks have met (again)."""
        self.wait_for_files("up")

    def forget(self) -> None:
        """Remove what says that ranks have met."""
        for rank in range(self.ranks):
            (self.work / f"up_{rank}").unlink(missing_ok=True)

    def wait_for_files(self, name: str) -> None:
        names = [self.work / f"{name}_{rank}" for rank in range(self.ranks)]
        self.cluster.wait_for(lambda: all(each.exists() for each in names), f"{name} of all ranks")

    def place(self, rank: int) -> Node:
        """Return the node that a rank runs on."""
        name = (self.work / f"up_{rank}").read_text()
        return next(node for node in self.cluster.nodes if node.name == name)

    def worker_besides_the_first_node(self) -> Node:
        """Return a node with a rank that has not the batch script."""
        return next(node for rank in range(self.ranks) if (node := self.place(rank)) is not self.cluster.nodes[0])

    def launcher(self, node: Node) -> int:
        """Return the number of a node's launcher, outside of the node."""
        pid = node.outside(int((self.folder / f"launcher.{node.name}").read_text()))
        assert pid is not None
        assert b"ft_launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return pid

    def complete(self) -> None:
        (self.work / "complete").touch()

    def end(self) -> str:
        """Wait for the end of the job, and return its state."""
        self.cluster.wait_for(lambda: self.cluster.state(self.number) not in LIVING, "the end of the job")
        return self.cluster.state(self.number)

    def output(self) -> str:
        return (self.work / "output").read_text(errors="replace")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as made:
        yield made


def spare(cluster: Cluster) -> Trial:
    trial = Trial(cluster, SPARE, 3, "--nodes=4")
    trial.meet()  # from here on any node may be lost
    return trial


def test_the_scripts_name_the_version_of_slurm() -> None:
    for script in (SPARE, AUTORESUME):
        assert f"Slurm {version().split()[-1].rpartition('.')[0]}" in script.read_text(encoding="utf-8")


def test_a_job_with_a_spare_is_completed_although_a_launcher_is_killed(cluster: Cluster) -> None:
    trial = spare(cluster)
    lost = trial.place(1)
    pid = trial.launcher(lost)
    trial.forget()
    os.kill(pid, signal.SIGKILL)
    trial.meet()
    trial.complete()

    assert trial.end() == "COMPLETED", trial.output()
    assert lost.name not in {trial.place(rank).name for rank in range(3)}
    assert "training is complete" in trial.output()


def test_a_node_that_is_taken_down_is_replaced_and_ranks_save_before_the_time_is_up(cluster: Cluster) -> None:
    trial = spare(cluster)
    lost = trial.worker_besides_the_first_node()
    trial.forget()
    cluster.call("scontrol", "update", f"nodename={lost.name}", "state=down", "reason=trial")
    trial.meet()
    cluster.call("scancel", "--batch", "--signal=USR1", trial.number)
    trial.wait_for_files("saved")

    assert trial.end() == "FAILED", trial.output()  # srun ends with the code of the tasks that were lost
    assert lost.name not in {trial.place(rank).name for rank in range(3)}
    signalled = {path.name for path in trial.folder.glob("signalled.*")}
    assert signalled == {f"signalled.{node.name}" for node in cluster.nodes if node is not lost}
    assert trial.output().count("ended by SIGTERM; every worker ended with 0") == 3


def test_a_node_that_loses_power_is_replaced(cluster: Cluster) -> None:
    trial = spare(cluster)
    lost = trial.worker_besides_the_first_node()
    trial.forget()
    lost.power_off()
    trial.meet()
    cluster.wait_for(lambda: "down" in cluster.node_state(lost.name), "a node that is down")
    assert cluster.state(trial.number) == "RUNNING"
    trial.complete()

    assert trial.end() == "COMPLETED", trial.output()
    assert lost.name not in {trial.place(rank).name for rank in range(3)}


def test_a_job_that_loses_the_node_of_its_script_is_completed_and_ends(cluster: Cluster) -> None:
    trial = spare(cluster)
    first = cluster.nodes[0]
    first.power_off()
    cluster.wait_for(lambda: "down" in cluster.node_state(first.name), "a node that is down")
    steps = (trial.work / "steps").read_text()
    cluster.wait_for(lambda: (trial.work / "steps").read_text() != steps, "a further step")
    trial.complete()

    assert trial.end() == "CANCELLED"
    assert (trial.folder / "finished").exists()


def test_ranks_of_a_job_with_a_spare_save_when_it_is_cancelled(cluster: Cluster) -> None:
    trial = spare(cluster)
    cluster.call("scancel", trial.number)
    trial.wait_for_files("saved")

    assert trial.end() == "CANCELLED"


def test_ranks_save_before_the_time_limit_and_the_next_job_completes_the_training(cluster: Cluster) -> None:
    trial = Trial(cluster, AUTORESUME, 2, "--nodes=2", "--time=1", "--signal=B:USR1@50")
    trial.meet()
    trial.wait_for_files("saved")
    trial.forget()
    trial.meet()
    trial.complete()

    assert trial.end() == "COMPLETED", trial.output()
    assert cluster.job(trial.number)["Restarts"] == "1"
    assert "training is not complete (exit code 0, 0 failed in a row); back into the queue" in trial.output()


def test_a_training_that_is_cancelled_is_not_queued_again(cluster: Cluster) -> None:
    trial = Trial(cluster, AUTORESUME, 2, "--nodes=2")
    trial.meet()
    cluster.call("scancel", trial.number)
    trial.wait_for_files("saved")

    assert trial.end() == "CANCELLED", trial.output()
    assert cluster.job(trial.number)["Restarts"] == "0"


def test_a_training_that_always_fails_is_given_up(cluster: Cluster) -> None:
    (cluster.work / "fail").touch()
    trial = Trial(cluster, AUTORESUME, 2, "--nodes=2")

    assert trial.end() == "FAILED", trial.output()
    assert cluster.job(trial.number)["Restarts"] == "1"
    assert "2 jobs in a row have failed or ended without being complete (MAX_FAILURES); giving up" in trial.output()


def test_a_job_that_loses_a_node_is_queued_again_by_slurm(cluster: Cluster) -> None:
    trial = Trial(cluster, AUTORESUME, 2, "--nodes=2")
    trial.meet()
    lost = trial.worker_besides_the_first_node()
    trial.forget()
    lost.power_off()
    trial.meet()
    trial.complete()

    assert trial.end() == "COMPLETED", trial.output()
    assert cluster.job(trial.number)["Restarts"] == "1"
    assert lost.name not in {trial.place(rank).name for rank in range(2)}
