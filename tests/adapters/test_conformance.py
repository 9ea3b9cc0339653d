"""One scripted training through every adapter: the same events, and those that the documentation shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import scripted_loops

from resilience_core import StopTraining, bus, hookimpl
from resilience_core.testing import SCRIPTS, Event, EventRecorder, Script, Traits, check_adapter, expected_trace

README = Path(__file__).parents[2] / "docs" / "adapters.md"


def plain(trace: list[Event]) -> list[tuple[str, dict[str, Any]]]:
    """Without what no two runs share."""
    return [(name, {k: v for k, v in a.items() if k not in ("context", "error")}) for name, a in trace]


@pytest.fixture(scope="module")
def ddp_traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Event]]:
    """The raw loop's, which the others are compared with."""
    return check_adapter(scripted_loops.train_ddp, tmp_path_factory.mktemp("ddp"), scripted_loops.DDP_TRAITS)


EQUAL = ("from scratch", "resumed", "resumed with nothing left to do")
"""Here every framework does the same, save for Lightning's sanity check."""


def test_megatron(tmp_path: Path, ddp_traces: dict[str, list[Event]]) -> None:
    traces = check_adapter(scripted_loops.train_megatron, tmp_path, scripted_loops.MEGATRON_TRAITS)

    for name in EQUAL:
        assert plain(traces[name]) == plain(ddp_traces[name])


@pytest.mark.parametrize("package", [pytest.param("lightning.pytorch", marks=pytest.mark.long), "pytorch_lightning"])
def test_lightning_under_both_names(tmp_path: Path, package: str, ddp_traces: dict[str, list[Event]]) -> None:
    """Both callbacks at once: no event is fired twice."""
    import scripted_lightning

    from adapters.lightning import FaultToleranceCallback, FaultToleranceSectionsCallback

    def train(script: Script, folder: Path) -> None:
        callbacks = [
            FaultToleranceCallback(False, False, exp_dir=folder),
            FaultToleranceSectionsCallback(False, False, exp_dir=folder),
        ]
        scripted_lightning.train(script, folder, package, callbacks)

    traces = check_adapter(train, tmp_path, scripted_lightning.TRAITS)

    sanity = 2 * scripted_lightning.TRAITS.sanity_steps
    scratch = plain(traces["from scratch"])
    assert [scratch[0], *scratch[1 + sanity :]] == plain(ddp_traces["from scratch"])
    for name in EQUAL[1:]:
        assert plain(traces[name]) == plain(ddp_traces[name])


def test_huggingface(tmp_path: Path, ddp_traces: dict[str, list[Event]]) -> None:
    import scripted_huggingface

    from adapters.huggingface import FaultToleranceCallback

    def train(script: Script, folder: Path) -> None:
        callbacks = [
            FaultToleranceCallback(exp_dir=folder),
            FaultToleranceCallback(exp_dir=folder, api="heartbeats"),
        ]
        scripted_huggingface.train(script, folder, callbacks)

    # Resumed at max_steps, the Trainer of transformers 5 makes one step more before it looks.
    scripts = [script for script in SCRIPTS if script.first != script.updates]
    traces = check_adapter(train, tmp_path, scripted_huggingface.TRAITS, scripts=scripts)

    for name in EQUAL[:2]:
        assert plain(traces[name]) == plain(ddp_traces[name])


class Stopper:
    """Asks for the end of training in the second step."""

    @hookimpl
    def step_end(self, iteration: int) -> None:
        if iteration == 1:
            raise StopTraining("rank 3 is slow", exit_code=79)


def trainings() -> dict[str, Callable[[Script, Path], None]]:
    """Every adapter, imported where it is used: not every environment has every framework."""

    def lightning(script: Script, folder: Path) -> None:
        import scripted_lightning

        from adapters.lightning import FaultToleranceSectionsCallback

        callbacks = [FaultToleranceSectionsCallback(False, False, exp_dir=folder)]
        scripted_lightning.train(script, folder, "lightning.pytorch", callbacks)

    def huggingface(script: Script, folder: Path) -> None:
        import scripted_huggingface

        from adapters.huggingface import FaultToleranceCallback

        scripted_huggingface.train(script, folder, [FaultToleranceCallback(exp_dir=folder)])

    return {
        "ddp": scripted_loops.train_ddp,
        "megatron": scripted_loops.train_megatron,
        "lightning": lightning,
        "huggingface": huggingface,
    }


@pytest.mark.parametrize("framework", ["ddp", "megatron", "lightning", "huggingface"])
def test_stop_training_leaves_every_loop_as_an_exception_and_ends_it_as_stopped(
    framework: str, tmp_path: Path, recorder: EventRecorder
) -> None:
    stopper = Stopper()
    bus().register(stopper)
    try:
        with pytest.raises(StopTraining, match="rank 3 is slow"):
            trainings()[framework](SCRIPTS[0], tmp_path)
    finally:
        bus().unregister(stopper)

    assert recorder.names()[-3:] == ["step_end", "training_error", "teardown"]
    assert isinstance(recorder.of("training_error")[0]["error"], StopTraining)
    assert recorder.of("teardown") == [{"reason": "stopped"}]


def test_an_adapter_that_leaves_out_an_event_is_found(tmp_path: Path) -> None:
    def train(script: Script, folder: Path) -> None:
        scripted_loops.train_ddp(attrs.evolve(script, eval_steps=script.eval_steps - 1), folder)

    with pytest.raises(AssertionError, match="script 'from scratch': the events are not the expected ones"):
        check_adapter(train, tmp_path, scripted_loops.DDP_TRAITS)


def test_an_adapter_that_swallows_the_exception_is_found(tmp_path: Path) -> None:
    def train(script: Script, folder: Path) -> None:
        scripted_loops.train_ddp(attrs.evolve(script, ends="completed"), folder)

    with pytest.raises(AssertionError, match="should have ended by exception, and ended by completed"):
        check_adapter(train, tmp_path, scripted_loops.DDP_TRAITS, scripts=[s for s in SCRIPTS if s.ends == "exception"])


def test_accumulated_batches_are_steps_where_the_framework_says_so() -> None:
    script = next(s for s in SCRIPTS if s.accumulation > 1)

    batches, updates = (
        [name for name, _ in expected_trace(script, Traits(steps_are=unit))] for unit in ("batches", "updates")
    )

    assert batches.count("step_start") == script.updates * script.accumulation
    assert updates.count("step_start") == script.updates
    assert batches.count("checkpoint_start") == updates.count("checkpoint_start") == 1


def test_the_documented_trace_is_the_real_one(ddp_traces: dict[str, list[Event]]) -> None:
    documented = README.read_text(encoding="utf-8").partition("```text trace\n")[2].partition("```")[0]

    assert documented.splitlines() == [
        " ".join([name, *(f"{key}={value}" for key, value in arguments.items())])
        for name, arguments in plain(ddp_traces["from scratch"])
    ]
