"""SectionMonitor: events in, sections out, through the real bus and the real client."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from resilience_core import EventBus, RankMonitorClient, RunContext, SectionError, SectionMonitor
from resilience_core.errors import UnconfiguredSectionError
from resilience_core.plugins.save_section import SaveSection
from resilience_core.protocol.cell_layout import SAVED
from tests.threads import in_a_thread, writer

Start = Callable[..., EventBus]


@pytest.fixture
def start(rank_environment: Callable[..., Any], recording_client: Any) -> Start:
    """A bus on which a monitored run has been set up."""

    def make(context: RunContext | None = None, **settings: Any) -> EventBus:
        rank_environment(**settings)
        bus = EventBus()
        bus.register(SectionMonitor(recording_client))
        bus.setup(context=context or RunContext())
        return bus

    return make


def steps(bus: EventBus, *iterations: int) -> None:
    for iteration in iterations:
        bus.step_start(iteration=iteration)
        bus.step_end(iteration=iteration)


def evaluate(bus: EventBus, count: int, iteration: int = 0) -> None:
    for index in range(count):
        bus.eval_step_start(iteration=iteration, eval_index=index)
        bus.eval_step_end(iteration=iteration, eval_index=index)


def save(bus: EventBus, kind: Any = "save", error: BaseException | None = None) -> None:
    bus.checkpoint_start(iteration=0, kind=kind)
    bus.checkpoint_end(iteration=0, kind=kind, error=error)


def test_a_run_from_setup_to_teardown(start: Start, recording_client: Any):
    """The whole of it: setup ends at the first step, one step of warm-up, a save, an evaluation."""
    bus = start()
    bus.checkpoint_loaded(iteration=10, source="persistent")
    steps(bus, 10, 11, 12)
    save(bus)
    evaluate(bus, 2)
    bus.teardown(reason="completed")
    assert recording_client.calls == [
        *("+setup", "-setup"),
        *("+step", "-step", "+step", "-step"),  # 10 was warm-up, although the run was resumed
        *("+checkpointing", "-checkpointing"),
        *("+step", "-step"),  # evaluation 0 was warm-up
    ]
    assert not recording_client.is_initialized


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_the_first_steps_of_a_process_open_no_section(start: Start, recording_client: Any, warmup: int):
    bus = start(num_warmup_iterations=warmup)
    steps(bus, *range(5))
    assert recording_client.calls.count("+step") == 5 - warmup


def test_a_second_run_in_the_same_process_has_no_warmup_of_training(start: Start, recording_client: Any):
    bus = start()
    steps(bus, 0, 1)
    bus.teardown(reason="completed")
    bus.setup(context=RunContext())
    recording_client.calls.clear()
    steps(bus, 2)
    assert recording_client.calls == ["-setup", "+step", "-step"]


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_each_evaluation_has_its_own_warmup(start: Start, recording_client: Any, warmup: int):
    bus = start(num_warmup_iterations=warmup)
    for round_ in range(2):
        steps(bus, *range(round_ * 4, round_ * 4 + 4))
        recording_client.calls.clear()
        evaluate(bus, 4)
        assert recording_client.calls.count("+step") == 4 - warmup


def test_two_evaluations_without_a_step_between_each_have_their_warmup(start: Start, recording_client: Any):
    bus = start()
    evaluate(bus, 3)
    evaluate(bus, 3)
    assert recording_client.calls.count("+step") == 4


def test_an_evaluation_that_does_not_count_is_protected_all_the_same(start: Start, recording_client: Any):
    """An adapter that always says eval_index=0 must not be in warm-up for ever."""
    bus = start()
    for _ in range(4):
        bus.eval_step_start(iteration=0, eval_index=0)
        bus.eval_step_end(iteration=0, eval_index=0)
    assert recording_client.calls.count("+step") == 3


def test_setup_ends_at_the_first_evaluation_too(start: Start, recording_client: Any):
    bus = start()
    bus.eval_step_start(iteration=0, eval_index=0)
    assert recording_client.open_sections == set()


def test_a_save_may_overlap_with_setup(start: Start, recording_client: Any):
    bus = start()
    bus.checkpoint_start(iteration=0, kind="save")
    assert recording_client.open_sections == {"setup", "checkpointing"}
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    assert recording_client.open_sections == {"setup"}


@pytest.mark.parametrize("kind", ["save", "finalize", "remove"])
def test_every_kind_of_saving_is_checkpointing(start: Start, recording_client: Any, kind: str):
    bus = start()
    save(bus, kind)
    assert recording_client.calls == ["+setup", "+checkpointing", "-checkpointing"]


def test_nested_saves_are_one_section(start: Start, recording_client: Any):
    bus = start()
    bus.checkpoint_start(iteration=0, kind="save")
    save(bus, "remove")
    assert "checkpointing" in recording_client.open_sections
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    assert recording_client.calls == ["+setup", "+checkpointing", "-checkpointing"]


def test_an_end_without_a_start_is_nothing(start: Start, recording_client: Any):
    bus = start()
    steps(bus, 0)
    recording_client.calls.clear()
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    bus.step_end(iteration=0)
    bus.eval_step_end(iteration=0, eval_index=0)
    assert recording_client.calls == []


def test_a_skipped_end_does_not_stop_training(start: Start, recording_client: Any):
    """A framework whose batch is skipped may leave out its end: the next start closes and opens."""
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    bus.step_start(iteration=1)
    assert recording_client.calls == ["+setup", "-setup", "+step", "-step", "+step"]
    bus.eval_step_end(iteration=1, eval_index=0)
    bus.step_end(iteration=1)
    assert recording_client.open_sections == set()


def test_a_save_inside_a_step_counts_for_its_own_limit_alone(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    save(bus)
    assert recording_client.open_sections == {"step"}
    bus.step_end(iteration=0)
    steps(bus, 1)
    as_it_saves = ("-step", "+checkpointing", "-checkpointing", "+step")
    assert recording_client.calls == ["+setup", "-setup", "+step", *as_it_saves, "-step", "+step", "-step"]


def test_each_step_of_an_evaluation_inside_a_step_has_the_limit_to_itself(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=1)
    steps(bus, 0)
    bus.step_start(iteration=1)
    recording_client.calls.clear()
    evaluate(bus, 3)
    assert recording_client.open_sections == {"step"}
    bus.step_end(iteration=1)
    evaluation = ("+step", "-step")
    assert recording_client.calls == ["-step", *("+step", "-step", *evaluation) * 2, "+step", "-step"]


def test_a_save_inside_a_step_of_an_evaluation_inside_a_step(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    for index, is_ended_first in ((0, "save"), (1, "evaluation")):
        bus.eval_step_start(iteration=0, eval_index=index)
        bus.checkpoint_start(iteration=0, kind="save")
        assert recording_client.open_sections == {"checkpointing"}
        if is_ended_first == "evaluation":
            bus.eval_step_end(iteration=0, eval_index=index)
            assert recording_client.open_sections == {"checkpointing"}
        bus.checkpoint_end(iteration=0, kind="save", error=None)
        assert recording_client.open_sections == {"step"}
        bus.eval_step_end(iteration=0, eval_index=index)
        assert recording_client.open_sections == {"step"}
    bus.step_end(iteration=0)
    assert recording_client.open_sections == set()


def test_a_step_whose_end_comes_during_its_save_is_not_opened_anew(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    bus.checkpoint_start(iteration=0, kind="save")
    bus.step_end(iteration=0)
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    assert recording_client.open_sections == set()
    steps(bus, 1)
    assert recording_client.open_sections == set()


def test_a_step_goes_on_beside_a_save_in_another_thread(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    in_a_thread(lambda: bus.checkpoint_start(iteration=0, kind="save"))
    assert recording_client.open_sections == {"step", "checkpointing"}
    bus.eval_step_start(iteration=0, eval_index=0)
    bus.eval_step_end(iteration=0, eval_index=0)
    assert recording_client.open_sections == {"step", "checkpointing"}
    in_a_thread(lambda: bus.checkpoint_end(iteration=0, kind="save", error=None))
    assert recording_client.open_sections == {"step"}
    bus.step_end(iteration=0)
    assert recording_client.open_sections == set()


def test_a_save_may_be_ended_by_another_thread(start: Start, recording_client: Any) -> None:
    bus = start()
    bus.checkpoint_start(iteration=0, kind="save")
    in_a_thread(lambda: bus.checkpoint_end(iteration=0, kind="save", error=None))
    assert recording_client.open_sections == {"setup"}
    bus.checkpoint_start(iteration=0, kind="save")
    steps(bus, 0)  # in the background it goes on, but that cannot be known
    assert recording_client.open_sections == set()
    in_a_thread(lambda: bus.checkpoint_end(iteration=7, kind="save", error=None))
    assert recording_client.open_sections == set()
    assert recording_client._state.words[SAVED] == 7


def test_saves_that_follow_each_other_in_the_background_have_a_limit_each(start: Start, recording_client: Any) -> None:
    bus = start()
    steps(bus, 0)
    recording_client.calls.clear()
    first, second = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def save(thread: ThreadPoolExecutor, event: Any, **more: Any) -> None:
        thread.submit(lambda: event(iteration=0, kind="save", **more)).result()

    with first, second:
        save(first, bus.checkpoint_start)
        for one, other in ((first, second), (second, first)):
            save(other, bus.checkpoint_start)
            save(one, bus.checkpoint_end, error=None)
        assert recording_client.calls == ["+checkpointing", *("-checkpointing", "+checkpointing") * 2]
        save(first, bus.checkpoint_start)  # the younger one, which is inside of nothing
        save(first, bus.checkpoint_end, error=None)
        save(first, bus.checkpoint_end, error=None)
    assert recording_client.open_sections == set()


def test_a_save_that_begins_while_the_last_one_ends_is_closed_in_its_turn(
    start: Start, recording_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The section stayed open for good, and a healthy rank was killed by its limit."""
    bus, really_end = start(), recording_client.end_section

    def end(name: str) -> None:
        really_end(name)
        if name == "checkpointing":
            monkeypatch.undo()
            in_a_thread(lambda: bus.checkpoint_start(iteration=2, kind="save"))

    monkeypatch.setattr(recording_client, "end_section", end)
    save(bus)
    assert "checkpointing" in recording_client.open_sections
    bus.checkpoint_end(iteration=2, kind="save", error=None)
    assert "checkpointing" not in recording_client.open_sections


def test_a_thread_that_was_about_to_close_the_section_before_does_not_disown_the_next_one(
    start: Start, recording_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    section, really_start = SaveSection(), recording_client.start_section

    def start_section(name: str) -> None:
        section._is_ours = False  # by the other thread, which finds the section closed then
        really_start(name)

    monkeypatch.setattr(recording_client, "start_section", start_section)
    section.saves.begin()
    section.update(recording_client)
    assert "checkpointing" in recording_client.open_sections
    section.saves.abandon()
    section.update(recording_client)
    assert "checkpointing" not in recording_client.open_sections


def test_a_later_save_has_a_limit_of_its_own_after_one_whose_end_was_not_heard(
    start: Start, recording_client: Any
) -> None:
    bus = start()
    steps(bus, 0, 1)
    bus.checkpoint_start(iteration=1, kind="save")
    with writer(lambda: saving(bus)):
        recording_client.calls.clear()
        bus.step_start(iteration=2)
        assert recording_client.calls == ["-checkpointing", "+checkpointing", "+step"]


@contextlib.contextmanager
def saving(bus: EventBus) -> Iterator[None]:
    bus.checkpoint_start(iteration=2, kind="save")
    yield
    bus.checkpoint_end(iteration=2, kind="save", error=None)


class Stop(BaseException):
    """What a handler of a signal raises."""


def test_what_a_signal_handler_raises_at_the_end_of_a_save_leaves_nothing_open(
    start: Start, recording_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emergency save that followed counted as part of it, and kept the deadline of which the wait had used half."""
    bus = start()
    steps(bus, 0, 1)
    (monitor,) = bus.plugins()

    def waits(*_: Any) -> bool:
        raise Stop

    monkeypatch.setattr(monitor._session.learner, "all_will_after_save", waits)  # type: ignore[attr-defined]
    bus.step_start(iteration=2)
    bus.checkpoint_start(iteration=2, kind="save")
    with pytest.raises(Stop):
        bus.checkpoint_end(iteration=2, kind="save", error=None)
    assert list(recording_client.open_sections) == ["step"]
    monkeypatch.undo()
    recording_client.calls.clear()
    save(bus)
    bus.step_end(iteration=2)
    assert recording_client.calls == ["-step", "+checkpointing", "-checkpointing", "+step", "-step"]


def test_a_section_that_training_code_has_opened_is_its_own(start: Start, recording_client: Any) -> None:
    bus = start(num_warmup_iterations=0)
    bus.step_start(iteration=0)
    bus.checkpoint_start(iteration=0, kind="save")
    with recording_client.section("step"):
        bus.checkpoint_end(iteration=0, kind="save", error=None)
    bus.step_end(iteration=0)
    with recording_client.section("checkpointing"):
        save(bus)
        assert recording_client.open_sections == {"checkpointing"}
    steps(bus, 1)
    assert recording_client.open_sections == set()


def test_an_exception_closes_what_is_open_and_stays_connected(start: Start, recording_client: Any):
    """A save made while the exception is handled is still protected."""
    bus = start()
    steps(bus, 0)
    bus.step_start(iteration=1)
    bus.checkpoint_start(iteration=1, kind="save")
    bus.training_error(error=RuntimeError("x"), iteration=1)
    assert recording_client.open_sections == set()
    assert recording_client.is_initialized
    bus.checkpoint_end(iteration=1, kind="save", error=RuntimeError("x"))
    bus.checkpoint_start(iteration=1, kind="save")
    assert recording_client.open_sections == {"checkpointing"}
    bus.checkpoint_end(iteration=1, kind="save", error=None)
    bus.teardown(reason="exception")
    assert not recording_client.is_initialized


def test_an_exception_before_the_first_step_closes_setup(start: Start, recording_client: Any):
    start().training_error(error=RuntimeError("x"), iteration=0)
    assert recording_client.calls == ["+setup", "-setup"]


def test_sections_of_the_training_code_are_left_to_it(start: Start, recording_client: Any):
    bus = start()
    recording_client.start_section("mine")
    bus.training_error(error=RuntimeError("x"), iteration=0)
    assert recording_client.open_sections == {"mine"}
    recording_client.end_section("mine")


@pytest.mark.parametrize("event", ["step", "eval", "save", "error", "teardown"])
def test_end_all_sections_in_the_training_code_is_allowed(start: Start, recording_client: Any, event: str):
    bus = start(num_warmup_iterations=0)
    if event == "step":
        bus.step_start(iteration=0)
        recording_client.end_all_sections()
        bus.step_end(iteration=0)
    elif event == "eval":
        bus.eval_step_start(iteration=0, eval_index=0)
        recording_client.end_all_sections()
        bus.eval_step_end(iteration=0, eval_index=0)
    elif event == "save":
        bus.checkpoint_start(iteration=0, kind="save")
        recording_client.end_all_sections()
        bus.checkpoint_end(iteration=0, kind="save", error=None)
    elif event == "error":
        recording_client.end_all_sections()
        bus.training_error(error=RuntimeError("x"), iteration=0)
    else:
        recording_client.end_all_sections()
    bus.teardown(reason="completed")
    assert not recording_client.is_initialized


def test_the_monitor_hears_which_iteration_it_is(rank_environment: Callable[..., Any]):
    cell = rank_environment()
    bus, client = EventBus(), RankMonitorClient()
    bus.register(SectionMonitor(client))
    bus.setup(context=RunContext())
    for iteration in (41, 42, 43):
        bus.step_start(iteration=iteration)
        assert cell.view().iteration == iteration
        bus.step_end(iteration=iteration)
    for index in range(3):
        bus.eval_step_start(iteration=44, eval_index=index)
        assert cell.view().iteration == 44
        bus.eval_step_end(iteration=44, eval_index=index)
    assert cell.view().went_back == 0, "an evaluation has one iteration"
    for iteration in (44, 44):
        bus.step_start(iteration=iteration)
        bus.step_end(iteration=iteration)
    assert cell.view().went_back == 1
    bus.teardown(reason="completed")


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ("setup:6,stpe:2,checkpointing:4", r"section 'step' is used but not in .*; did you mean 'stpe'"),
        ("step:2", r"section 'setup' is used but not in .*Add 'setup' with its seconds, or null"),
        ("setup:6,step:2,checkpoint:4", r"section 'checkpointing' is used .*did you mean 'checkpoint'"),
    ],
)
def test_a_section_that_is_not_configured_is_an_error_before_training(
    rank_environment: Callable[..., Any], configured: str, message: str
):
    rank_environment(rank_section_timeouts=configured)
    bus, client = EventBus(), RankMonitorClient()
    bus.register(SectionMonitor(client))
    with pytest.raises(SectionError, match=message):
        bus.setup(context=RunContext())
    assert not client.is_initialized


def test_a_section_that_a_run_need_not_open_is_refused_where_it_is_opened(
    rank_environment: Callable[..., Any], recording_client: Any, caplog: pytest.LogCaptureFixture
):
    rank_environment(rank_section_timeouts="setup:6,step:2", num_warmup_iterations=0)
    bus = EventBus()
    bus.register(SectionMonitor(recording_client, required=("setup", "step")))
    bus.setup(context=RunContext(rank=1))
    assert not caplog.records
    bus.setup(context=RunContext())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'checkpointing' is not in rank_section_timeouts" in caplog.text
    steps(bus, 0, 1)
    for _ in range(2):  # whoever has caught it meets it again
        with pytest.raises(
            UnconfiguredSectionError, match=r"'checkpointing' is used but not in .*configured: setup, step"
        ):
            bus.checkpoint_start(iteration=2, kind="save")
    assert recording_client.open_sections == set()


def test_sections_of_the_training_code_may_be_configured_beside_ours(
    start: Start, recording_client: Any, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO, logger="resilience_core"):
        start(rank_section_timeouts="setup:6,step:2,checkpointing:,forward:1")
    assert "forward" in caplog.text
    assert recording_client.open_sections == {"setup"}


@pytest.mark.usefixtures("no_rank_environment")
def test_without_a_monitor_training_goes_on_and_it_is_said_once(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    bus.register(SectionMonitor())
    for _ in range(2):
        bus.setup(context=RunContext())
        bus.checkpoint_loaded(iteration=0, source="persistent")
        steps(bus, 0, 1, 2)
        evaluate(bus, 2)
        save(bus)
        bus.training_error(error=RuntimeError("x"), iteration=0)
        bus.teardown(reason="completed")
    (record,) = caplog.records
    assert "goes on without a rank monitor" in record.message
    assert "ft_launcher" in record.message


def test_events_before_setup_and_after_teardown_are_nothing(start: Start, recording_client: Any):
    bus = EventBus()
    bus.register(SectionMonitor(recording_client))
    steps(bus, 0, 1)
    save(bus)
    evaluate(bus, 2)
    bus.teardown(reason="completed")
    assert recording_client.calls == []
    bus = start()
    bus.teardown(reason="completed")
    recording_client.calls.clear()
    steps(bus, 0, 1, 2)
    save(bus)
    evaluate(bus, 2)
    bus.teardown(reason="completed")
    assert recording_client.calls == []


def test_a_client_that_was_initialised_by_its_owner_stays_so(
    rank_environment: Callable[..., Any], recording_client: Any
):
    rank_environment()
    recording_client.init_workload_monitoring()
    bus = EventBus()
    bus.register(SectionMonitor(recording_client))
    bus.setup(context=RunContext())
    steps(bus, 0, 1)
    bus.teardown(reason="completed")
    assert recording_client.is_initialized
    assert recording_client.open_sections == set()


def test_an_owner_who_shuts_down_early_disturbs_nothing(start: Start, recording_client: Any):
    """Only said, never raised into training."""
    bus = start()
    steps(bus, 0)
    bus.step_start(iteration=1)
    recording_client.shutdown_workload_monitoring()
    bus.step_end(iteration=1)
    steps(bus, 2, 3)
    bus.teardown(reason="completed")
    bus.setup(context=RunContext())
    assert recording_client.open_sections == {"setup"}


def test_a_run_that_was_not_torn_down_is_closed_by_the_next_setup(start: Start, recording_client: Any):
    bus = start()
    steps(bus, 0)
    bus.step_start(iteration=1)
    bus.setup(context=RunContext())
    assert recording_client.open_sections == {"setup"}


# ---- against a model ---------------------------------------------------------------------------------------

_EVENTS = ["step+", "step-", "eval+", "eval-", "new eval", "save+", "save-", "other save+", "other save-", "error"]


class Model:
    """Which sections are open: the rule, with nothing of how the monitor keeps it. Two threads save."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.setup = True
        self.steps = self.evals = 0
        self.saves = {"save": 0, "other save": 0}
        self.left: set[str] = set()  # threads whose save was over before its end came
        self.step = False  # is it watched, if one goes on
        self.evaluation: bool | None = None  # the same; None where none goes on

    def leave(self, *threads: str) -> None:
        self.left |= {thread for thread in threads if self.saves[thread]}
        self.saves |= dict.fromkeys(threads, 0)

    def hear(self, event: str) -> None:
        thread = event.rstrip("+-")
        if event in ("step+", "eval+", "new eval", "error"):
            self.setup = False
        if event == "step+":
            self.leave("save")  # its end was not heard
            self.step, self.evaluation = self.steps >= self.warmup, None
            self.steps, self.evals = self.steps + 1, 0
        elif event == "step-":
            if not (self.step and self.evaluation is None and not self.saves["save"]):
                self.evaluation = None  # one inside the step is over with it
            self.step = False
        elif event in ("eval+", "new eval") and not self.saves["save"]:  # else it is part of the save
            self.evals = 0 if event == "new eval" else self.evals
            self.evaluation = self.evals >= self.warmup
            self.evals += 1
        elif event == "eval-":
            self.evaluation = None
        elif event in ("save+", "other save+"):
            self.saves[thread] += 1
            self.left.discard(thread)
        elif event in ("save-", "other save-"):
            if self.saves[thread]:
                self.saves[thread] -= 1
            else:
                self.left.discard(thread) if thread in self.left else self.left.clear()
        elif event == "error":
            self.leave("save", "other save")
            self.step, self.evaluation = False, None

    def is_of_another(self, event: str) -> bool:
        """Whether it ends what the other thread has begun, which has a test of its own."""
        thread = event.rstrip("+-")
        return (
            event.endswith("save-") and not self.saves[thread] and thread not in self.left and any(self.saves.values())
        )

    @property
    def open(self) -> set[str]:
        """The innermost of a training step, a step of an evaluation and a save has its section; setup stays open."""
        step = self.step if self.evaluation is None else self.evaluation
        is_saving = any(self.saves.values())
        flags = {"setup": self.setup, "step": step and not self.saves["save"], "checkpointing": is_saving}
        return {name for name, is_open in flags.items() if is_open}


@given(events=st.lists(st.sampled_from(_EVENTS), max_size=30), warmup=st.integers(0, 3))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_the_order_of_events_the_open_sections_are_those_of_the_rule(
    rank_environment: Callable[..., Any], events: list[str], warmup: int
):
    rank_environment(num_warmup_iterations=warmup)
    bus, client, model = EventBus(), RankMonitorClient(), Model(warmup)
    bus.register(SectionMonitor(client))
    bus.setup(context=RunContext())
    index = last = -1
    with ThreadPoolExecutor(1) as other:
        for event in events:
            if model.is_of_another(event):
                continue
            # Where the last index was 0, one more 0 cannot be told from the same evaluation going on.
            event = "eval+" if event == "new eval" and (index < 1 or last < 1) else event
            is_part_of_save = bool(model.saves["save"])
            model.hear(event)
            if event == "step+":
                bus.step_start(iteration=0)
            elif event == "step-":
                bus.step_end(iteration=0)
            elif event in ("eval+", "new eval"):
                index = 0 if event == "new eval" else index + 1
                last = last if is_part_of_save else index  # what the monitor has seen
                bus.eval_step_start(iteration=0, eval_index=index)
            elif event == "eval-":
                bus.eval_step_end(iteration=0, eval_index=index)
            elif event == "save+":
                bus.checkpoint_start(iteration=0, kind="save")
            elif event == "save-":
                bus.checkpoint_end(iteration=0, kind="save", error=None)
            elif event == "other save+":
                other.submit(lambda: bus.checkpoint_start(iteration=0, kind="save")).result()
            elif event == "other save-":
                other.submit(lambda: bus.checkpoint_end(iteration=0, kind="save", error=None)).result()
            else:
                bus.training_error(error=RuntimeError("x"), iteration=0)
            assert client.open_sections == model.open, event
    bus.teardown(reason="completed")
    assert not client.is_initialized


def test_a_step_is_watched_although_its_number_cannot_be_told(
    start: Start, recording_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As a loop that fires the events itself may have it."""
    bus = start(num_warmup_iterations=1)
    steps(bus, 0.5, 1.5, 2.5, 2**70)  # type: ignore[arg-type]
    bus.eval_step_start(iteration=0.5, eval_index=1)
    bus.eval_step_end(iteration=0.5, eval_index=1)
    evaluate(bus, 2, iteration=0.5)  # type: ignore[arg-type]
    assert recording_client.calls == ["+setup", "-setup", *("+step", "-step") * 3, *("+step", "-step") * 1]
    assert caplog.text.count("iteration is 0.5 (float); pass a whole number") == 1
    assert "failed in" not in caplog.text
    bus.teardown(reason="completed")
