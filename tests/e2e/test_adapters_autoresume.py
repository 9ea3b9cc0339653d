"""ft_autoresume around the real launcher: the first job crashes, the second resumes and makes the flag."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = Path(sys.executable).parent / "ft_launcher"


@pytest.mark.long
@pytest.mark.parametrize("runner", ["ft_autoresume", "slurm script"])
def test_jobs_in_a_row_until_training_is_complete(tmp_path: Path, runner: str) -> None:
    job = (
        "[ -e out/last.ckpt ] || export FT_SIMULATED_FAULTS=exit:rank=0,step=60\n"
        f"exec {LAUNCHER} --nproc-per-node 1 {ROOT}/examples/lightning_digits.py --out out --epochs 2 --autoresume"
    )
    if runner == "ft_autoresume":
        door = "import torch_resilience; torch_resilience.autoresume()"
        command = [sys.executable, "-c", door, "--backoff", "0", "--flag-file", "flag", "--", "sh", "-c", job]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        assert "run 1 ended with 1" in done.stderr
        assert "last iteration 60; training is not complete" in done.stderr
        assert "training is complete (after 2 run(s), 1 failed" in done.stderr
    else:
        # The batch script itself, with a scheduler that only writes down what it is asked for.
        fake = tmp_path / "bin"
        fake.mkdir()
        (fake / "srun").write_text(f"#!/bin/sh\n{job}\n")
        (fake / "scontrol").write_text('#!/bin/sh\n[ "$1" = requeue ] && echo "$@" >> requeued\nexit 0\n')
        for tool in fake.iterdir():
            tool.chmod(0o755)
        environment = {"PATH": f"{fake}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "JOB_FOLDER": "job", "SLURM_NNODES": "1"}
        script = ["bash", str(ROOT / "examples" / "slurm" / "autoresume.sbatch"), "train.py"]
        for restart, requeued in ((0, "requeue 17\n"), (1, "requeue 17\n")):
            done = subprocess.run(
                script,
                cwd=tmp_path,
                env={**environment, "SLURM_RESTART_COUNT": str(restart)},
                capture_output=True,
                text=True,
                timeout=400,
            )
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "requeued").read_text() == requeued
        assert "training is complete" in done.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["steps"] == 88


# That the launcher hands on what a script writes, other tests say; each start of it imports torch.
@pytest.mark.parametrize("starter", ["python", pytest.param("ft_launcher", marks=pytest.mark.long)])
def test_a_raw_loop_is_run_again_until_it_is_complete_and_then_no_more(tmp_path: Path, starter: str) -> None:
    """The second run resumes and completes; a third call starts nothing."""
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "from adapters.ddp import FaultTolerance\n"
        "ft = FaultTolerance(autoresume=True)\n"
        "with ft.run():\n"
        "    first = 5 if os.path.exists('saved') else 0\n"
        "    if first:\n"
        "        ft.checkpoint_loaded(first)\n"
        "    for iteration in range(first, 8):\n"
        "        with ft.step(iteration):\n"
        "            print('step', iteration, flush=True)\n"
        "        if iteration == 4:\n"
        "            open('saved', 'w').close()\n"
        "            sys.exit(7)\n"
    )
    door = "import torch_resilience; torch_resilience.autoresume()"
    options = ["--backoff", "0", "--flag-file", "flag", "--"]
    job = [sys.executable] if starter == "python" else [str(LAUNCHER), "--nproc-per-node", "1"]
    command = [sys.executable, "-c", door, *options, *job, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "training is complete (after 2 run(s), 1 failed" in done.stderr
    assert done.stdout.split() == [word for i in range(8) for word in ("step", str(i))]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert (again.returncode, again.stdout) == (0, "")
    assert "training is complete already" in again.stderr


class FakeSlurm:
    """A fake scheduler for the batch script: srun runs the command here, scontrol and scancel write down their words.

    ``ft_launcher`` is a fake, too: it waits for one SIGTERM and ends with 0, or ends at once with the code that the
    file ``code`` holds. What real Slurm does was tried by hand (the script's header says with which).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = folder / "bin"
        tools.mkdir()
        (tools / "srun").write_text(
            '#!/bin/sh\nexport SLURMD_NODENAME=fake\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
        )
        (tools / "scontrol").write_text('#!/bin/sh\n[ "$1" = requeue ] && echo "$@" >> requeued\nexit 0\n')
        (tools / "scancel").write_text('#!/bin/sh\necho "$@" >> cancelled\n')
        (tools / "ft_launcher").write_text(
            "#!/bin/bash\n"
            "[ -e code ] && exit $(cat code)\n"
            "trap 'echo TERM >> heard; exit 0' TERM\n"
            "echo ready > ready\n"
            "while :; do sleep 0.05; done\n"
        )
        for tool in tools.iterdir():
            tool.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "SLURM_JOB_ID": "17",
            "SLURM_NNODES": "1",
            "JOB_FOLDER": str(self.folder / "job"),
            "MAX_FAILURES": "2",
        }
        return subprocess.Popen(
            ["bash", str(ROOT / "examples" / "slurm" / "autoresume.sbatch"), "train.py"],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("asked", [signal.SIGUSR1, signal.SIGTERM])
def test_the_slurm_script_signals_the_launcher_and_nothing_else(tmp_path: Path, asked: signal.Signals) -> None:
    slurm = FakeSlurm(tmp_path)
    with slurm.start() as job:
        deadline = time.monotonic() + 60
        while not slurm.read("ready") and time.monotonic() < deadline:
            time.sleep(0.02)
        job.send_signal(asked)
        output, _ = job.communicate(timeout=400)
    assert slurm.read("heard") == "TERM\n"
    assert slurm.read("cancelled") == ""
    if asked == signal.SIGUSR1:
        assert (job.returncode, slurm.read("requeued")) == (0, "requeue 17\n"), output
        assert slurm.read("job/failures_in_a_row") == "0\n"
    else:
        assert (job.returncode, slurm.read("requeued")) == (143, ""), output


@pytest.mark.parametrize("code", ["0", "1"])
def test_the_slurm_script_gives_up_on_jobs_that_end_early_and_are_not_complete(tmp_path: Path, code: str) -> None:
    slurm = FakeSlurm(tmp_path)
    (tmp_path / "code").write_text(code)
    for number, returncode in ((1, 0), (2, 1)):
        with slurm.start() as job:
            output, _ = job.communicate(timeout=400)
        assert job.returncode == returncode, output
        assert slurm.read("job/failures_in_a_row") == f"{number}\n"
        assert ("is autoresume=True set?" in output) is (code == "0")
    assert slurm.read("requeued") == "requeue 17\n"
