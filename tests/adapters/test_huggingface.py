"""The Trainer of transformers: what is covered and undone, completion, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resilience_core import ConfigError, SectionError
from resilience_core.errors import PluginError
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell import Cell
from resilience_core.testing import EventRecorder, assert_conforms

if TYPE_CHECKING:
    from scripted_huggingface import make_trainer

    from adapters.huggingface import FaultToleranceCallback, protect

LIMITS = {"rank_section_timeouts": {"setup": 60.0, "step": 60.0, "checkpointing": 60.0}}
WRAPPED = {"_save_checkpoint", "save_model", "evaluation_loop", "prediction_step"}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import transformers when its first test runs: it takes seconds in each of the processes that collect tests."""
    global FaultToleranceCallback, make_trainer, protect
    from scripted_huggingface import make_trainer

    from adapters.huggingface import FaultToleranceCallback, protect


def boom() -> None:
    raise RuntimeError("boom")


def refuse_to_train() -> None:
    raise AssertionError("training has started")


def test_everything_is_undone_and_a_second_train_is_a_second_run(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    protect(trainer, exp_dir=tmp_path)
    trainer.train()
    assert not WRAPPED & vars(trainer).keys()

    trainer.train()
    trainer.evaluate()
    trainer.save_model()

    assert_conforms(recorder)
    assert recorder.names() == ["setup", *["step_start", "step_end"] * 2, "teardown"] * 2


def test_an_exception_undoes_everything(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(tmp_path, boom, max_steps=2)
    protect(trainer, exp_dir=tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        trainer.train()

    assert not WRAPPED & vars(trainer).keys()
    assert recorder.names()[-2:] == ["training_error", "teardown"]
    assert recorder.of("teardown") == [{"reason": "exception"}]


def test_sections_are_open_where_they_should_be(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    cell = rank_environment(**LIMITS)
    seen: dict[str, set[str]] = {}

    trainer = make_trainer(
        tmp_path, max_steps=4, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=4, save_strategy="steps"
    )

    def look_in(method: str) -> None:
        original = getattr(trainer, method)

        def looking(*arguments: Any, **named: Any) -> Any:
            if method != "training_step" or trainer.state.global_step:  # the first step is warm-up
                seen.setdefault(method, set()).update(section.name for section in cell.view().sections)
            return original(*arguments, **named)

        setattr(trainer, method, looking)

    for method in ("create_optimizer", "training_step", "_save"):
        look_in(method)
    protect(trainer, exp_dir=tmp_path)
    trainer.train()

    assert seen == {"create_optimizer": {"setup"}, "training_step": {"step"}, "_save": {"checkpointing"}}


def test_an_evaluation_that_fails_and_is_caught_is_over(
    tmp_path: Path, rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the memory is used up: its section stayed open, and what came after it was condemned."""
    cell = rank_environment(**LIMITS, num_warmup_iterations=0)
    trainer = make_trainer(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1)
    evaluate, seen = trainer.evaluate, []

    def out_of_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    def evaluate_if_possible(*arguments: Any, **named: Any) -> Any:
        try:
            return evaluate(*arguments, **named)
        except MemoryError:
            seen.append({section.name for section in cell.view().sections})
            return {}

    monkeypatch.setattr(trainer, "prediction_step", out_of_memory)
    monkeypatch.setattr(trainer, "evaluate", evaluate_if_possible)
    protect(trainer, exp_dir=tmp_path)
    trainer.train()
    assert seen
    assert not any(seen)


def test_timeouts_are_learned_and_kept(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    for first, last in ((0, 20), (20, 40)):
        rank_environment(**LIMITS)
        trainer = make_trainer(tmp_path, max_steps=last, save_strategy="steps", save_steps=10)
        protect(trainer, exp_dir=tmp_path, calculate_timeouts=True)
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{first}") if first else None)

    state = load_state(tmp_path / "ft_state.json")
    assert state is not None
    assert state["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]


def test_training_is_complete_when_the_loop_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    failing = make_trainer(tmp_path, boom, max_steps=2)
    protect(failing, exp_dir=tmp_path, autoresume=True)
    with pytest.raises(RuntimeError, match="boom"):
        failing.train()
    assert not flag.exists()

    trainer = make_trainer(tmp_path, max_steps=2)
    protect(trainer, exp_dir=tmp_path, autoresume=True)
    trainer.train()
    assert flag.exists()


def test_a_callback_that_is_not_attached_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, refuse_to_train, max_steps=2)
    trainer.add_callback(FaultToleranceCallback())
    with pytest.raises(PluginError, match=r"call callback\.attach\(trainer\)"):
        trainer.train()


def test_a_callback_that_was_removed_leaves_training_alone(tmp_path: Path, recorder: EventRecorder) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.remove_callback(protect(trainer, exp_dir=tmp_path))
    trainer.train()
    assert recorder.events == []


def test_bad_input_is_refused_before_training_starts(tmp_path: Path, rank_environment: Callable[..., Cell]) -> None:
    for options, words in (
        ({"exp_dir": tmp_path / "missing"}, "missing.* does not exist"),
        ({"exp_dir": tmp_path, "autoresume": True}, "FAULT_TOL_FINISHED_FLAG_FILE is not set"),
    ):
        trainer = make_trainer(tmp_path, refuse_to_train, max_steps=2)
        protect(trainer, **options)
        with pytest.raises(ConfigError, match=words):
            trainer.train()
        assert not WRAPPED & vars(trainer).keys()
    for options, words in (
        ({"api": "section"}, "it must be sections or heartbeats"),
        ({"simulated_fault_params": {"fault_type": "rank_hang", "base_delay": 1}}, "rank_hang"),
        ({"exc_handling_policy": 3}, "give a function"),
    ):
        with pytest.raises(ConfigError, match=words):
            FaultToleranceCallback(**options)
    rank_environment(rank_section_timeouts={"steps": 1.0})
    trainer = make_trainer(tmp_path, refuse_to_train, max_steps=2)
    protect(trainer, exp_dir=tmp_path)
    with pytest.raises(SectionError, match="used but not in rank_section_timeouts"):
        trainer.train()
    assert not WRAPPED & vars(trainer).keys()


@pytest.mark.parametrize("other", [None, "x"])
def test_what_is_no_trainer_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match=r"it must be a transformers\.Trainer"):
        protect(other)
