"""Lightning's callbacks: what is covered, what is undone, and when training counts as complete."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from resilience_core import ConfigError, SectionError, StopTraining, WorkloadAction, WorkloadControlRequest
from resilience_core.errors import PluginError
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.control import receive
from resilience_core.protocol.error_record import parse_error
from resilience_core.testing import EventRecorder, assert_conforms
from straggler import Detector

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from scripted_lightning import loader, make_module, make_trainer

    from adapters.lightning import (
        FaultToleranceCallback,
        FaultToleranceSectionsCallback,
        StragglerDetectionCallback,
    )

LIMITS = {"rank_section_timeouts": {"setup": 60.0, "step": 60.0, "checkpointing": 60.0}}
CALLBACKS = ("FaultToleranceCallback", "FaultToleranceSectionsCallback")


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import Lightning when its first test runs: it takes seconds in each of the processes that collect tests."""
    global Callback, ModelCheckpoint, OnExceptionCheckpoint, AsyncCheckpointIO, loader, make_module, make_trainer
    global FaultToleranceCallback, FaultToleranceSectionsCallback, StragglerDetectionCallback
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from scripted_lightning import loader, make_module, make_trainer

    from adapters.lightning import (
        FaultToleranceCallback,
        FaultToleranceSectionsCallback,
        StragglerDetectionCallback,
    )


def sections(folder: Path, **arguments: Any) -> FaultToleranceSectionsCallback:
    return FaultToleranceSectionsCallback(
        **{"autoresume": False, "calculate_timeouts": False, "exp_dir": folder, **arguments}
    )


def fail_at(step: int, error: BaseException | None = None) -> Callable[[Any, int], None]:
    def act(module: Any, batch_idx: int) -> None:
        if module.global_step == step:
            raise error or RuntimeError("boom")

    return act


def fit(
    folder: Path, *callbacks: Any, act: Any = None, ckpt_path: Any = None, val: Any = None, **arguments: Any
) -> Any:
    saves = any(isinstance(callback, ModelCheckpoint | OnExceptionCheckpoint) for callback in callbacks)
    settings = {"max_steps": 4, "default_root_dir": folder, "enable_checkpointing": saves, **arguments}
    trainer = make_trainer(callbacks=list(callbacks), **settings)
    trainer.fit(make_module(act=act), loader(), val, ckpt_path=ckpt_path)
    return trainer


def assert_unwrapped(trainer: Any) -> None:
    assert not {"save_checkpoint", "_run_stage"} & vars(trainer).keys()
    assert not {"remove_checkpoint", "teardown"} & vars(trainer.strategy).keys()
    assert "teardown" not in vars(trainer.strategy.checkpoint_io)


# ---- the contract of the seeds --------------------------------------------------------------------------


def test_constructors_are_those_that_people_call() -> None:
    heartbeats = inspect.signature(FaultToleranceCallback)
    assert str(heartbeats).replace("'", "").startswith("(autoresume: bool, calculate_timeouts: bool, ")
    assert {name: p.default for name, p in heartbeats.parameters.items() if p.default is not p.empty} == {
        "simulated_fault_params": None,
        "exp_dir": None,
        "logger_name": "nemo_logger.FaultToleranceCallback",
    }
    assert [*inspect.signature(FaultToleranceSectionsCallback).parameters] == [
        *heartbeats.parameters,
        "exc_handling_policy",
    ]
    straggler = inspect.signature(StragglerDetectionCallback).parameters
    assert [*straggler] == [
        "report_time_interval",
        "calc_relative_gpu_perf",
        "calc_individual_gpu_perf",
        "num_gpu_perf_scores_to_log",
        "gpu_relative_perf_threshold",
        "gpu_individual_perf_threshold",
        "stop_if_detected",
        "logger_name",
        "enable_ptl_logging",
        "profiling_interval",
        "exclude_node",
        "log_path",
    ]
    assert straggler["logger_name"].default == "nemo_logger.StragglerDetectionCallback"


# ---- what is covered, what is undone --------------------------------------------------------------------


def test_a_second_fit_is_a_second_run_and_everything_is_undone(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = fit(tmp_path, sections(tmp_path), max_steps=2)
    assert_unwrapped(trainer)

    trainer.fit_loop.epoch_loop.max_steps = 4
    trainer.fit(trainer.lightning_module, loader())

    assert_unwrapped(trainer)
    assert_conforms(recorder)
    assert recorder.names().count("setup") == recorder.names().count("teardown") == 2
    assert [a["iteration"] for a in recorder.of("step_start")] == [0, 1, 2, 3]


def test_after_an_exception_everything_is_undone_and_the_trainer_can_fit_again(
    tmp_path: Path, recorder: EventRecorder
) -> None:
    act = fail_at(2)
    trainer = make_trainer(max_steps=4, callbacks=[sections(tmp_path)], default_root_dir=tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        trainer.fit(make_module(act=act), loader())
    assert_unwrapped(trainer)
    assert recorder.names()[-2:] == ["training_error", "teardown"]
    assert recorder.of("teardown") == [{"reason": "exception"}]

    trainer.fit(make_module(), loader())

    assert_conforms(recorder)
    assert recorder.of("teardown")[1:] == [{"reason": "completed"}]


def test_a_callback_that_fails_while_an_exception_is_handled_does_not_spoil_the_next_run(
    tmp_path: Path, recorder: EventRecorder
) -> None:
    class Spoiler(ModelCheckpoint):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        fit(tmp_path, sections(tmp_path), Spoiler(tmp_path), act=fail_at(1))
    fit(tmp_path, sections(tmp_path))

    assert_conforms(recorder)
    assert recorder.of("teardown") == [{"reason": "exception"}, {"reason": "completed"}]


@pytest.mark.parametrize("kind", ["save_on_exception", "OnExceptionCheckpoint"])
def test_a_save_made_while_an_exception_is_handled_is_covered(
    tmp_path: Path, recorder: EventRecorder, kind: str, rank_environment: Callable[..., Cell]
) -> None:
    rank_environment(**LIMITS)
    saves = (
        ModelCheckpoint(tmp_path, every_n_train_steps=1000, save_on_exception=True)
        if kind == "save_on_exception"
        else OnExceptionCheckpoint(tmp_path)
    )
    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, sections(tmp_path), saves, act=fail_at(2))

    assert recorder.names()[-4:] == ["training_error", "checkpoint_start", "checkpoint_end", "teardown"]
    assert recorder.of("checkpoint_end")[-1]["error"] is None


def on_its_way_out_with(cell: Cell) -> str | None:
    """Return the exception of which the launcher would find that the rank is on its way out with it."""
    record = parse_error(cell.read_text(ERROR_TEXT))
    return record.first_line() if record is not None and record.is_current(cell.view()) else None


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["RuntimeError", "interrupt"])
def test_an_exception_is_on_record_before_any_callback_hears_of_it_and_while_one_saves(
    tmp_path: Path, rank_environment: Callable[..., Cell], name: str, error: BaseException
) -> None:
    """Each of them may wait there for peers that do not come."""
    cell = rank_environment(**LIMITS)
    seen = []

    class Looks(Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            seen.append(("hears", on_its_way_out_with(cell)))

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            seen.append(("saves", on_its_way_out_with(cell)))

    ours = globals()[name](autoresume=False, calculate_timeouts=False, exp_dir=tmp_path)
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=1000, save_last=True, save_on_exception=True)
    with pytest.raises((RuntimeError, SystemExit)):
        fit(tmp_path, Looks(), ours, saves, act=fail_at(2, error))

    said = "RuntimeError: boom" if isinstance(error, RuntimeError) else "KeyboardInterrupt"
    assert [what for what, _ in seen] == ["hears", "saves", "saves"]
    assert {on_record for _, on_record in seen} == {said}


def test_an_exception_is_told_where_a_callback_before_ours_raises_as_it_hears_of_it(
    tmp_path: Path, recorder: EventRecorder
) -> None:
    class Spoiler(Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        fit(tmp_path, Spoiler(), sections(tmp_path), act=fail_at(1))
    fit(tmp_path, sections(tmp_path))  # Lightning had no word for the end of the run before

    assert_conforms(recorder)
    assert [str(fired["error"]) for fired in recorder.of("training_error")] == ["boom"]


def test_a_tuner_that_ends_a_fit_early_is_no_error(tmp_path: Path, recorder: EventRecorder) -> None:
    from lightning.pytorch.utilities.exceptions import _TunerExitException

    class Tunes(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            raise _TunerExitException

    fit(tmp_path, Tunes(), sections(tmp_path))

    assert recorder.of("training_error") == []


def test_a_save_that_fails_says_so(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(max_steps=2, callbacks=[sections(tmp_path)], default_root_dir=tmp_path)

    def act(module: Any, batch_idx: int) -> None:
        module.trainer.save_checkpoint(tmp_path / "no" / "\0" / "such.ckpt")

    with pytest.raises((ValueError, OSError)) as raised:
        trainer.fit(make_module(act=act), loader())

    assert recorder.of("checkpoint_end") == [{"iteration": 0, "kind": "save", "error": raised.value}]
    assert_unwrapped(trainer)


def test_old_checkpoints_are_removed_inside_of_checkpointing(tmp_path: Path, recorder: EventRecorder) -> None:
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=1, save_last=True)
    fit(tmp_path, sections(tmp_path), saves, max_steps=3)

    kinds = [a["kind"] for a in recorder.of("checkpoint_start")]
    assert kinds.count("save") >= 3
    assert kinds.count("remove") >= 2
    assert_conforms(recorder)


def test_asynchronous_saves_are_known_and_their_end_is_waited_for(tmp_path: Path, recorder: EventRecorder) -> None:
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    fit(tmp_path, sections(tmp_path), saves, plugins=[AsyncCheckpointIO()])

    assert recorder.of("setup")[0]["context"].asynchronous_saves
    assert [a["kind"] for a in recorder.of("checkpoint_start")] == ["save", "save", "finalize"]
    assert_conforms(recorder)


def test_each_batch_is_a_step_while_gradients_accumulate(tmp_path: Path, recorder: EventRecorder) -> None:
    fit(tmp_path, sections(tmp_path), max_steps=2, accumulate_grad_batches=3)

    assert [a["iteration"] for a in recorder.of("step_end")] == [0, 1, 2, 3, 4, 5]


def test_a_skipped_epoch_leaves_no_step_open(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(max_epochs=2, callbacks=[sections(tmp_path)], default_root_dir=tmp_path)
    module = make_module()
    module.on_train_batch_start = lambda batch, batch_idx: -1

    trainer.fit(module, loader(3))

    assert_conforms(recorder)
    assert recorder.names().count("step_start") == recorder.names().count("step_end") == 2


def test_validate_and_test_are_left_alone(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(callbacks=[sections(tmp_path), FaultToleranceCallback(True, True, exp_dir=tmp_path)])
    module = make_module()
    module.test_step = module.validation_step
    trainer.validate(module, loader(2), verbose=False)
    trainer.test(module, loader(2), verbose=False)

    assert recorder.events == []
    assert_unwrapped(trainer)


def test_our_callbacks_together_share_a_client_and_fire_no_event_twice(
    tmp_path: Path, recorder: EventRecorder, rank_environment: Callable[..., Cell]
) -> None:
    cell = rank_environment(**LIMITS)
    straggler = StragglerDetectionCallback(300.0, True, True, 0, 0.7, 0.7, False)
    callbacks = [FaultToleranceCallback(False, True, exp_dir=tmp_path), sections(tmp_path), straggler]

    trainer = fit(tmp_path, *callbacks, max_steps=3)

    assert_conforms(recorder)
    assert recorder.names() == ["setup", *["step_start", "step_end"] * 3, "teardown"]
    assert cell.view().iteration == 2
    assert_unwrapped(trainer)


def test_a_callback_given_twice_is_refused(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    rank_environment(**LIMITS)
    with pytest.raises(PluginError, match="each of its callbacks once"):
        fit(tmp_path, sections(tmp_path), sections(tmp_path))


# ---- the rank monitor -----------------------------------------------------------------------------------


def test_sections_are_open_where_they_should_be(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    cell = rank_environment(**LIMITS)
    seen: dict[str, set[str]] = {}

    def look(where: str) -> None:
        seen.setdefault(where, set()).update(section.name for section in cell.view().sections)

    class Eyes(ModelCheckpoint):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            look("setup")

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            look("before backward")

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            look("before the optimizer")

        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            look("zero_grad")

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            look("save")

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            look("end of the epoch")

    fit(
        tmp_path,
        sections(tmp_path),
        Eyes(tmp_path, every_n_train_steps=2),
        act=lambda module, batch_idx: look("forward") if batch_idx else None,
        max_epochs=1,
        max_steps=-1,
        limit_train_batches=4,
    )

    assert seen == {
        "setup": {"setup"},
        "forward": {"step"},
        "before backward": {"step"},
        "before the optimizer": {"step"},
        "zero_grad": {"step"},
        "save": {"checkpointing"},
        "end of the epoch": set(),
    }


def test_section_timeouts_are_learned_kept_and_in_force_in_the_next_run(
    tmp_path: Path, rank_environment: Callable[..., Cell]
) -> None:
    rank_environment(**LIMITS, learned_limits="replace")
    saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=10, save_top_k=-1)
    learning = sections(tmp_path, calculate_timeouts=True)
    fit(tmp_path, learning, saves, max_steps=20)
    first = load_state(tmp_path / "ft_state.json")
    assert first is not None
    # No checkpoint was loaded, so neither setup nor the time out of section was learned.
    assert first["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "step"]
    assert not first["current_timeouts"]["section"]["is_out_of_section_calculated"]

    rank_environment(**LIMITS, learned_limits="replace")
    in_force: list[Any] = []

    class Look(ModelCheckpoint):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            in_force.append(trainer.callbacks[0]._translator.client.section_timeouts.section["step"])

    fit(tmp_path, learning, saves, Look(), ckpt_path=tmp_path / "step=10.ckpt", max_steps=40)

    assert in_force == [first["current_timeouts"]["section"]["section"]["step"]]
    second = load_state(tmp_path / "ft_state.json")
    assert second is not None
    assert second["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert second["current_timeouts"]["section"]["is_out_of_section_calculated"]


def test_heartbeat_timeouts_are_learned_at_the_end_of_the_second_job(
    tmp_path: Path, rank_environment: Callable[..., Cell]
) -> None:
    saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
    learning = FaultToleranceCallback(False, True, exp_dir=tmp_path)
    rank_environment()
    fit(tmp_path, learning, saves)
    assert load_state(tmp_path / "ft_state.json") is None

    rank_environment()
    fit(tmp_path, learning, saves, ckpt_path=tmp_path / "step=4.ckpt", max_steps=8)

    state = load_state(tmp_path / "ft_state.json")
    assert state is not None
    assert state["current_timeouts"]["heartbeat"]["were_calculated"]


@pytest.mark.parametrize("end", ["exception", "SIGTERM"])
def test_nothing_is_learned_after_an_exception_or_a_signal(
    tmp_path: Path, rank_environment: Callable[..., Cell], end: str
) -> None:
    rank_environment(**LIMITS)

    def act(module: Any, batch_idx: int) -> None:
        if module.global_step == 20:
            if end == "exception":
                raise RuntimeError("boom")
            os.kill(os.getpid(), signal.SIGTERM)

    saves = ModelCheckpoint(tmp_path, every_n_train_steps=1000, save_on_exception=True)
    with pytest.raises((RuntimeError, SystemExit)):
        fit(tmp_path, sections(tmp_path, calculate_timeouts=True), saves, act=act, max_steps=40)

    assert not (tmp_path / "ft_state.json").exists()


# ---- a word to the launcher -----------------------------------------------------------------------------


POLICIES = {
    "function": lambda error: WorkloadControlRequest(WorkloadAction.ShutdownWorkload, f"sorry: {error}"),
    "table": {ValueError: WorkloadAction.Continue, RuntimeError: WorkloadAction.ShutdownWorkload},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_exception_becomes_a_request(
    tmp_path: Path, rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    rank_environment(**LIMITS)
    path = tmp_path / "control"
    monkeypatch.setenv("FT_CONTROL_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as launcher:
        launcher.bind(str(path))
        launcher.settimeout(60)
        with pytest.raises(RuntimeError, match="boom"):
            fit(tmp_path, sections(tmp_path, exc_handling_policy=POLICIES[policy]), act=fail_at(1))
        rank, request = receive(launcher.recv(5000))

    assert (rank, request.action) == (0, WorkloadAction.ShutdownWorkload)
    assert "boom" in request.description


def test_a_policy_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a function of the exception"):
        sections(tmp_path, exc_handling_policy="restart")
    with pytest.raises(ConfigError, match="keys are exception types"):
        sections(tmp_path, exc_handling_policy={"RuntimeError": WorkloadAction.Continue})


# ---- training is complete -------------------------------------------------------------------------------


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(path))
    return path


def stop_early(module: Any, batch_idx: int) -> None:
    module.trainer.should_stop = batch_idx == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_steps": 3},
        {"max_steps": -1, "max_epochs": 1, "limit_train_batches": 3},
        {"max_steps": -1, "max_epochs": -1, "max_time": {"milliseconds": 50}},
        {"max_steps": 1000, "act": stop_early},
    ],
    ids=["max_steps", "max_epochs", "max_time", "stopped early"],
)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_loop_that_ends_by_itself_is_complete(
    tmp_path: Path, flag: Path, arguments: dict[str, Any], callback: str
) -> None:
    fit(tmp_path, globals()[callback](True, False, exp_dir=tmp_path), **arguments)

    assert flag.exists()


def test_a_resumed_run_with_nothing_left_to_do_is_complete(tmp_path: Path, flag: Path) -> None:
    saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2)
    fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), saves)
    flag.unlink()

    fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), ckpt_path=tmp_path / "step=4.ckpt")

    assert flag.exists()


def test_a_run_without_any_data_is_not_complete(tmp_path: Path, flag: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), limit_train_batches=0)

    assert not flag.exists()
    assert "ended without a single step" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), "SIGTERM"])
def test_a_run_that_is_interrupted_is_not_complete(tmp_path: Path, flag: Path, error: Any) -> None:
    def act(module: Any, batch_idx: int) -> None:
        if module.global_step == 1:
            if error == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                raise error

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((RuntimeError, SystemExit)):
            fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), act=act)
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning switches it off while it shuts down

    assert not flag.exists()


# ---- bad input: refused before training starts ----------------------------------------------------------


def refuse_to_train(module: Any, batch_idx: int) -> None:
    raise AssertionError("training has started")


def test_autoresume_without_its_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FAULT_TOL_FINISHED_FLAG_FILE is not set"):
        fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), act=refuse_to_train)


def test_autoresume_with_a_flag_that_nobody_can_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "no" / "flag"))
    with pytest.raises(ConfigError, match="a folder that does not exist"):
        fit(tmp_path, FaultToleranceCallback(True, False, exp_dir=tmp_path), act=refuse_to_train)


def test_an_exp_dir_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"exp_dir .*missing.* does not exist"):
        fit(tmp_path, sections(tmp_path / "missing"), act=refuse_to_train)


def test_an_exp_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a folder"):
        fit(tmp_path, sections(tmp_path / "file"), act=refuse_to_train)


@pytest.mark.parametrize("text", ["{", '{"model": 1}', "[]"])
def test_a_state_file_that_is_corrupt_or_foreign_is_named_and_left_alone(
    tmp_path: Path, rank_environment: Callable[..., Cell], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    rank_environment(**LIMITS)
    path = tmp_path / "ft_state.json"
    path.write_text(text)
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=10)

    fit(tmp_path, sections(tmp_path, calculate_timeouts=True), saves, max_steps=20)

    assert str(path) in caplog.text
    assert "Configured timeouts apply" in caplog.text
    assert path.read_text() == text


def test_configured_sections_that_do_not_match(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    rank_environment(rank_section_timeouts={"setup": 60.0, "steps": 60.0, "checkpointing": 60.0})
    with pytest.raises(SectionError, match="section 'step' is used but not in rank_section_timeouts; did you mean"):
        fit(tmp_path, sections(tmp_path), act=refuse_to_train)


@pytest.mark.parametrize(
    "params",
    [{"fault_type": "rank_hang", "base_delay": 1}, {"fault_type": "rank_hung"}, {"fault_type": "random", "delay": 1}],
)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_an_unknown_simulated_fault(params: dict[str, Any], callback: str) -> None:
    with pytest.raises(ConfigError, match="simulated"):
        globals()[callback](False, False, simulated_fault_params=params)


def test_environment_faults_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_SIMULATED_FAULTS", "hung:rank=0,step=1")
    with pytest.raises(ConfigError, match="simulated fault 'hung'"):
        fit(tmp_path, sections(tmp_path), act=refuse_to_train)


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_a_straggler_stops_training_after_the_state_was_saved_where_last_finds_it(
    tmp_path: Path, rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, has_checkpoints: bool
) -> None:
    rank_environment(**LIMITS)
    decisions = iter([{}, {"stop": "rank 0 on n: SLOW", "ranks": [0]}])
    monkeypatch.setattr(Detector, "last_decision", lambda self: next(decisions))
    saved = ModelCheckpoint(dirpath=tmp_path / "ckpt", every_n_train_steps=100)
    callbacks = [sections(tmp_path), StragglerDetectionCallback(stop_if_detected=True)]

    with pytest.raises(StopTraining) as stopped:
        fit(tmp_path, *callbacks, *([saved] if has_checkpoints else []), max_steps=9)

    if not has_checkpoints:
        assert str(stopped.value).endswith("nothing was saved: no save_checkpoint was given")
        return
    path = tmp_path / "ckpt" / "last-stopped-step=2.ckpt"
    assert str(stopped.value) == (
        f"stopped for a persistent straggler: rank 0 on n: SLOW; the state was saved as {path}"
    )
    begun: list[int] = []
    again = ModelCheckpoint(dirpath=tmp_path / "ckpt")
    fit(tmp_path, again, max_steps=4, ckpt_path="last", act=lambda module, index: begun.append(index))
    assert begun == [2, 3]


def test_scores_go_to_the_loggers_on_request(
    tmp_path: Path, rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_environment(**LIMITS)
    given: list[tuple[Any, Any]] = []
    monkeypatch.setattr("adapters.lightning.give_to_loggers", lambda trainer, report: given.append((trainer, report)))
    for is_asked in (False, True):
        straggler = StragglerDetectionCallback(report_time_interval=1e-9, enable_ptl_logging=is_asked)
        trainer = fit(tmp_path, straggler, max_steps=4)
        assert bool(given) == is_asked
    assert given[0][0] is trainer
    assert given[0][1].world_size == 1


def test_the_least_middle_and_largest_scores_are_logged_and_unknown_ones_are_not() -> None:
    from adapters._lightning_stragglers import give_to_loggers

    logged: list[tuple[dict[str, float], int]] = []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((metrics, step)))
    trainer = SimpleNamespace(loggers=[logger], global_step=7)
    report: Any = SimpleNamespace(
        gpu_relative_perf_scores={0: 0.5, 1: float("nan"), 2: 1.0},
        gpu_individual_perf_scores={0: float("nan")},
        section_relative_perf_scores={"forward": {0: 0.5, 1: 0.75, 2: 1.0}},
        section_individual_perf_scores={},
    )
    give_to_loggers(trainer, report)
    names = ("gpu_relative_perf", "section_relative_perf/forward")
    expected = {
        f"{name}/{which}": score
        for name in names
        for which, score in zip(("min", "med", "max"), (0.5, 0.75, 1), strict=False)
    }
    assert logged == [(expected, 7)]


@pytest.mark.parametrize(
    ("index", "value"), [(0, -1.0), (3, -1), (4, 1.5), (5, -0.1)], ids=["interval", "count", "relative", "individual"]
)
def test_straggler_settings_out_of_range(index: int, value: float) -> None:
    settings: list[Any] = [300.0, True, True, 0, 0.7, 0.7, False]
    settings[index] = value
    with pytest.raises(ValueError, match="is"):
        StragglerDetectionCallback(*settings)
    with pytest.raises(ValueError, match="nothing would be computed"):
        StragglerDetectionCallback(300.0, False, False, 0, 0.7, 0.7, False)


def test_the_default_folder_is_in_the_log_dir(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    rank_environment(**LIMITS)
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=10)

    trainer = fit(tmp_path, sections(tmp_path, exp_dir=None, calculate_timeouts=True), saves, max_steps=20)

    assert json.loads((Path(trainer.log_dir) / "ft_state" / "ft_state.json").read_text())["current_timeouts"]
