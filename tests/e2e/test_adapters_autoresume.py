"""ft_autoresume around the real launcher: the first job crashes, the second resumes and makes the flag."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = Path(sys.executable).parent / "ft_launcher"


@pytest.mark.parametrize("runner", ["ft_autoresume", "slurm script"])
def test_jobs_in_a_row_until_training_is_complete(tmp_path: Path, runner: str) -> None:
    job = (
        "[ -e out/last.ckpt ] || export FT_SIMULATED_FAULTS=exit:rank=0,step=60\n"
        f"exec {LAUNCHER} --nproc-per-node 1 {ROOT}/examples/lightning_digits.py --out out --epochs 2 --autoresume"
    )
    if runner == "ft_autoresume":
        door = "import torch_resilience; torch_resilience.autoresume()"
        command = [sys.executable, "-c", door, "--backoff", "0", "--flag-file", "flag", "--", "sh", "-c", job]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        assert "run 1 ended with 1" in done.stderr
        assert "last iteration 60; training is not complete" in done.stderr
        assert "training is complete after 2 run(s), 1 failed" in done.stderr
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
                timeout=180,
            )
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "requeued").read_text() == requeued
        assert "training is complete" in done.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["steps"] == 88
