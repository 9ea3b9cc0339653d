"""The raw-loop adapter: which events its blocks fire, and what a real client makes of them."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import adapters
from adapters.ddp import FaultTolerance
from resilience_core import EventBus, FaultToleranceConfig, HeartbeatMonitor, RunContext, StopTraining, hookimpl
from resilience_core.errors import ConfigError, PluginError, UnconfiguredSectionError
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell import Cell
from resilience_core.testing import EventRecorder, assert_conforms


@pytest.fixture
def no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_CELL", raising=False)
    monkeypatch.delenv("FT_CONFIG_FILE", raising=False)


@pytest.fixture
def monitored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cell]]:
    """Make this process a rank with a real cell; returns the monitor's end of it."""
    cells: list[Cell] = []

    def make(**settings: Any) -> Cell:
        cell, config = tmp_path / f"cell{len(cells)}", tmp_path / "config.json"
        config.write_text(FaultToleranceConfig(**settings).to_json())
        cells.append(Cell.create(str(cell)))
        monkeypatch.setenv("FT_CELL", str(cell))
        monkeypatch.setenv("FT_CONFIG_FILE", str(config))
        return cells[-1]

    yield make
    for cell in cells:
        cell.close()


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def recorder(bus: EventBus) -> EventRecorder:
    recorder = EventRecorder()
    bus.register(recorder)
    return recorder


def open_sections(cell: Cell) -> set[str]:
    """What the monitor sees."""
    return {section.name for section in cell.view().sections}


@pytest.mark.usefixtures("no_monitor")
def test_a_whole_run_fires_every_event_of_the_contract_in_order(bus: EventBus, recorder: EventRecorder) -> None:
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext(rank=1, world_size=2)):
        ft.checkpoint_loaded(7)
        with ft.step(7):
            pass
        with ft.checkpoint(8):
            pass
        with ft.checkpoint(8, kind="remove"):
            pass
        with ft.eval_step(8, 0):
            pass

    assert_conforms(
        recorder,
        [
            ("setup", {"context": RunContext(rank=1, world_size=2)}),
            ("checkpoint_loaded", {"iteration": 7, "source": "persistent"}),
            ("step_start", {"iteration": 7}),
            ("step_end", {"iteration": 7}),
            ("checkpoint_start", {"iteration": 8, "kind": "save"}),
            ("checkpoint_end", {"iteration": 8, "kind": "save", "error": None}),
            ("checkpoint_start", {"iteration": 8, "kind": "remove"}),
            ("checkpoint_end", {"iteration": 8, "kind": "remove", "error": None}),
            ("eval_step_start", {"iteration": 8, "eval_index": 0}),
            ("eval_step_end", {"iteration": 8, "eval_index": 0}),
            ("teardown", {"reason": "completed"}),
        ],
    )


@pytest.mark.usefixtures("no_monitor")
def test_the_context_comes_from_the_launchers_environment(
    bus: EventBus, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "FT_RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(name, value)
    with FaultTolerance(bus=bus, asynchronous_saves=True).run():
        pass

    assert recorder.of("setup")[0]["context"] == RunContext(
        rank=3, local_rank=1, world_size=4, restart_count=2, framework="ddp", asynchronous_saves=True
    )


@pytest.mark.usefixtures("no_monitor")
def test_an_exception_that_leaves_the_loop_is_told_and_goes_on(bus: EventBus, recorder: EventRecorder) -> None:
    ft, wrong = FaultTolerance(bus=bus), ValueError("no such batch")
    with pytest.raises(ValueError, match="no such batch"), ft.run(), ft.step(3):
        raise wrong

    assert_conforms(
        recorder,
        [
            "setup",
            "step_start",
            "step_end",
            ("training_error", {"error": wrong, "iteration": 3}),
            ("teardown", {"reason": "exception"}),
        ],
    )


@pytest.mark.usefixtures("no_monitor")
def test_an_exception_between_two_steps_tells_how_many_are_complete(bus: EventBus, recorder: EventRecorder) -> None:
    ft, wrong = FaultTolerance(bus=bus), ValueError("no such batch")

    def loop() -> None:
        with ft.run():
            with ft.step(3):
                pass
            raise wrong

    with pytest.raises(ValueError, match="no such batch"):
        loop()

    assert recorder.of("training_error") == [{"error": wrong, "iteration": 4}]


@pytest.mark.usefixtures("no_monitor")
def test_outside_of_a_run_nothing_is_fired(bus: EventBus, recorder: EventRecorder) -> None:
    ft = FaultTolerance(bus=bus)
    with ft.step(0), ft.eval_step(0, 0), ft.checkpoint(1):
        ft.checkpoint_loaded(3)

    assert recorder.events == []


@pytest.mark.usefixtures("no_monitor")
def test_a_save_inside_a_save_is_part_of_it(bus: EventBus, recorder: EventRecorder) -> None:
    ft = FaultTolerance(bus=bus)
    with ft.run(), ft.checkpoint(9), ft.checkpoint(8, kind="remove"):
        pass

    assert recorder.of("checkpoint_start") == [{"iteration": 9, "kind": "save"}]
    assert recorder.of("checkpoint_end") == [{"iteration": 9, "kind": "save", "error": None}]
    assert_conforms(recorder)


@pytest.mark.usefixtures("no_monitor")
def test_a_save_that_fails_ends_with_its_error(bus: EventBus, recorder: EventRecorder) -> None:
    ft, full = FaultTolerance(bus=bus), OSError("disk full")
    with pytest.raises(OSError, match="disk full"), ft.run(), ft.checkpoint(9):
        raise full

    assert recorder.of("checkpoint_end") == [{"iteration": 9, "kind": "save", "error": full}]
    assert_conforms(recorder)


@pytest.mark.usefixtures("no_monitor")
def test_stop_training_leaves_the_loop_as_an_exception_and_ends_it_as_stopped(
    bus: EventBus, recorder: EventRecorder
) -> None:
    class Stopper:
        @hookimpl
        def step_end(self, iteration: int) -> None:
            if iteration == 1:
                raise StopTraining("a straggler was found")

    bus.register(Stopper())
    ft = FaultTolerance(bus=bus)

    def loop() -> None:
        with ft.run():
            for iteration in range(5):
                with ft.step(iteration):
                    pass

    with pytest.raises(StopTraining, match="straggler"):
        loop()

    assert recorder.of("step_start") == [{"iteration": 0}, {"iteration": 1}]
    assert [str(fired["error"]) for fired in recorder.of("training_error")] == ["a straggler was found"]
    assert recorder.of("teardown") == [{"reason": "stopped"}]


@pytest.mark.usefixtures("no_monitor")
def test_an_end_by_signal_is_told_as_one_and_the_next_run_is_new(bus: EventBus, recorder: EventRecorder) -> None:
    ft = FaultTolerance(bus=bus)
    with ft.run():
        ft.end_by_signal()
    with ft.run():
        pass

    assert recorder.of("teardown") == [{"reason": "signal"}, {"reason": "completed"}]
    assert_conforms(recorder)


@pytest.mark.usefixtures("no_monitor")
def test_a_run_cannot_be_entered_twice_at_once(bus: EventBus, recorder: EventRecorder) -> None:
    ft = FaultTolerance(bus=bus)
    with ft.run():
        with pytest.raises(PluginError, match="entered already"), ft.run():
            pass
        with ft.step(0):
            pass

    assert_conforms(recorder, ["setup", "step_start", "step_end", ("teardown", {"reason": "completed"})])


@pytest.mark.usefixtures("no_monitor")
def test_a_bus_with_another_monitor_is_refused(bus: EventBus, recorder: EventRecorder) -> None:
    bus.register(HeartbeatMonitor())
    with pytest.raises(PluginError, match="HeartbeatMonitor already"), FaultTolerance(bus=bus).run():
        pass

    assert recorder.events == []


@pytest.mark.usefixtures("no_monitor")
def test_without_a_launcher_it_is_said_once_that_nobody_watches(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    ft = FaultTolerance(bus=bus)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with ft.run(), ft.step(0):
                assert not ft.client.is_initialized

    assert [record.message for record in caplog.records if "ft_launcher" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


def test_each_block_is_a_section_that_the_monitor_sees(bus: EventBus, monitored: Callable[..., Cell]) -> None:
    cell = monitored(rank_section_timeouts={"setup": 60, "step": 5, "checkpointing": 30})
    ft = FaultTolerance(bus=bus)
    with ft.run():
        assert open_sections(cell) == {"setup"}
        with ft.step(0):
            assert open_sections(cell) == set()  # warm-up
        with ft.step(1):
            assert open_sections(cell) == {"step"}
        assert open_sections(cell) == set()
        with ft.checkpoint(2):
            assert open_sections(cell) == {"checkpointing"}
        for index, seen in enumerate((set(), {"step"})):
            with ft.eval_step(2, index):
                assert open_sections(cell) == seen
        assert ft.client.is_initialized
    assert not ft.client.is_initialized


def test_a_loop_that_never_saves_needs_no_limit_for_saves(bus: EventBus, monitored: Callable[..., Cell]) -> None:
    """One that does is told so at its first save, and what has no section at all before its first step."""
    monitored(rank_section_timeouts={"setup": 15, "step": 2})
    ft = FaultTolerance(bus=bus)
    with ft.run(), ft.step(0):
        pass
    with pytest.raises(UnconfiguredSectionError, match="'checkpointing'"), ft.run(), ft.checkpoint(1):
        pass
    monitored(rank_section_timeouts={"setup": 15, "checkpointing": 2})
    with pytest.raises(UnconfiguredSectionError, match="'step'"), FaultTolerance(bus=bus).run():
        pass


def test_a_step_whose_exception_is_caught_is_not_open_any_more(bus: EventBus, monitored: Callable[..., Cell]) -> None:
    cell = monitored(rank_section_timeouts={"setup": 60, "step": 5, "checkpointing": 30}, num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run():
        with pytest.raises(MemoryError), ft.step(0):
            raise MemoryError
        assert open_sections(cell) == set()


def train(ft: FaultTolerance, steps: int) -> None:
    """A resumed job that saves."""
    with ft.run():
        ft.checkpoint_loaded(0)
        for iteration in range(steps):
            with ft.step(iteration):
                pass
        with ft.checkpoint(steps):
            pass


def test_learned_timeouts_are_kept_and_restored(bus: EventBus, monitored: Callable[..., Cell], tmp_path: Path) -> None:
    state_path = tmp_path / "state" / "ft_state.json"
    monitored(
        rank_section_timeouts={"setup": 600, "step": 500, "checkpointing": None},
        learned_limits="replace",
        learned_timeout_floor=2,
    )
    train(FaultTolerance(bus=bus, state_path=state_path, calculate_timeouts=True), steps=20)

    state = load_state(state_path)
    assert state is not None
    learned = state["current_timeouts"]["section"]
    assert learned["section"] == {"setup": 2.0, "step": 2.0, "checkpointing": 2.0}
    assert learned["out_of_section"] == 2.0

    monitored(rank_section_timeouts={"setup": 600, "step": 500, "checkpointing": None}, learned_limits="replace")
    restored = FaultTolerance(bus=bus, state_path=state_path)
    with restored.run():
        assert restored.client.section_timeouts is not None
        assert restored.client.section_timeouts.section == learned["section"]


def test_nothing_is_learned_from_an_end_by_signal_or_unasked(
    bus: EventBus, monitored: Callable[..., Cell], tmp_path: Path
) -> None:
    monitored()
    ft = FaultTolerance(bus=bus, state_path=tmp_path / "signal.json", calculate_timeouts=True)
    with ft.run():
        for iteration in range(20):
            with ft.step(iteration):
                pass
        ft.end_by_signal()
    train(FaultTolerance(bus=bus, state_path=tmp_path / "unasked.json"), steps=20)

    assert not (tmp_path / "signal.json").exists()
    assert not (tmp_path / "unasked.json").exists()


def test_with_the_heartbeat_api_every_step_is_a_heartbeat(bus: EventBus, monitored: Callable[..., Cell]) -> None:
    cell = monitored(initial_rank_heartbeat_timeout=100, rank_heartbeat_timeout=10)
    ft = FaultTolerance(bus=bus, api="heartbeats")
    with ft.run():
        initial = cell.view().last_heartbeat_ns
        with ft.step(0):
            assert cell.view().last_heartbeat_ns == initial
        first = cell.view().last_heartbeat_ns
        assert first > initial
        with ft.eval_step(1, 0):
            pass
        assert cell.view().last_heartbeat_ns > first
        assert open_sections(cell) == set()


def test_an_api_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'section'.*did you mean 'sections'"):
        FaultTolerance(api="section")  # type: ignore[arg-type]


def test_the_package_exports_it_lazily_and_without_torch() -> None:
    check = (
        "import sys, adapters; assert 'adapters.ddp' not in sys.modules; adapters.FaultTolerance; "
        "assert 'adapters.ddp' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
    assert adapters.FaultTolerance is FaultTolerance
    assert dir(adapters) == sorted(adapters.__all__)


@pytest.mark.parametrize(
    ("end", "is_made"), [("complete", True), ("signal", False), ("exception", False), ("no step", False)]
)
def test_the_finished_flag(
    bus: EventBus, no_monitor: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, is_made: bool
):
    flag = tmp_path / "finished"
    ft = FaultTolerance(bus=bus, autoresume=True)
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    with pytest.raises(ConfigError, match="FAULT_TOL_FINISHED_FLAG_FILE is not set"), ft.run():
        pass
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    with contextlib.suppress(ZeroDivisionError), ft.run():
        if end != "no step":
            with ft.step(0):
                assert not flag.exists()
        if end == "signal":
            ft.end_by_signal()
        if end == "exception":
            raise ZeroDivisionError
    assert flag.exists() is is_made


def test_a_further_run_takes_the_finished_flag_away_until_it_has_ended_as_well(
    bus: EventBus, no_monitor: None, tmp_path: Path, monkeypatch: Any
):
    """Else a job that fails in its second run would pass for a complete training."""
    flag = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    ft = FaultTolerance(bus=bus, autoresume=True)
    with ft.run(), ft.step(0):
        pass
    assert flag.exists()
    with contextlib.suppress(ZeroDivisionError), ft.run():
        assert not flag.exists()
        raise ZeroDivisionError
    assert not flag.exists()
    with ft.run():
        pass
    assert flag.exists(), "there was nothing left to do in the last run"


def test_a_finished_flag_of_another_process_stays(bus: EventBus, no_monitor: None, tmp_path: Path, monkeypatch: Any):
    flag = tmp_path / "finished"
    flag.touch()
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    with pytest.raises(ZeroDivisionError), FaultTolerance(bus=bus, autoresume=True).run():
        raise ZeroDivisionError
    assert flag.exists()


def test_without_autoresume_no_flag_is_made(bus: EventBus, no_monitor: None, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    ft = FaultTolerance(bus=bus)
    with ft.run(), ft.step(0):
        pass
    assert not (tmp_path / "finished").exists()
