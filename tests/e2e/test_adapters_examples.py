"""The examples of the three frameworks as a person runs them: hung, then crashed, and complete in the end.

The jobs run side by side, since most of their time they import something or wait for a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents.incident_files import read_incidents
from launcher.records.event_files import read_events
from resilience_core.plugins.state_file import load_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAUNCHER = Path(sys.executable).parent / "ft_launcher"
LONGEST = 550
LIMITS = {
    "rank_section_timeouts": "setup:60,step:5,checkpointing:60",
    "rank_out_of_section_timeout": 60,
    "learned_timeout_floor": 20,
    "stack_capture_timeout": 60,  # on a busy machine half a second is too short for a stack
}
OPTIONS = (
    *("--nproc-per-node=2", "--max-restarts=3"),
    *(f"--ft-{name.replace('_', '-')}={value}" for name, value in LIMITS.items()),
)
FAULTS = "hang:rank=1,step=33;exception:rank=0,step=60,generation=1"
ARGUMENTS = {
    "lightning_digits.py": ["--out", "out"],
    "megatron_style_loop.py": ["--save", "out", "--async-save", "--calc-ft-timeouts"],
    "hf_trainer.py": ["--out", "out"],
}
STEPS = {"lightning_digits.py": 88, "megatron_style_loop.py": 80, "hf_trainer.py": 80}


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Path, subprocess.Popen[bytes]]]]:
    """Every example that is to be tested, with the same two faults."""
    jobs = {}
    items = [item for item in request.session.items if item.path == request.path and "jobs" in item.fixturenames]
    for example in {item.callspec.params["example"] for item in items}:
        arguments = ARGUMENTS[example]
        folder = tmp_path_factory.mktemp(example.removesuffix(".py"))
        with (folder / "log").open("wb") as log:
            jobs[example] = (
                folder,
                subprocess.Popen(
                    [LAUNCHER, *OPTIONS, EXAMPLES / example, *arguments],
                    cwd=folder,
                    env={**os.environ, "FT_SIMULATED_FAULTS": FAULTS},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                ),
            )
    yield jobs
    for _, process in jobs.values():
        process.terminate()
        process.wait()


def check(example: str, folder: Path, log: str, ended: Any, hang: Any, crash: Any) -> None:
    """Check what a job has said and left in its working folder."""
    assert hang.kind == "hang"
    assert hang.culprit is not None
    assert (hang.culprit.rank, hang.culprit.section, hang.culprit.iteration) == (1, "step", 33)
    assert crash.culprit is not None
    assert (crash.culprit.rank, crash.culprit.iteration) == (0, 60)

    result: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text())
    assert result["generation"] == 2
    assert result["steps"] == STEPS[example]
    assert result["accuracy"] > 0.8
    # Resumed, and not from zero: the last generation began where a checkpoint was.
    if example == "lightning_digits.py":
        assert log.count("Restored all states from the checkpoint") == 2
    else:
        assert result["resumed_from"] >= 40
    # Its iterations count on through evaluations, saves and restarts, so the launcher can tell its progress from them.
    assert ended["iteration"] in (STEPS[example] - 1, STEPS[example])  # an evaluation at the end has the latter
    assert not ended["went_back"]
    assert 40 <= ended["resumed_from"] <= ended["saved"]
    state = load_state(folder / "out" / "ft_state.json")
    assert state is not None
    learned = state["current_timeouts"]["section"]["calculated_sections"]
    assert set(learned) == {"setup", "step"} | (set() if example.startswith("megatron") else {"checkpointing"})


# It imports no framework; what it does import is preloaded, once for its three generations. The short ones are in
# tests/adapters/test_megatron.py and, for a whole example, in test_examples_ddp.py.
@pytest.mark.long
def test_a_megatron_loop_is_hung_then_crashed_then_complete(launch: Callable[..., Any]) -> None:
    example = "megatron_style_loop.py"
    job = launch(
        *(EXAMPLES / example, *ARGUMENTS[example]),
        options=["--max-restarts", 3],
        faults=FAULTS,
        worker_start="warm",
        preload="sklearn.datasets,torch._inductor.config",
        env={"TORCHINDUCTOR_CACHE_DIR": "cache"},
        **LIMITS,
    )

    assert job.wait(LONGEST) == 0, job.stderr
    check(example, job.work, job.stdout + job.stderr, job.events("ended")[0], *job.incidents())


@pytest.mark.long
@pytest.mark.parametrize("example", ["lightning_digits.py", "hf_trainer.py"])
def test_hung_then_crashed_then_complete(jobs: dict[str, tuple[Path, subprocess.Popen[bytes]]], example: str) -> None:
    folder, process = jobs[example]

    assert process.wait(LONGEST) == 0, (folder / "log").read_text()
    run = str(folder / "ft_logs" / "latest")
    (ended,) = [event for event in read_events(run) if event["event"] == "ended"]
    check(example, folder, (folder / "log").read_text(), ended, *read_incidents(run))


@pytest.fixture
def without_scikit_learn(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which scikit-learn looks as if it were not installed."""
    package = tmp_path / "without" / "sklearn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ModuleNotFoundError("No module named sklearn", name="sklearn")\n')
    return str(package.parent)


NEEDS = "examples/{} needs scikit-learn, which has the digits: pip install scikit-learn"


@pytest.mark.long
def test_without_scikit_learn_the_example_uses_up_no_restart(
    launch: Callable[..., Any], without_scikit_learn: str
) -> None:
    job = launch(
        *(EXAMPLES / "lightning_digits.py", *ARGUMENTS["lightning_digits.py"]),
        nproc=1,
        options=["--max-restarts", 3],
        worker_start="spawn",
        env={
            "PYTHONPATH": os.pathsep.join([without_scikit_learn, str(EXAMPLES.parent)]),
            "TORCHINDUCTOR_CACHE_DIR": "cache",
        },
        **LIMITS,
    )
    assert job.wait(LONGEST) == 1
    assert f"the job has failed: rank 0 has stopped the training: {NEEDS.format('lightning_digits.py')}" in job.stderr
    assert len(job.events("started")) == 1


@pytest.mark.parametrize(
    ("command", "needy"),
    [
        pytest.param("lightning_digits.py --out out", "lightning_digits.py", marks=pytest.mark.long),
        pytest.param("hf_trainer.py --out out", "hf_trainer.py", marks=pytest.mark.long),
        pytest.param("train_ddp_sections.py --out out", "digits.py", marks=pytest.mark.long),
    ],
)
def test_without_scikit_learn_the_example_says_so_alone(
    without_scikit_learn: str, tmp_path: Path, command: str, needy: str
) -> None:
    script, *options = command.split()
    path = os.pathsep.join([without_scikit_learn, str(EXAMPLES.parent)])
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *options],
        cwd=tmp_path,
        env={**{name: value for name, value in os.environ.items() if name != "RANK"}, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, NEEDS.format(needy))
    assert "Traceback" not in done.stderr
