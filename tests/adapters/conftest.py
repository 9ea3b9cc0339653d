"""What the tests of the adapters share: tiny trainings, and a rank's environment without a launcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_core import FaultToleranceConfig, bus
from resilience_core.protocol.cell import Cell
from resilience_core.testing import EventRecorder

sys.path.insert(0, str(Path(__file__).parent))  # for the scripted_* modules, since tests are no package

FOREIGN_WARNINGS = (
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",  # lightning 2.6 with torch 2.13
    "ignore::UserWarning:lightning",
    "ignore::UserWarning:pytorch_lightning",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What frameworks warn of is not ours to cure."""
    for warning in FOREIGN_WARNINGS:
        item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher has started this process, and no test leaves anything on the default bus."""
    for variable in ("FT_CELL", "FT_CONFIG_FILE", "FT_SIMULATED_FAULTS", "FAULT_TOL_FINISHED_FLAG_FILE"):
        monkeypatch.delenv(variable, raising=False)
    yield
    left = bus().plugins()
    for plugin in left:
        bus().unregister(plugin)
    assert left == []


@pytest.fixture
def recorder() -> Iterator[EventRecorder]:
    """Hears everything on the default bus."""
    recorder = EventRecorder()
    bus().register(recorder)
    yield recorder
    bus().unregister(recorder)


@pytest.fixture
def rank_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cell]]:
    """Make this process a monitored rank; returns the monitor's end of its cell."""
    cells = []

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
