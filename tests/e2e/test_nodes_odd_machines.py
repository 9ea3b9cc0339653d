"""Jobs over several nodes (network namespaces) whose clocks differ, or jump, or whose disks are full."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.nodes.job import Job
from benchmarks.nodes.journal import overlaps
from benchmarks.nodes.namespaces import Machines, why_impossible
from benchmarks.nodes.training import undisturbed_digest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_impossible()), reason=str(why_impossible())),
]

STEPS = 500
OPTIONS = ("--nnodes", "3:4", "--ft-membership", "fixed", "--rdzv-conf", "last_call_timeout=1")
DAY = 86_400
COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def expected() -> str:
    return undisturbed_digest(STEPS)


class Jobs:
    """Begins jobs of three nodes and a spare, and judges how they end."""

    def __init__(self, folder: Path, expected: str) -> None:
        self.folder, self.expected = folder, expected

    def on(self, machines: Machines, *more: str) -> Job:
        options = (*OPTIONS, *more)
        return Job(
            machines, self.folder / "shared", members=3, options=options, training=["--steps", str(STEPS)]
        )  # fmt: skip

    def end(self, job: Job) -> None:
        job.wait_for(job.is_completed, 180, "the end of the training")
        job.wait_for(lambda: not job.running(), 30, "the end of every launcher")
        assert {digest for group in job.groups() for digest in group.digests} == {self.expected}
        assert overlaps(job.notes()) == []


@pytest.fixture
def jobs(tmp_path: Path, expected: str) -> Jobs:
    return Jobs(tmp_path, expected)


def test_monotonic_clocks_of_machines_that_were_booted_at_different_times(jobs: Jobs) -> None:
    with Machines(4, jobs.folder / "machines", (0, 400 * DAY, DAY // 2, 3 * DAY)) as machines:
        job = jobs.on(machines)
        job.begin()
        job.kill_rank(job.victims()[0], 1)
        job.wait_for(lambda: len(job.groups()) > 1, 60, "the second group")
        job.power_off(0)
        jobs.end(job)
        assert len(job.groups()) == 3


@pytest.mark.skipif(COMPILER is None, reason="no C compiler for the library that steps the clock of one process")
@pytest.mark.parametrize("days", [1, -1], ids=["forward", "back"])
def test_the_wall_clock_of_two_nodes_steps(days: int, jobs: Jobs) -> None:
    library, step = jobs.folder / "stepping_clock.so", jobs.folder / "step"
    source = Path(__file__).with_name("stepping_clock.c")
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    step.write_bytes(bytes(8))
    stepping = {"LD_PRELOAD": str(library), "CLOCK_STEP_FILE": str(step)}
    with Machines(3, jobs.folder / "machines") as machines:
        job = jobs.on(machines)
        job.start(0, **stepping)
        job.start(1, **stepping)
        job.start(2)
        job.wait_for(lambda: job.groups() and job.groups()[-1].steps > 30, 120, "the first group")
        with step.open("r+b") as file:  # it is mapped
            file.write((days * DAY).to_bytes(8, sys.byteorder, signed=True))
        python = [sys.executable, "-c", "import time; print(time.time())"]
        seen = subprocess.run(python, env=stepping, capture_output=True, check=True).stdout
        assert abs(float(seen) - time.time() - days * DAY) < 600  # the clock has stepped
        steps = job.groups()[-1].steps
        job.wait_for(lambda: job.groups()[-1].steps > steps + 100, 60, "steps after the clock's")
        assert len(job.groups()) == 1  # nothing happens
        job.kill_rank(job.victims()[0], 1)
        jobs.end(job)
        assert len(job.groups()) == 2
        assert [launches[-1].exit_code for launches in job.launches.values()] == [0, 0, 0]


def fill(machines: Machines, index: int, folders: list[Path]) -> None:
    """Let file systems of a node have no room, and see that it is so."""
    for folder in folders:
        script = f"dd if=/dev/zero of={folder}/rest bs=1k 2>/dev/null; echo more > {folder}/more && exit 1; exit 0"
        run_on(machines, index, ["sh", "-c", script])


def run_on(machines: Machines, index: int, command: list[str]) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    node = machines.nodes[index]
    with (node.folder / "command.txt").open("wb") as output:
        started = node.start(command, output=output, environment=environment, folder=node.folder)
    assert started.wait(30) == 0, (node.folder / "command.txt").read_text()


def with_small_disk(machines: Machines, index: int, size: str) -> list[Path]:
    """Give a node a file system of its own for logs and temporary files."""
    disks = [machines.nodes[index].folder / name for name in ("logs", "tmp")]
    for disk in disks:
        disk.mkdir(exist_ok=True)
        run_on(machines, index, ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)])
    return disks


def assert_said_once(text: str, words: str) -> None:
    said = [line for line in text.splitlines() if words in line]
    assert said
    assert len(said) == len(set(said))


@pytest.mark.parametrize("index", [0, 1], ids=["leader", "other"])
def test_a_node_whose_disk_is_full_goes_on_without_health_checks(index: int, jobs: Jobs) -> None:
    with Machines(3, jobs.folder / "machines") as machines:
        disks = with_small_disk(machines, index, "1m")
        job = jobs.on(machines, "--ft-health-checks", "none")
        job.begin()
        fill(machines, index, disks)
        job.kill_rank(index, 1)
        job.wait_for(lambda: len(job.groups()) > 1, 60, "the second group")
        job.kill_rank(2, 0)
        jobs.end(job)
        assert len(job.groups()) == 3
        assert [launches[-1].exit_code for launches in job.launches.values()] == [0, 0, 0]
        assert_said_once(job.launches[index][-1].text(), "No space left")
        assert "Traceback" not in job.launches[index][-1].text().split("[rank")[0]


def test_a_spare_takes_the_place_of_a_node_whose_disk_is_full(jobs: Jobs) -> None:
    with Machines(4, jobs.folder / "machines") as machines:
        disks = with_small_disk(machines, 1, "100m")
        job = jobs.on(machines)
        job.begin()
        fill(machines, 1, disks)
        job.kill_rank(1, 1)
        jobs.end(job)
        assert job.groups()[-1].nodes == ("node0", "node2", "node3")
        assert_said_once(job.launches[1][-1].text(), "this node leaves the job: health check 'paths:")


def test_a_node_whose_memory_file_system_is_full_goes_on_without_health_checks(jobs: Jobs) -> None:
    with Machines(3, jobs.folder / "machines") as machines:
        run_on(machines, 1, ["mount", "-o", "remount,size=4m", "/dev/shm"])
        job = jobs.on(machines, "--ft-health-checks", "none")
        job.begin()
        fill(machines, 1, [Path("/dev/shm")])
        job.kill_rank(1, 1)
        jobs.end(job)
        assert len(job.groups()) == 2


def test_a_node_whose_log_folder_is_read_only_goes_on_without_health_checks(jobs: Jobs) -> None:
    with Machines(3, jobs.folder / "machines") as machines:
        job = jobs.on(machines, "--ft-health-checks", "none")
        job.begin()
        logs = str(machines.nodes[1].folder / "logs")
        run_on(machines, 1, ["sh", "-c", f"mount --bind {logs} {logs} && mount -o remount,bind,ro {logs}"])
        job.kill_rank(1, 1)
        jobs.end(job)
        assert len(job.groups()) == 2
        assert [launches[-1].exit_code for launches in job.launches.values()] == [0, 0, 0]
        assert_said_once(job.launches[1][-1].text(), "Read-only file system")
