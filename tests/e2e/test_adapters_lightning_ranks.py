"""Lightning on two ranks: learned timeouts are the same on both, and SIGTERM on one of them is no deadlock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents.incident_files import read_incidents
from resilience_core.plugins.state_file import load_state

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "scripts_adapters" / "lightning_ranks.py"
LAUNCHER = Path(sys.executable).parent / "ft_launcher"
LIMIT = 240
OPTIONS = (
    "--nproc-per-node=2",
    "--max-restarts=1",
    "--ft-learned-timeout-floor=30",
    f"--ft-rank-section-timeouts=setup:{LIMIT},step:{LIMIT},checkpointing:{LIMIT}",
    f"--ft-rank-out-of-section-timeout={LIMIT}",
)

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start a job in a folder: ``start(folder, steps, *more)``."""
    processes = []

    def begin(folder: Path, *arguments: int) -> subprocess.Popen[bytes]:
        (folder / "out").mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            command = [LAUNCHER, *OPTIONS, SCRIPT, "out", *map(str, arguments)]
            processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
        return processes[-1]

    yield begin
    for process in processes:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def terminated(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Any]]:
    """Two jobs, in each of which one rank gets SIGTERM in a step; they run while the other test does."""
    folders = {rank: tmp_path_factory.mktemp(f"terminated{rank}") for rank in (0, 1)}
    return {rank: (folder, start(folder, 20, rank)) for rank, folder in folders.items()}


def test_learned_timeouts_are_equal_on_all_ranks_and_in_force_in_the_next_run(
    tmp_path: Path, start: Start, terminated: Any
) -> None:
    def run(steps: int) -> list[dict[str, Any]]:
        assert start(tmp_path, steps).wait(450) == 0, (tmp_path / "log").read_text()
        return [json.loads((tmp_path / "out" / f"rank{rank}.json").read_text()) for rank in (0, 1)]

    first = run(20)
    assert first[0] == first[1]
    assert first[0]["reason"] == "completed"
    kept = load_state(tmp_path / "out" / "ft_state.json")
    assert kept is not None
    assert kept["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "step"]

    second = run(40)
    assert second[0] == second[1]
    assert second[0]["begin"] == kept
    kept = load_state(tmp_path / "out" / "ft_state.json")
    assert kept is not None
    assert kept["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert kept["current_timeouts"]["section"]["is_out_of_section_calculated"]
    assert kept["current_timeouts"]["heartbeat"]["were_calculated"]


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_on_one_rank_is_no_deadlock(terminated: dict[int, tuple[Path, Any]], rank: int) -> None:
    """The group is restarted and completes long before any limit."""
    folder, process = terminated[rank]

    assert process.wait(LIMIT) == 0, (folder / "log").read_text()

    log_folder = folder / "ft_logs" / "latest"
    (incident,) = read_incidents(str(log_folder))
    assert incident.kind == "failure"
    assert (folder / "log").read_text().count("is done at 20") == 2
