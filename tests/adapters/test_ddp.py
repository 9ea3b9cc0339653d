"""The raw-loop adapter: which events its blocks fire, and what a real client makes of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import re
import subprocess
import sys
import threading
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
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.error_record import parse_error
from resilience_core.testing import EventRecorder, assert_conforms
from tests.threads import in_a_thread, writer


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


@pytest.mark.parametrize("odd", [1.5, None, "1", [1], float("nan")], ids=repr)
def test_a_step_whose_number_is_none_is_watched_and_counted(
    monitored: Callable[..., Cell],
    bus: EventBus,
    recorder: EventRecorder,
    odd: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number is of use, and no more: without it neither the training nor its protection may end."""
    monkeypatch.setattr("resilience_core._iterations._told", set())
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext()):
        for number in (7.0, odd, odd):
            with ft.step(number):  # type: ignore[arg-type]
                assert open_sections(cell) == {"step"}
        with ft.eval_step(odd, odd):
            assert open_sections(cell) == {"step"}
        with ft.checkpoint(odd):
            assert open_sections(cell) == {"checkpointing"}
        ft.checkpoint_loaded(odd)
        assert open_sections(cell) == set()
    assert [step["iteration"] for step in recorder.of("step_start")] == [7, 8, 9]
    assert caplog.text.count("which is no whole number") == (0 if odd is None else 5)
    assert "ERROR" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"state_path": 5}, r"state_path is 5 \(int\); it must be a path, or None"),
        ({"calculate_timeouts": "no"}, r"calculate_timeouts is 'no' \(str\); it must be True or False"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_at_once(wrong: dict[str, Any], said: str, bus: EventBus) -> None:
    """Later it would only switch the monitoring off."""
    with pytest.raises(ConfigError, match=said):
        FaultTolerance(bus=bus, **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"client": 3}, "client is 3 (int); it must be a RankMonitorClient"), ({"bus": 3}, "bus is 3 (int); it must be")],
)
def test_what_is_no_client_or_bus_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        FaultTolerance(**wrong)


def test_a_run_of_something_else_than_a_context_is_refused(bus: EventBus) -> None:
    with pytest.raises(TypeError, match="it must be a RunContext, or None"):
        FaultTolerance(bus=bus).run({"rank": 0}).__enter__()  # type: ignore[arg-type]


# ---- an exception of a signal handler, anywhere ------------------------------------------------------------------


class _Late(BaseException):
    pass


class _LateError(Exception):
    pass


class _Handler:
    """Raises at the so manyth point at which the interpreter would run a signal handler in the package: it enters a
    function of Python, or has returned from one of C."""

    def __init__(self, point: int, kind: type[BaseException]) -> None:
        self.left, self.kind = point, kind

    def __call__(self, frame: Any, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        is_ours = "/resilience_core/" in path or path.endswith("/adapters/ddp.py")
        if event in ("call", "c_return") and is_ours:
            self.left -= 1
            if self.left == 0:
                raise self.kind


@pytest.fixture
def without_garbage() -> Iterator[None]:
    """Collect none meanwhile: what a signal handler raises in a finalizer is lost, in any program."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_garbage")
@pytest.mark.parametrize("kind", [_Late, _LateError])
@pytest.mark.parametrize("block", ["step", "eval_step", "checkpoint", "save in a step", "caught in a step"])
def test_an_exception_of_a_signal_handler_leaves_no_section_open(
    monitored: Callable[..., Cell], bus: EventBus, block: str, kind: type[BaseException]
) -> None:
    """Wherever it is raised: when the next step begins, all is as if nothing had happened."""
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)

    def save_in_step(caught: Any) -> Any:
        with ft.step(7):
            try:
                with ft.checkpoint(7):
                    pass
            except caught:
                pass
        return contextlib.nullcontext()

    blocks: dict[str, Callable[[], Any]] = {
        "step": lambda: ft.step(7),
        "eval_step": lambda: ft.eval_step(7, 3),
        "checkpoint": lambda: ft.checkpoint(7),
        "save in a step": lambda: save_in_step(()),
        "caught in a step": lambda: save_in_step(kind),
    }
    with ft.run(RunContext()):
        for point in range(1, 1000):
            with ft.step(6):
                pass
            handler = _Handler(point, kind)
            try:
                sys.setprofile(handler)
                with blocks[block]():
                    pass
            except kind:
                pass
            finally:
                sys.setprofile(None)
            for number in (8, 9):
                with ft.step(number):
                    assert open_sections(cell) == set(ft.client.open_sections) == {"step"}, point
                assert open_sections(cell) == set(ft.client.open_sections) == set(), point
            with ft.checkpoint(10):
                assert open_sections(cell) == {"checkpointing"}, point
            assert open_sections(cell) == set(ft.client.open_sections) == set(), point
            with ft.eval_step(10, 4):
                assert open_sections(cell) == {"step"}, point
            assert open_sections(cell) == set(), point
            if handler.left > 0:
                break
    assert 10 < point < 999


# ---- blocks in an order that is no loop's -------------------------------------------------------------------------


def test_a_block_inside_another_ends_that_one_and_says_so_once(
    monitored: Callable[..., Cell], bus: EventBus, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext()):
        for _ in range(2):
            with ft.step(4):
                with ft.step(5):
                    assert open_sections(cell) == {"step"}
                assert open_sections(cell) == set()
            with ft.eval_step(4, 0), ft.eval_step(4, 1):
                pass
    assert recorder.names().count("step_start") == recorder.names().count("step_end") == 4
    assert recorder.names().count("eval_step_start") == recorder.names().count("eval_step_end") == 4
    assert caplog.text.count("begins inside a step that is still open") == 1
    assert "step 5 begins inside a step that is still open (4)" in caplog.text


@pytest.mark.parametrize("block", ["step", "eval_step"])
def test_a_block_that_is_left_late_does_not_end_a_later_one(
    monitored: Callable[..., Cell], bus: EventBus, block: str
) -> None:
    """As that of a generator which nobody asks for more."""
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)

    def framed(number: int) -> Any:
        return ft.step(number) if block == "step" else ft.eval_step(3, number)

    def numbers() -> Iterator[int]:
        for number in range(5):
            with framed(number):
                yield number

    with ft.run(RunContext()):
        abandoned = numbers()
        next(abandoned)
        with framed(7):
            abandoned.close()  # type: ignore[attr-defined]
            assert open_sections(cell) == {"step"}
        assert open_sections(cell) == set()


def test_a_save_in_the_background_goes_on_while_steps_do_and_has_not_failed(
    monitored: Callable[..., Cell], bus: EventBus, tmp_path: Path
) -> None:
    """And nothing is learned in its thread: a collective there would get in the way of the training's own."""
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus, state_path=tmp_path / "ft_state.json", calculate_timeouts=True)
    with ft.run(RunContext()):
        for number in range(20):
            with ft.step(number):
                pass
        with writer(lambda: ft.checkpoint(5)):
            with ft.step(20):
                assert open_sections(cell) == {"step", "checkpointing"}
            assert open_sections(cell) == {"checkpointing"}
        assert open_sections(cell) == set()
        assert not (tmp_path / "ft_state.json").exists()
        with ft.checkpoint(21):
            pass
        assert (tmp_path / "ft_state.json").exists()
    assert cell.view().saved == 21


def test_a_writer_whose_save_outlives_that_of_the_loop_leaves_the_step_watched(
    monitored: Callable[..., Cell], bus: EventBus, recorder: EventRecorder
) -> None:
    """Both are told: staging in the loop, writing in the background."""
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext()):
        with ft.step(2), contextlib.ExitStack() as background:
            with ft.checkpoint(2):
                leave = background.enter_context(writer(lambda: ft.checkpoint(2)))
                assert open_sections(cell) == {"checkpointing"}
            assert open_sections(cell) == {"step", "checkpointing"}
            leave()
            assert open_sections(cell) == {"step"}
        assert open_sections(cell) == set()
    assert recorder.names().count("checkpoint_start") == recorder.names().count("checkpoint_end") == 2


@pytest.mark.parametrize("changes", [False, True])
def test_a_save_inside_a_step_has_its_own_limit_in_whichever_thread_the_loop_runs(
    monitored: Callable[..., Cell], bus: EventBus, changes: bool
) -> None:
    cell = monitored(num_warmup_iterations=1)
    ft = FaultTolerance(bus=bus)
    seen = []

    def step(number: int) -> None:
        with ft.step(number):
            with ft.checkpoint(number):
                seen.append(open_sections(cell))
            seen.append(open_sections(cell))

    with ft.run(RunContext()):
        if changes:
            for number in range(4):
                in_a_thread(functools.partial(step, number))
        else:
            in_a_thread(lambda: [step(number) for number in range(4)])
    assert seen == [{"checkpointing"}, set(), *[{"checkpointing"}, {"step"}] * 3]


def test_an_evaluation_in_another_thread_is_covered_by_the_step_that_waits_for_it(
    monitored: Callable[..., Cell], bus: EventBus
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    seen = []

    def evaluate() -> None:
        for index in range(2):
            with ft.eval_step(2, index):
                seen.append(open_sections(cell))

    with ft.run(RunContext()):
        with ft.step(2):
            in_a_thread(evaluate)
            assert open_sections(cell) == {"step"}
            with ft.checkpoint(2):  # the step is still that of the loop's thread
                assert open_sections(cell) == {"checkpointing"}
        assert open_sections(cell) == set()
        in_a_thread(evaluate)
        assert open_sections(cell) == set()
    assert seen == [{"step"}] * 4


def test_an_evaluation_inside_a_save_is_part_of_the_save(monitored: Callable[..., Cell], bus: EventBus) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext()):
        for within_a_step in (False, True):
            with ft.step(2) if within_a_step else contextlib.nullcontext():
                with ft.checkpoint(2):
                    for index in range(3):
                        with ft.eval_step(2, index):
                            assert open_sections(cell) == {"checkpointing"}
                    assert open_sections(cell) == {"checkpointing"}
                assert open_sections(cell) == ({"step"} if within_a_step else set())
            assert open_sections(cell) == set()


def test_a_step_inside_a_save_ends_the_save_and_says_so_once(
    monitored: Callable[..., Cell], bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with ft.run(RunContext()):
        for number in (5, 6):
            with ft.checkpoint(number), ft.step(number):
                assert open_sections(cell) == {"step"}
            assert open_sections(cell) == set()
    assert caplog.text.count("the save counts as ended") == 1
    assert "step 5 begins before the save of iteration 5 has ended" in caplog.text


def test_an_exception_handled_by_a_thread_that_saves_does_not_end_the_step_of_the_loop(
    monitored: Callable[..., Cell], bus: EventBus
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)

    def save() -> None:
        try:
            raise OSError("the first try")
        except OSError:
            ft._translator.checkpoint_start(iteration=2)
            ft._translator.checkpoint_end()

    with ft.run(RunContext()), ft.step(2):
        in_a_thread(save)
        assert open_sections(cell) == {"step"}


def test_a_writer_of_a_run_that_is_over_ends_nothing_of_the_next(
    monitored: Callable[..., Cell], bus: EventBus, recorder: EventRecorder
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    with contextlib.ExitStack() as background:
        with contextlib.suppress(RuntimeError), ft.run(RunContext()):
            leave = background.enter_context(writer(lambda: ft.checkpoint(1)))
            raise RuntimeError("the first run")
        with ft.run(RunContext()):
            with ft.step(2), ft.checkpoint(2):
                leave()
                assert open_sections(cell) == {"checkpointing"}
            assert open_sections(cell) == set()
    assert [each["iteration"] for each in recorder.of("checkpoint_end")] == [2]


def test_evaluations_in_a_thread_beside_the_steps_raise_nothing_and_leave_nothing_open(
    monitored: Callable[..., Cell], bus: EventBus
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    raised: list[BaseException] = []
    is_over = threading.Event()

    def evaluate() -> None:
        try:
            while not is_over.is_set():
                with ft.eval_step(0, 0):
                    pass
        except BaseException as error:
            raised.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=evaluate)
    try:
        with ft.run(RunContext()):
            thread.start()
            for number in range(2000):
                with ft.step(number):
                    pass
            is_over.set()
            thread.join(60)
            with ft.step(2000):
                assert open_sections(cell) == {"step"}
            assert open_sections(cell) == set()
    finally:
        sys.setswitchinterval(before)
        is_over.set()
    assert raised == []


def test_an_evaluation_inside_a_step_is_over_with_the_step(monitored: Callable[..., Cell], bus: EventBus) -> None:
    """A thread that evaluates, too, had ended it in the eyes of the adapter."""
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)

    def evaluate() -> None:
        with ft.eval_step(2, 5):
            pass

    with ft.run(RunContext()):
        with ft.step(2), ft.eval_step(2, 0):
            in_a_thread(evaluate)
            assert open_sections(cell) == {"step"}
        assert open_sections(cell) == set()


def test_a_save_block_that_is_left_late_or_was_entered_before_the_run_ends_no_other_save(
    monitored: Callable[..., Cell], bus: EventBus
) -> None:
    cell = monitored(num_warmup_iterations=0)
    ft = FaultTolerance(bus=bus)
    before = ft.checkpoint(1)
    before.__enter__()
    with ft.run(RunContext()):
        with ft.step(1):
            pass
        with ft.checkpoint(2):
            before.__exit__(None, None, None)
            assert open_sections(cell) == {"checkpointing"}
        late = ft.checkpoint(3)
        late.__enter__()
        with ft.step(3):  # the save is over
            pass
        with ft.checkpoint(4):
            late.__exit__(None, None, None)
            in_a_thread(functools.partial(late.__exit__, None, None, None))
            assert open_sections(cell) == {"checkpointing"}
        assert open_sections(cell) == set()
        elsewhere = ft.checkpoint(5)
        elsewhere.__enter__()
        in_a_thread(functools.partial(elsewhere.__exit__, None, None, None))
        assert open_sections(cell) == set()


def test_what_a_loop_has_raised_stays_on_record_while_its_handler_saves_and_no_longer(
    monitored: Callable[..., Cell], bus: EventBus
) -> None:
    cell = monitored()
    ft = FaultTolerance(bus=bus)

    def is_leaving() -> bool:
        record = parse_error(cell.read_text(ERROR_TEXT))
        return record is not None and record.is_current(cell.view())

    with ft.run():
        for iteration in range(4):
            try:
                with ft.step(iteration):
                    if iteration == 2:
                        raise ValueError("no such sample")
            except ValueError:
                with ft.checkpoint(iteration):
                    assert is_leaving()
                assert is_leaving()
        assert not is_leaving()
        with ft.checkpoint(4):
            assert not is_leaving()
