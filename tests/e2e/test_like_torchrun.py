"""What torchrun's users know works as they know it: environment, log files, tee, modules, error files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SCRIPTS = Path(__file__).parent / "scripts"
# Differ from run to run, with torchrun as well.
FREE = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
# The last one is the mark of these tests (tests/conftest.py).
OURS = {"FT_CELL", "FT_CONFIG_FILE", "FT_CONTROL_SOCKET", "FT_LAUNCHER_PID", "FT_RESTART_COUNT", "FT_TEST_JOB"}


def torchrun(folder: Path, options: Sequence[str], env: dict[str, str]) -> dict[int, dict[str, str]]:
    """The environments of two ranks under torchrun."""
    folder.mkdir()
    environment = {**os.environ, **env, "TMPDIR": str(folder)}
    environment = {name: value for name, value in environment.items() if value != ""}
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]
    subprocess.run(
        [*program, str(SCRIPTS / "dump_environment.py"), str(folder)],
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return read(folder)


def read(folder: Path) -> dict[int, dict[str, str]]:
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)}


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ([], {"OMP_NUM_THREADS": ""}),
        pytest.param(
            ["--standalone", "--max-restarts", "3", "--role", "trainer"],
            {"OMP_NUM_THREADS": "2"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "job7"],
            {"CUDA_VISIBLE_DEVICES": "3,4"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_workers_environment_is_torchruns_key_by_key(
    launch: Callable[..., Any], tmp_path: Path, options: list[str], env: dict[str, str]
) -> None:
    theirs = torchrun(tmp_path / "torchrun", options, env)
    (tmp_path / "ours").mkdir()
    job = launch("dump_environment.py", tmp_path / "ours", options=options, env=env)
    assert job.wait() == 0
    ours = read(tmp_path / "ours")

    for rank in (0, 1):
        assert ours[rank].keys() - theirs[rank].keys() == OURS
        assert theirs[rank].keys() - ours[rank].keys() == set()
        differing = {
            key: (theirs[rank][key], ours[rank][key])
            for key in theirs[rank].keys() - FREE - {"TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST"}
            if theirs[rank][key] != ours[rank][key]
        }
        assert differing == {}


def test_redirects_and_tee_put_every_line_where_torchrun_puts_it(launch: Callable[..., Any]) -> None:
    job = launch("dump_environment.py", "{work}", options=["--redirects", 3, "--tee", "0:1"])

    assert job.wait() == 0
    # In the run's own log folder, so that there is one for each run; those of ranks that wrote nothing are gone.
    workers = job.log_folder / "workers"
    files = {path.name: path.read_text() for path in workers.glob("*/attempt_0/1/*.log")}
    assert files == {"stdout.log": "out of rank 1: 12 done\n", "stderr.log": "err of rank 1\n"}
    assert "out of rank 0: 12 done" in job.stdout
    assert "out of rank 1" not in job.stdout
    assert "err of rank 1" not in job.stderr
    assert [path for path in workers.rglob("*") if path.is_dir() and not any(path.iterdir())] == []


def test_a_run_has_one_log_folder_and_no_empty_ones(launch: Callable[..., Any]) -> None:
    job = launch("dump_environment.py", "{work}")

    assert job.wait() == 0
    assert {path.name for path in job.logs.rglob("*")} == {
        job.log_folder.name,
        "events.jsonl",
        "figures.jsonl",
        "latest",
    }
    assert os.readlink(job.logs / "latest") == job.log_folder.name


def test_tee_prefixes_lines_as_torchrun_does(launch: Callable[..., Any]) -> None:
    job = launch("dump_environment.py", "{work}", options=["--tee", 3, "--role", "trainer"])

    assert job.wait() == 0
    assert "[trainer0]:out of rank 0: 12 done" in job.stdout
    assert "[trainer1]:err of rank 1" in job.stderr


@pytest.mark.parametrize(
    ("options", "script", "arguments"),
    [
        (["-m"], "json.tool", ["--help"]),
        (["--no-python"], "/bin/echo", ["hello"]),
        (["--no-python"], "echo", ["hello"]),
        (["--run-path"], "{scripts}/prints_name.py", []),
        (["-m"], "prints_name", []),
    ],
)
def test_modules_programs_and_paths_run(
    launch: Callable[..., Any], options: list[str], script: str, arguments: list[str]
) -> None:
    job = launch(script, *arguments, options=options, env={"PYTHONPATH": str(SCRIPTS)}, nproc=1)
    assert job.wait() == 0
    assert ("usage" if script == "json.tool" else "hello") in job.stdout


def test_the_error_file_of_the_first_failure_is_handed_on(launch: Callable[..., Any], tmp_path: Path) -> None:
    job = launch("records_error.py", env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}, nproc=1)

    assert job.wait() == 1
    assert "the missing key" in json.loads((tmp_path / "error.json").read_text())["message"]["message"]


def test_help_shows_torchruns_options_and_ours(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", options=["--help"])
    assert job.wait() == 0
    for option in ("--rdzv-backend", "--nproc-per-node", "--ft-rank-heartbeat-timeout", "--ft-cfg-path"):
        assert option in job.stdout


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "1"]


@pytest.mark.parametrize("options", [[], pytest.param(TORCHRUN, marks=pytest.mark.long)], ids=["python", "torchrun"])
def test_the_same_script_runs_under_plain_python_and_torchrun(tmp_path: Path, options: list[str]) -> None:
    """Without a monitor the bus works all the same, and why nobody watches is said once."""
    ended = subprocess.run(
        [sys.executable, *options, SCRIPTS / "loop.py"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "is done in generation 0" in ended.stdout
    assert ended.stderr.count("training goes on without a rank monitor") == 1
    assert "ft_launcher" in ended.stderr
