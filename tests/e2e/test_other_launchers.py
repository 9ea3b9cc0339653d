"""What docs/other-launchers.md shows: frameworks under ft_launcher, and a monitor within the process it watches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher import read_events, read_incidents

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LAUNCHER = Path(sys.executable).parent / "ft_launcher"

LOOP = """
import os, time, torch
from adapters.ddp import FaultTolerance
{begin}
ft = FaultTolerance()
with ft.run():
    for iteration in range(6):
        with ft.step(iteration):
            total = {reduce}(torch.ones(1)).item()
            assert total == 2, total
            if iteration == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
                time.sleep(3600)
print(f"done {{os.environ['RANK']}}\\n", end="", flush=True)  # in one piece: the other rank writes to the same pipe
"""

FRAMEWORKS = {
    "accelerate": (
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\nassert accelerator.num_processes == 2",
        "accelerator.reduce",
    ),
    "lightning.fabric": (
        "from lightning.fabric import Fabric\n"
        'fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=1)\n'
        "fabric.launch()\nassert fabric.world_size == 2",
        "(lambda value: fabric.all_reduce(value, reduce_op='sum'))",
    ),
}


@pytest.mark.long  # seconds of imports; that torchrun's environment is the same, test_like_torchrun says
@pytest.mark.parametrize("framework", list(FRAMEWORKS))
def test_a_framework_that_reads_torchruns_environment_is_protected(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    begin, reduce = FRAMEWORKS[framework]
    (tmp_path / "train.py").write_text(LOOP.format(begin=begin, reduce=reduce))
    limits = ["--ft-rank-section-timeouts", "setup:120,step:5,checkpointing:120"]
    done = subprocess.run(
        [LAUNCHER, "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs", *limits, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("done")) == ["done 0", "done 1"]
    folder = tmp_path / "logs" / "latest"
    (incident,) = read_incidents(str(folder))
    assert {rank.section for rank in incident.ranks} == {"step"}
    assert [event["event"] for event in read_events(str(folder))][-1] == "ended"


def test_a_monitor_within_the_process_that_it_watches(tmp_path: Path) -> None:
    """As in a worker of Ray Train: the hung process is killed, the monitor goes with it."""
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "from adapters.ddp import FaultTolerance\n"
        "from launcher import start_monitor\n"
        "from resilience_core import FaultToleranceConfig\n"
        "limits = FaultToleranceConfig(rank_section_timeouts={'setup': 60, 'step': 1, 'checkpointing': 60})\n"
        "with start_monitor(limits, num_ranks=1, log_dir='logs') as monitors:\n"
        "    os.environ.update(monitors.environment(0))\n"
        "    ft = FaultTolerance()\n"
        "    with ft.run():\n"
        "        for iteration in range(3):\n"
        "            with ft.step(iteration):\n"
        "                time.sleep(3600 if iteration == 2 else 0)\n"
    )
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    (incident,) = read_incidents(str(folder))
    assert [(rank.section, rank.iteration) for rank in incident.ranks] == [("step", 2)]
