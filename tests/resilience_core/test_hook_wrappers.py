"""Hook wrappers: whatever they do, every listener hears the event once, and they are named where they fail."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from resilience_core import EventBus, RunContext, SectionError, SectionMonitor, StopTraining, hookimpl
from resilience_core.protocol.cell import Cell

ERRORS: dict[str, type[BaseException]] = {
    "fails": ValueError,
    "ends an iterator": StopIteration,
    "stops": StopTraining,
    "misuses a section": SectionError,
}
EXITS: dict[str, type[BaseException]] = {"interrupts": KeyboardInterrupt, "exits": SystemExit, "closes": GeneratorExit}
FOR_TRAINING = ("stops", "misuses a section", "forces a stop")


def raise_if(how: str, place: str) -> None:
    if how in ERRORS or how in EXITS:
        raise {**ERRORS, **EXITS}[how](place)


class Plain:
    """A listener that fails as it is told, or not."""

    def __init__(self, name: str, log: list[str], how: str = "") -> None:
        self.name, self.log, self.how = name, log, how

    def ways(self) -> tuple[str, ...]:
        return (self.how,)

    @hookimpl
    def step_end(self, iteration: int) -> None:
        self.log.append(f"{self.name} hears {iteration}")
        raise_if(self.how, self.name)


class New:
    """A wrapper that does as it is told before and after its yield."""

    def __init__(self, name: str, log: list[str], before: str = "", after: str = "") -> None:
        self.name, self.log, self.before, self.after = name, log, before, after

    def ways(self) -> tuple[str, ...]:
        return (self.before, self.after)

    @hookimpl(wrapper=True)
    def step_end(self, iteration: int) -> Any:
        self.log.append(f"{self.name} before {iteration}")
        raise_if(self.before, self.name)
        if self.before == "returns":
            return
        try:
            yield
        except BaseException:
            if self.after != "swallows":
                raise
        finally:
            self.log.append(f"{self.name} after")
        yield from self.end()

    def end(self) -> Iterator[None]:
        raise_if(self.after, self.name)
        if self.after == "yields again":
            yield
        if self.after == "refuses to close":
            try:
                yield
            except GeneratorExit:
                yield


class Old(New):
    """The same in pluggy's old style, which is given a result instead of an exception."""

    @hookimpl(hookwrapper=True)
    def step_end(self, iteration: int) -> Any:
        self.log.append(f"{self.name} before {iteration}")
        raise_if(self.before, self.name)
        if self.before == "returns":
            return
        outcome = yield
        self.log.append(f"{self.name} after")
        if self.after == "takes the result":
            outcome.get_result()
        if self.after == "forces a stop":
            outcome.force_exception(StopTraining(self.name))
        if self.after == "swallows":
            outcome.force_result([])
        yield from self.end()


BEFORE = ("", "returns", *ERRORS)
AFTER_NEW = ("", "swallows", "yields again", "refuses to close", *ERRORS)
AFTER_OLD = (*AFTER_NEW, "takes the result", "forces a stop")
PLUGINS = st.one_of(
    st.tuples(st.just(Plain), st.sampled_from(("", *ERRORS))),
    st.tuples(st.just(New), st.sampled_from(BEFORE), st.sampled_from(AFTER_NEW)),
    st.tuples(st.just(Old), st.sampled_from(BEFORE), st.sampled_from(AFTER_OLD)),
)


def made(parts: list[tuple[Any, ...]], log: list[str]) -> tuple[EventBus, list[Any]]:
    """Return a bus and its plugins; the one that was registered first hears last."""
    bus, plugins = EventBus(), [kind(f"{kind.__name__}{n}", log, *how) for n, (kind, *how) in enumerate(parts)]
    for plugin in reversed(plugins):
        bus.register(plugin)
    return bus, plugins


@given(st.lists(PLUGINS, max_size=6))
@example([(New, "fails", ""), (Plain, "")])
@example([(Old, "returns", ""), (Plain, "")])
@example([(Plain, "stops"), (New, "", "swallows")])
@example([(Plain, "stops"), (Old, "", "fails")])
@example([(Old, "", "forces a stop"), (Plain, "")])
@example([(New, "", "stops"), (Old, "stops", ""), (Plain, "misuses a section")])
def test_every_listener_hears_every_event_once_in_order_whatever_wrappers_do(parts: list[tuple[Any, ...]]) -> None:
    log: list[str] = []
    bus, plugins = made(parts, log)
    plain = [each for each in plugins if isinstance(each, Plain)]
    wrappers = [each for each in plugins if isinstance(each, New)]
    opened = [each for each in reversed(wrappers) if each.before == ""]
    failing = [each for each in wrappers if each.before in FOR_TRAINING]
    failing += [each for each in plain if each.how in FOR_TRAINING]
    failing += [each for each in opened if each.after in FOR_TRAINING]

    for iteration in range(2):
        log.clear()
        raised = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                bus.step_end(iteration=iteration)
            except (StopTraining, SectionError) as error:
                raised = str(error)

        assert log == [
            *(f"{each.name} before {iteration}" for each in wrappers),
            *(f"{each.name} hears {iteration}" for each in plain),
            *(f"{each.name} after" for each in opened),
        ]
        assert raised == (failing[0].name if failing else None)


@given(
    st.lists(PLUGINS, max_size=3),
    st.lists(PLUGINS, max_size=3),
    st.sampled_from([(Plain, ""), (New, "", ""), (New, "", "after"), (Old, "", ""), (Old, "", "after")]),
    st.sampled_from(list(EXITS)),
)
def test_an_exit_is_passed_on_once_everybody_has_heard_the_event(
    outer: list[tuple[Any, ...]], inner: list[tuple[Any, ...]], at_fault: tuple[Any, ...], exits: str
) -> None:
    log: list[str] = []
    kind, *halves = at_fault
    how = [exits] if kind is Plain else ["", exits] if halves[1] else [exits, ""]
    bus, plugins = made([*outer, (kind, *how), *inner], log)
    opened = [each for each in reversed(plugins) if isinstance(each, New) and each.before == ""]
    heard = [each for each in plugins if isinstance(each, Plain)]
    if kind is New and how[1]:
        within = [*heard, *plugins[len(outer) + 1 :]]
        assume(not any(how in FOR_TRAINING for each in within for how in each.ways()))  # else it has no occasion

    with pytest.raises(EXITS[exits], match=plugins[len(outer)].name):
        bus.step_end(iteration=0)

    assert [line for line in log if line.endswith("after")] == [f"{each.name} after" for each in opened]
    assert [line for line in log if "hears" in line] == [f"{each.name} hears 0" for each in heard]


@pytest.mark.parametrize("kind", [New, Old])
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("fails", "", "ValueError"),
        ("returns", "", "returned without a yield"),
        ("", "fails", "ValueError"),
        ("", "yields again", "yielded a second time"),
        ("", "refuses to close", "yielded a second time"),
    ],
)
def test_a_broken_wrapper_is_named_once(
    kind: type[New], before: str, after: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    bus = EventBus()
    bus.register(Plain("plain", log))
    bus.register(kind("wrapper", log, before, after), "theirs")
    for iteration in range(3):
        bus.step_end(iteration=iteration)
    (record,) = caplog.records
    said = record.getMessage()
    assert told in said
    assert f"plugin {__name__}.{kind.__name__} ('theirs', {__file__}:" in said
    assert " failed in step_end " in said
    assert "said once" in said


def test_two_broken_wrappers_are_both_named(caplog: pytest.LogCaptureFixture) -> None:
    bus, _ = made([(New, "fails", ""), (Old, "", "fails"), (Plain, "")], [])
    bus.step_end(iteration=0)
    bus.step_end(iteration=1)
    assert sorted(record.getMessage().split()[1].rsplit(".")[-1] for record in caplog.records) == ["New", "Old"]


@pytest.mark.parametrize("kind", [New, Old])
@pytest.mark.parametrize(("before", "after"), [("interrupts", ""), ("", "interrupts")])
def test_an_interrupt_in_a_wrapper_is_passed_on_and_names_the_plugin(
    kind: type[New], before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = made([(New, "", ""), (kind, before, after), (Plain, "")], [])
    with pytest.raises(KeyboardInterrupt):
        bus.step_end(iteration=0)
    (record,) = caplog.records
    assert f"KeyboardInterrupt was raised while plugin {__name__}.{kind.__name__} " in record.getMessage()
    assert "handled step_end" in record.getMessage()


@pytest.mark.parametrize("arguments", [{}, {"iteration": 1, "more": 2}, {"iteratoin": 1}])
def test_a_wrapped_event_refuses_wrong_arguments_before_anybody_is_called(arguments: dict[str, int]) -> None:
    log: list[str] = []
    bus, _ = made([(New, "", ""), (Plain, "")], log)
    fire: Callable[..., None] = bus.step_end
    with pytest.raises(TypeError, match=r"step_end\(\)"):
        fire(**arguments)
    with pytest.raises(TypeError):
        fire(1)
    assert log == []


class Defaults:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    @hookimpl
    def checkpoint_end(self, iteration: int, error: object = "none given", _own: int = 7) -> None:
        self.heard.append((iteration, error, _own))


class DefaultsInAWrapper(Defaults):
    @hookimpl(wrapper=True)
    def checkpoint_end(self, iteration: int, error: object = "none given", _own: int = 7) -> Any:
        self.heard.append((iteration, error, _own))
        return (yield)


@pytest.mark.parametrize("kind", [Defaults, DefaultsInAWrapper])
def test_an_argument_with_a_default_is_handed_over(kind: type[Defaults]) -> None:
    bus, plugin, error = EventBus(), kind(), ValueError("disk full")
    bus.register(plugin)
    bus.checkpoint_end(iteration=1, kind="save", error=error)
    bus.checkpoint_end(iteration=2, kind="save")
    assert plugin.heard == [(1, error, 7), (2, None, 7)]


class Broken:
    """What outsiders have written: each half of a step, wrapped by something that never yields."""

    @hookimpl(wrapper=True)
    def step_start(self) -> Any:
        raise ValueError("before the yield")
        yield

    @hookimpl(hookwrapper=True)
    def step_end(self) -> Any:
        return
        yield


def test_the_step_is_still_watched_and_still_ended(
    rank_environment: Callable[..., Cell], recording_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cell = rank_environment(rank_section_timeouts={"setup": 60.0, "step": 60.0, "checkpointing": 60.0})
    bus = EventBus()
    bus.register(SectionMonitor(recording_client))
    bus.register(Broken())
    bus.setup(context=RunContext())
    bus.step_start(iteration=0)
    bus.step_end(iteration=0)
    bus.step_start(iteration=1)
    assert [section.name for section in cell.view().sections] == ["step"]
    bus.step_end(iteration=1)
    assert [section.name for section in cell.view().sections] == []
    assert recording_client.calls == ["+setup", "-setup", "+step", "-step"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
