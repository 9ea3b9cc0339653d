"""The contract: events, their arguments and their documentation."""

from __future__ import annotations

import inspect
import typing

import attrs
import pytest

from resilience_core import RunContext
from resilience_core.event_bus import EVENTS
from resilience_core.hookspecs import TrainingEvents

CONTRACT = {
    "setup": ["context"],
    "step_start": ["iteration"],
    "step_end": ["iteration"],
    "eval_step_start": ["iteration", "eval_index"],
    "eval_step_end": ["iteration", "eval_index"],
    "checkpoint_start": ["iteration", "kind"],
    "checkpoint_end": ["iteration", "kind", "error"],
    "checkpoint_loaded": ["iteration", "source"],
    "training_error": ["error", "iteration"],
    "teardown": ["reason"],
}


def test_events_and_arguments_are_those_that_plugins_were_written_for():
    """Adding an argument is safe; renaming one breaks every plugin: this test is the alarm."""
    arguments = {name: list(inspect.signature(getattr(TrainingEvents, name)).parameters)[1:] for name in EVENTS}
    assert arguments == CONTRACT


@pytest.mark.parametrize("event", EVENTS)
def test_every_argument_is_explained_and_no_other(event: str):
    """The documented arguments do not drift from the real ones."""
    spec = getattr(TrainingEvents, event)
    documentation = inspect.getdoc(spec) or ""
    _, _, arguments = documentation.partition("Args:\n")
    documented = [
        line.strip().partition(":")[0]
        for line in arguments.splitlines()
        if line.startswith("    ") and not line.startswith("     ")
    ]
    assert documented == CONTRACT[event]
    assert documentation.splitlines()[0].endswith(".")


@pytest.mark.parametrize("event", EVENTS)
def test_every_argument_has_a_type(event: str):
    hints = typing.get_type_hints(getattr(TrainingEvents, event))
    assert list(hints) == [*CONTRACT[event], "return"]
    assert hints["return"] is type(None)


@pytest.mark.parametrize("event", EVENTS)
def test_the_loop_that_is_drawn_shows_every_event(event: str):
    assert event in (TrainingEvents.__doc__ or "")


def test_a_context_documents_every_field():
    for field in attrs.fields(RunContext):
        assert f"{field.name}: " in (RunContext.__doc__ or "")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "FT_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("clean_environment")
def test_a_process_alone_is_rank_zero_of_one():
    assert RunContext.from_environment() == RunContext(rank=0, local_rank=0, world_size=1, restart_count=0)


def test_a_context_is_read_from_the_environment(clean_environment: pytest.MonkeyPatch):
    values = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2"}
    for name, value in values.items():
        clean_environment.setenv(name, value)
    assert RunContext.from_environment(framework="ddp") == RunContext(
        rank=5, local_rank=1, world_size=8, restart_count=2, framework="ddp"
    )
    # torch counts per agent, and the counts of two nodes may differ; ours is agreed.
    clean_environment.setenv("FT_RESTART_COUNT", "3")
    assert RunContext.from_environment().restart_count == 3
    assert RunContext.from_environment(rank=0, restart_count=9).restart_count == 9


def test_a_variable_that_is_no_number_is_as_none(clean_environment: pytest.MonkeyPatch):
    clean_environment.setenv("RANK", "first")
    assert RunContext.from_environment().rank == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank": "x"}, "rank is 'x' (str); it must be a whole number"),
        ({"world_size": 1.5}, "world_size is 1.5 (float); it must be a whole number"),
        ({"asynchronous_saves": "no"}, "'asynchronous_saves' must be <class 'bool'>"),
    ],
)
def test_a_context_of_wrong_types_is_refused(wrong: dict[str, typing.Any], said: str) -> None:
    with pytest.raises(TypeError) as raised:
        RunContext(**wrong)
    assert said in str(raised.value)
