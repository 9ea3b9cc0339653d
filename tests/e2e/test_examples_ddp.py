"""The two DDP examples: undisturbed, disturbed, asked to stop; and as a person runs them, without ft_launcher, too.

What most of the time would go into is imports, in every rank of every generation: those that `make test` runs are
preloaded (``--ft-preload``), once per job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incidents
from resilience_core.plugins.state_file import load_state

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(800)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BIN = Path(sys.executable).parent
APIS = ("sections", "heartbeats")
ONE_API_SHORT = ("sections", pytest.param("heartbeats", marks=pytest.mark.long))
STEPS = ("--steps", "60", "--save-every", "10")
ENDLESS = ("--steps", "1000000", "--save-every", "50")
LONGEST = 240
PRELOAD = "sklearn.datasets,torch._inductor.config"
"""What both examples import besides torch; the second comes with ``torch.use_deterministic_algorithms``."""


@attrs.define
class Run:
    """One started example."""

    process: subprocess.Popen[str]
    out: Path
    output: str = ""

    def wait(self) -> int:
        """Wait for its end; stdout and stderr are in ``output`` from then on."""
        self.output += self.process.communicate(timeout=LONGEST)[0]
        return self.process.returncode

    @property
    def result(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return document

    @property
    def log_folder(self) -> str:
        return str(self.out / "logs" / "latest")

    def incidents(self) -> list[Incident]:
        return list(read_incidents(self.log_folder))


Start = Callable[..., Run]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start an example: ``start(starter, api, out, *arguments)``."""
    runs: list[Run] = []

    def begin(starter: str, api: str, out: Path, *arguments: str) -> Run:
        script = str(EXAMPLES / f"train_ddp_{api}.py")
        config = str(EXAMPLES / f"fault_tol_cfg_{api}.yaml")
        starters = {
            "python": [sys.executable],
            "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"],
            "ft_launcher": [
                *(str(BIN / "ft_launcher"), "--nproc-per-node", "2", "--max-restarts", "3", "--ft-cfg-path", config),
                *("--log-dir", str(out / "logs")),
            ],
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FT_")}
        process = subprocess.Popen(
            [*starters[starter], script, "--out", str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        runs.append(Run(process, out))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


Train = Callable[..., Any]


@pytest.fixture
def train(launch: Callable[..., Any]) -> Train:
    """Start an example under our launcher: ``train(api, out, *arguments)``."""

    def begin(api: str, out: Path, *arguments: object) -> Any:
        config = EXAMPLES / f"fault_tol_cfg_{api}.yaml"
        return launch(
            *(EXAMPLES / f"train_ddp_{api}.py", "--out", out, *arguments),
            options=["--max-restarts", 3],
            cfg_path=config,
            worker_start="warm",
            preload=PRELOAD,
            env={"TORCHINDUCTOR_CACHE_DIR": str(out.with_suffix(".cache"))},
            stack_capture_timeout=60,  # on a busy machine half a second is too short for a stack
        )

    return begin


def result_in(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "result.json").read_text())
    return document


@pytest.fixture(scope="module")
def known_results() -> dict[str, Any]:
    return {}


@pytest.fixture
def undisturbed(train: Train, known_results: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The result of a run that nothing happens to, which both examples must reach bit by bit."""
    if not known_results:
        job = train("sections", tmp_path / "undisturbed", *STEPS)
        assert job.wait(LONGEST) == 0, job.stderr
        assert job.incidents() == []
        known_results.update(result_in(tmp_path / "undisturbed"))
    return known_results


@pytest.mark.parametrize("api", ONE_API_SHORT)
def test_a_run_that_is_hung_and_killed_ends_with_the_weights_of_one_that_was_not(
    train: Train, undisturbed: dict[str, Any], tmp_path: Path, api: str
) -> None:
    faults = "hang:rank=1,step=25;sigkill:rank=0,step=45,generation=1"
    job = train(api, tmp_path, *STEPS, "--fault", faults)

    assert job.wait(LONGEST) == 0, job.stderr
    hang, killed = job.incidents()
    assert (hang.kind, hang.culprit and (hang.culprit.rank, hang.culprit.iteration)) == (
        "hang",
        (1, {"sections": 25, "heartbeats": 24}[api]),
    )
    assert (killed.kind, killed.culprit and (killed.culprit.rank, killed.culprit.exit_code)) == ("failure", (0, -9))
    assert job.stdout.count("training from step 20 of 60") == 1
    assert job.stdout.count("training from step 40 of 60") == 1
    assert result_in(tmp_path) == {**undisturbed, "generation": 2}


@pytest.mark.long
def test_torchrun_reaches_the_same_weights_without_a_monitor(
    start: Start, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    run = start("torchrun", "sections", tmp_path / "torchrun", *STEPS)

    assert run.wait() == 0, run.output
    assert run.output.count("training goes on without a rank monitor") == 2
    assert run.result == undisturbed


@pytest.mark.long  # tests/e2e/test_hangs.py has the short one
@pytest.mark.parametrize("api", APIS)
def test_one_rank_that_skips_a_collective_is_found(start: Start, tmp_path: Path, api: str) -> None:
    run = start("ft_launcher", api, tmp_path, *STEPS, "--fault", "missing_collective:rank=0,step=15")

    assert run.wait() == 0, run.output
    (incident,) = run.incidents()
    assert incident.kind == "hang"
    assert {rank.rank for rank in incident.ranks} == {0, 1}
    assert run.result["generation"] == 1


@pytest.mark.long  # tests/adapters/test_ddp.py and tests/e2e/test_launcher_end.py have the short ones
@pytest.mark.parametrize(
    ("api", "struck"),
    [
        ("sections", "rank 0"),
        ("sections", "rank 1"),
        ("sections", "launcher"),
        ("heartbeats", "rank 1"),
    ],
)
def test_sigterm_ends_all_ranks_after_the_same_step_whoever_gets_it(
    train: Train, tmp_path: Path, api: str, struck: str
) -> None:
    job = train(api, tmp_path, *ENDLESS)
    job.wait_for_output("step   50", timeout=LONGEST)
    os.kill(job.pid if struck == "launcher" else job.workers()[int(struck[-1])], signal.SIGTERM)

    assert job.wait(LONGEST) == 0, job.stderr
    assert "asked to stop: every rank stops after step" in job.stdout
    assert "Traceback" not in job.stderr
    assert job.incidents() == []
    assert (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "result.json").exists()


@pytest.mark.long  # tests/e2e/test_limits.py has the short one
@pytest.mark.parametrize("api", APIS)
def test_a_resumed_run_learns_timeouts_keeps_them_and_ends_as_if_it_had_never_stopped(
    start: Start, undisturbed: dict[str, Any], tmp_path: Path, api: str
) -> None:
    learn = ("--learn-timeouts",) if api == "sections" else ()
    first = start("ft_launcher", api, tmp_path / "job", "--steps", "10", *learn)
    assert first.wait() == 0, first.output
    os.rename(tmp_path / "job" / "logs", tmp_path / "first_logs")
    second = start("ft_launcher", api, tmp_path / "job", *STEPS, *learn)
    assert second.wait() == 0, second.output
    assert "training from step 10 of 60" in second.output
    assert second.result == undisturbed

    state = load_state(tmp_path / "job" / "ft_state.json")
    assert state is not None
    learned = state["current_timeouts"]
    if api == "sections":
        assert learned["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]
        assert learned["section"]["is_out_of_section_calculated"]
    else:
        assert learned["heartbeat"]["were_calculated"]
    assert second.incidents() == []


@pytest.mark.long
@pytest.mark.parametrize("api", APIS)
def test_plain_python_trains_alone(start: Start, tmp_path: Path, api: str) -> None:
    run = start("python", api, tmp_path, "--steps", "5", "--save-every", "5")

    assert run.wait() == 0, run.output
    assert run.output.count("ft_launcher") == 1
    assert "on 1 rank(s)" in run.output
    assert run.result["generation"] == 0


@pytest.mark.long  # tests/resilience_core/test_faults.py has the short one
@pytest.mark.parametrize("api", APIS)
def test_a_fault_that_does_not_exist_is_refused_with_the_nearest(start: Start, tmp_path: Path, api: str) -> None:
    run = start("python", api, tmp_path, "--fault", "sigkil:rank=0,step=1")

    assert run.wait() == 1
    assert "did you mean 'sigkill'?" in run.output
    assert "Traceback" not in run.output
