"""A rank's environment without a launcher: a real cell and a real configuration file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_core import FaultToleranceConfig, RankMonitorClient
from resilience_core.monitoring import first_use
from resilience_core.monitoring.error_capture import record_errors_in, stop_recording
from resilience_core.protocol.cell import Cell

FORKS = """
import ctypes, json, os, runpy, sys, traceback
import torch.distributed

order = json.loads(sys.argv[1])
pids = []
for number, environment in enumerate(order["environments"]):
    if (pid := os.fork()) == 0:
        try:
            ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # ends with its parent: PR_SET_PDEATHSIG
            os.dup2(os.open(os.path.join(order["folder"], f"said-{number}"), os.O_WRONLY | os.O_CREAT), 1)
            os.environ.update(environment)
            sys.argv = order["argv"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    pids.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
"""


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[str]]:
    """Run a script once per environment, each time in a process of its own that has imported torch already.

    ``run_ranks(script, *arguments, environments=[{"RANK": "0"}, ...])``: what each has printed. All must end with 0.
    """

    def run(script: Path, *arguments: object, environments: list[dict[str, str]]) -> list[str]:
        folder = tmp_path / "said"
        folder.mkdir()
        order = {"argv": [str(script), *map(str, arguments)], "environments": environments, "folder": str(folder)}
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", FORKS, json.dumps(order)], env=environment, check=True, timeout=100)
        return [(folder / f"said-{number}").read_text() for number in range(len(environments))]

    return run


@pytest.fixture
def recording_cell(tmp_path: Path) -> Iterator[Cell]:
    """Record what this process raises in a cell."""
    cell = Cell.create(str(tmp_path / "cell"))
    record_errors_in(cell)
    yield cell
    stop_recording()
    cell.close()


@pytest.fixture
def rank_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cell]]:
    """Make this process a monitored rank; returns the monitor's end of its cell."""
    cells = []
    monkeypatch.setattr(first_use, "_warned", set())  # what this process has said once, a test hears again

    def make(**settings: Any) -> Cell:
        path = tmp_path / f"cell{len(cells)}"
        config = tmp_path / "ft_config.json"
        config.write_text(FaultToleranceConfig(**settings).to_json())
        cells.append(Cell.create(str(path)))
        monkeypatch.setenv("FT_CELL", str(path))
        monkeypatch.setenv("FT_CONFIG_FILE", str(config))
        return cells[-1]

    yield make
    for cell in cells:
        cell.close()


@pytest.fixture
def no_rank_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one that no launcher has started."""
    monkeypatch.delenv("FT_CELL", raising=False)
    monkeypatch.delenv("FT_CONFIG_FILE", raising=False)


class RecordingClient(RankMonitorClient):
    """The real client, which also keeps what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def start_section(self, name: str) -> None:
        super().start_section(name)
        self.calls.append(f"+{name}")

    def end_section(self, name: str) -> None:
        super().end_section(name)
        self.calls.append(f"-{name}")

    def send_heartbeat(self) -> None:
        super().send_heartbeat()
        self.calls.append("beat")

    def calculate_and_set_section_timeouts(
        self, selected_sections: Any = None, calc_out_of_section: bool = True, skip_if_not_ready: bool = False
    ) -> bool:
        names = "+".join([*(selected_sections or []), *(["gap"] if calc_out_of_section else [])])
        self.calls.append(f"learn {names}")
        return super().calculate_and_set_section_timeouts(selected_sections, calc_out_of_section, skip_if_not_ready)

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        self.calls.append("learn heartbeats")
        return super().calculate_and_set_hb_timeouts(skip_if_not_ready)


@pytest.fixture
def recording_client() -> Iterator[RecordingClient]:
    """A client that keeps its calls, shut down at the end whatever a test has left it in."""
    client = RecordingClient()
    yield client
    client.shutdown_workload_monitoring()
