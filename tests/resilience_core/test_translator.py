"""Translator: the contract of the events, kept whatever order an adapter calls it in."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import EventBus, RankMonitorClient, RunContext, SectionMonitor, StopTraining, hookimpl
from resilience_core.errors import ConfigError, PluginError, SectionError
from resilience_core.faults import FaultInjector, fault_from_params
from resilience_core.testing import EventRecorder, assert_conforms, violations
from resilience_core.translator import Translator, state_path_in

CONTEXT = RunContext(framework="test")


@pytest.fixture
def recorder() -> EventRecorder:
    return EventRecorder()


@pytest.fixture
def translator(recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Translator]:
    monkeypatch.delenv("FT_SIMULATED_FAULTS", raising=False)
    bus = EventBus()
    bus.register(recorder)
    translator = Translator("test", bus)
    yield translator
    translator.end()


CALLS: dict[str, Any] = {
    "begin": lambda t: t.begin(CONTEXT),
    "loaded": lambda t: t.loaded(7),
    "step_start": lambda t: t.step_start(t.completed_steps),
    "step_end": lambda t: t.step_end(),
    "evaluation_start": lambda t: t.evaluation_start(),
    "eval_step_start": lambda t: t.eval_step_start(),
    "eval_step_end": lambda t: t.eval_step_end(),
    "end_open_steps": lambda t: t.end_open_steps(),
    "failed": lambda t: t.failed(ValueError()),
    "stopped": lambda t: t.stopped("signal"),
    "end": lambda t: t.end(),
    "save": lambda t: (t.checkpoint_start(), t.checkpoint_end()),
    "finalize": lambda t: (t.checkpoint_start(), t.checkpoint_end("finalize")),
    "nested": lambda t: (t.checkpoint_start(), t.checkpoint_start("remove"), t.checkpoint_end(), t.checkpoint_end()),
    "checkpoint_end": lambda t: t.checkpoint_end(),
}


@given(st.lists(st.sampled_from(sorted(CALLS)), max_size=30))
def test_any_order_of_calls_keeps_the_contract(names: list[str]) -> None:
    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    translator = Translator("test", bus)
    for name in names:
        CALLS[name](translator)
    translator.end()

    # The one liberty a caller has: a step may be open while an exception leaves it.
    assert violations(recorder.events) == []
    assert bus.plugins() == [recorder]


def test_a_save_that_raises_says_what(translator: Translator, recorder: EventRecorder) -> None:
    translator.begin(CONTEXT)
    error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"), translator.saving():
        raise error
    assert recorder.of("checkpoint_end") == [{"iteration": 0, "kind": "save", "error": error}]


class Trainer:
    def save(self, path: str) -> str:
        """Write."""
        return f"saved {path}"


def test_what_is_wrapped_is_wrapped_once_for_this_object_and_undone(
    translator: Translator, recorder: EventRecorder
) -> None:
    trainer, other = Trainer(), Trainer()
    translator.wrap_saving(trainer, "save")
    translator.wrap_saving(trainer, "save")  # one inside the other: one save
    translator.wrap_saving(trainer, "no_such_method")
    translator.begin(CONTEXT)
    assert trainer.save("a") == "saved a"
    assert trainer.save.__doc__ == "Write."
    assert other.save("b") == "saved b"
    translator.end()

    assert vars(trainer) == vars(other) == {}
    assert recorder.names() == ["setup", "checkpoint_start", "checkpoint_end", "teardown"]


def test_somebody_elses_wrapper_around_ours_stays(translator: Translator, recorder: EventRecorder) -> None:
    trainer = Trainer()
    translator.begin(CONTEXT)
    translator.wrap_saving(trainer, "save")
    ours = trainer.save
    trainer.save = lambda path: ours(path) + "!"  # type: ignore[method-assign]
    translator.end()

    assert trainer.save("a") == "saved a!"
    assert recorder.names() == ["setup", "teardown"]


def test_a_second_monitor_of_a_kind_is_refused_before_anything_is_fired(
    translator: Translator, recorder: EventRecorder
) -> None:
    with pytest.raises(PluginError, match="a SectionMonitor already"):
        translator.begin(CONTEXT, [SectionMonitor(), SectionMonitor()])
    assert recorder.events == []
    assert translator.bus.plugins() == [recorder]


def test_a_run_that_failed_and_was_never_ended_makes_way(translator: Translator, recorder: EventRecorder) -> None:
    translator.begin(CONTEXT, [SectionMonitor()])
    translator.failed(ValueError())
    successor = Translator("test", translator.bus)
    successor.begin(CONTEXT, [SectionMonitor()])
    successor.end()

    assert_conforms(recorder, ["setup", "training_error", "teardown", "setup", "teardown"])


def test_a_run_that_goes_on_does_not_make_way(translator: Translator) -> None:
    translator.begin(CONTEXT, [SectionMonitor()])
    with pytest.raises(PluginError):
        Translator("test", translator.bus).begin(CONTEXT, [SectionMonitor()])


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError(), "exception"), (KeyboardInterrupt(), "signal"), (StopTraining("enough"), "stopped")],
)
def test_the_reason_follows_from_the_error(
    translator: Translator, recorder: EventRecorder, error: BaseException, reason: str
) -> None:
    translator.begin(CONTEXT)
    translator.failed(error)
    translator.failed(RuntimeError("a second one"))
    translator.end()
    assert recorder.of("training_error") == [{"error": error, "iteration": 0}]
    assert recorder.of("teardown") == [{"reason": reason}]


def test_one_translator_for_a_trainer() -> None:
    trainer, other = Trainer(), Trainer()
    assert Translator.of(trainer, "test") is Translator.of(trainer, "test")
    assert Translator.of(trainer, "test") is not Translator.of(other, "test")


def test_state_path(tmp_path: Any) -> None:
    assert state_path_in(None, "default") == "default/ft_state.json"
    assert state_path_in(tmp_path, "default") == str(tmp_path / "ft_state.json")
    with pytest.raises(ConfigError, match=r"exp_dir is 3 \(int\); it must be a path, or None"):
        state_path_in(3, "default")  # type: ignore[arg-type]


def test_a_save_of_an_earlier_run_that_ends_late_ends_no_save_of_this_one() -> None:
    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    translator = Translator("test", bus)
    with ThreadPoolExecutor(1) as writer:
        translator.begin(CONTEXT)
        writer.submit(translator.checkpoint_start).result()
        translator.begin(CONTEXT)
        translator.checkpoint_start()
        recorder.clear()
        writer.submit(translator.checkpoint_end).result()
        assert recorder.names() == []
    translator.checkpoint_end()
    assert recorder.names() == ["checkpoint_end"]


def test_the_translator_takes_a_client() -> None:
    bus = EventBus()
    client = RankMonitorClient()

    assert Translator("test", bus, client=client).client is client


@pytest.mark.parametrize("where", ["step", "eval_step", "checkpoint"])
def test_an_exception_is_noted_where_it_leaves_a_block(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    bus = EventBus()
    order: list[object] = []
    for module in ("translator", "_translated_saves"):
        monkeypatch.setattr(f"resilience_core.{module}.note_error", order.append)

    class Listener:
        @hookimpl
        def step_end(self) -> None:
            order.append("step")

        @hookimpl
        def eval_step_end(self) -> None:
            order.append("eval_step")

        @hookimpl
        def checkpoint_end(self) -> None:
            order.append("checkpoint")

    translator, error = Translator("test", bus), ValueError("in the block")
    translator.begin(CONTEXT, [Listener()])
    if where == "step":
        translator.step_start(3)
        translator.step_end(error)
    elif where == "eval_step":
        translator.eval_step_start()
        translator.eval_step_end(error)
    else:
        translator.checkpoint_start()
        translator.checkpoint_end(error=error)

    assert order == [error, where]
    assert translator.completed_steps == (3 if where == "step" else 0)
    translator.end()


def test_faults_that_are_added_to_a_run_are_disarmed_by_its_end() -> None:
    bus = EventBus()
    translator = Translator("test", bus)
    fault = fault_from_params({"fault_type": "rank_hung", "base_delay": 600.0, "rand_delay": 0.0, "rank_to_fail": 0})
    translator.simulate([fault])
    assert bus.plugins() == []
    translator.begin(CONTEXT)

    translator.simulate([fault])

    (injector,) = bus.plugins()
    assert isinstance(injector, FaultInjector)
    translator.end()
    assert bus.plugins() == []
    assert injector._stop.is_set()


STARTS: dict[str, Any] = {
    "step": lambda t: t.step_start(3),
    "eval_step": lambda t: t.eval_step_start(3, 0),
    "checkpoint": lambda t: t.checkpoint_start(),
}


@pytest.mark.parametrize("exits", [StopTraining, KeyboardInterrupt, SectionError])
@pytest.mark.parametrize("span", list(STARTS))
def test_a_start_that_raises_to_the_training_is_ended(
    translator: Translator, recorder: EventRecorder, span: str, exits: type[BaseException]
) -> None:
    """Else its section stays open, and a rank that catches the exception and saves is killed as hung."""

    class Raises:
        pass

    def raises(self: object) -> None:
        raise exits("enough")

    setattr(Raises, f"{span}_start", hookimpl(raises))
    translator.begin(CONTEXT, [Raises()])
    with pytest.raises(exits, match="enough"):
        STARTS[span](translator)

    assert recorder.names() == ["setup", f"{span}_start", f"{span}_end"]
    assert span != "checkpoint" or isinstance(recorder.of("checkpoint_end")[0]["error"], exits)


def test_a_step_that_a_start_has_kept_from_beginning_does_not_count(translator: Translator) -> None:
    class Raises:
        @hookimpl
        def step_start(self) -> None:
            raise StopTraining("enough")

    translator.begin(CONTEXT, [Raises()])
    with pytest.raises(StopTraining):
        translator.step_start(3)
    assert translator.completed_steps == 3


@pytest.mark.parametrize("span", ["step", "eval_step"])
def test_a_save_while_an_exception_is_handled_that_has_left_a_step_is_not_within_the_step(
    translator: Translator, recorder: EventRecorder, span: str
) -> None:
    """Lightning calls its callbacks one after the other, and the first may save before ours hears of the exception."""
    translator.begin(CONTEXT)
    try:
        STARTS[span](translator)
        raise ValueError("loss is nan")
    except ValueError as error:
        with translator.saving():
            pass
        translator.failed(error)

    names = ["setup", f"{span}_start", f"{span}_end", "checkpoint_start", "checkpoint_end", "training_error"]
    assert recorder.names() == names


def test_a_save_within_a_step_leaves_it_open_where_no_exception_has_left_it(
    translator: Translator, recorder: EventRecorder
) -> None:
    """A training may be tried again inside the handler of the exception that ended it the first time."""
    translator.begin(CONTEXT)
    try:
        raise ValueError("out of memory")
    except ValueError:
        translator.step_start(0)
        with translator.saving():
            pass
        translator.step_end()

    assert recorder.names() == ["setup", "step_start", "checkpoint_start", "checkpoint_end", "step_end"]
    assert translator.completed_steps == 1


def test_an_adapter_that_hears_every_end_keeps_its_step_open(translator: Translator, recorder: EventRecorder) -> None:
    translator.begin(CONTEXT)
    translator.step_start(0)
    try:
        raise ValueError("one batch")
    except ValueError:
        translator.checkpoint_start(may_have_left_a_step=False)
        translator.checkpoint_end()
    translator.step_end()

    assert recorder.names() == ["setup", "step_start", "checkpoint_start", "checkpoint_end", "step_end"]
