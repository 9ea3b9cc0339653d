"""EventBus: who hears what, in which order, and what may reach the training."""

from __future__ import annotations

import dataclasses
import functools
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import resilience_core
from resilience_core import EventBus, RunContext, SectionError, StopTraining, hookimpl
from resilience_core.errors import PluginError
from resilience_core.event_bus import EVENTS
from resilience_core.plugins.installed import InstalledPlugin
from resilience_core.testing import EventRecorder

ARGUMENTS: dict[str, dict[str, Any]] = {
    "setup": {"context": RunContext()},
    "step_start": {"iteration": 1},
    "step_end": {"iteration": 1},
    "eval_step_start": {"iteration": 1, "eval_index": 2},
    "eval_step_end": {"iteration": 1, "eval_index": 2},
    "checkpoint_start": {"iteration": 1, "kind": "save"},
    "checkpoint_end": {"iteration": 1, "kind": "save", "error": None},
    "checkpoint_loaded": {"iteration": 1, "source": "local"},
    "training_error": {"error": RuntimeError("x"), "iteration": 1},
    "teardown": {"reason": "completed"},
}


class Step:
    """Hears step_start and does with it what it is told."""

    def __init__(self, name: str = "", log: list[Any] | None = None, error: BaseException | None = None) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.error = error

    @hookimpl
    def step_start(self, iteration: int) -> None:
        self.log.append(self.name or iteration)
        if self.error is not None:
            raise self.error


class First(Step):
    @hookimpl(tryfirst=True)
    def step_start(self, iteration: int) -> None:
        super().step_start(iteration)


class Last(Step):
    @hookimpl(trylast=True)
    def step_start(self, iteration: int) -> None:
        super().step_start(iteration)


class Wrapper:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    @hookimpl(wrapper=True)
    def step_start(self, iteration: int) -> Any:
        self.log.append(f"before {iteration}")
        result = yield
        self.log.append(f"after {iteration}")
        return result


def test_the_test_knows_every_event():
    assert set(ARGUMENTS) == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_without_listeners_is_nothing(event: str):
    assert getattr(EventBus(), event)(**ARGUMENTS[event]) is None


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_event_reaches_its_listener_with_every_argument(event: str, wrapped: bool):
    bus, recorder, log = EventBus(), EventRecorder(), []
    bus.register(recorder)
    if wrapped:

        class Around:
            pass

        def around(self: object) -> Any:
            log.append("before")
            yield
            log.append("after")

        setattr(Around, event, hookimpl(wrapper=True)(around))
        bus.register(Around())
    assert getattr(bus, event)(**ARGUMENTS[event]) is None
    assert recorder.events == [(event, ARGUMENTS[event])]
    assert log == (["before", "after"] if wrapped else [])


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_error_of_a_checkpoint_may_be_left_out(wrapped: bool):
    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    if wrapped:

        class Around:
            @hookimpl(wrapper=True)
            def checkpoint_end(self) -> Any:
                yield

        bus.register(Around())
    bus.checkpoint_end(iteration=1, kind="save")
    assert recorder.events == [("checkpoint_end", {"iteration": 1, "kind": "save", "error": None})]


@pytest.mark.parametrize("event", EVENTS)
def test_arguments_are_given_by_name_and_none_may_be_missing(event: str):
    bus = EventBus()
    bus.register(EventRecorder())
    with pytest.raises(TypeError):
        getattr(bus, event)(*ARGUMENTS[event].values())
    with pytest.raises(TypeError):
        getattr(bus, event)(**{**ARGUMENTS[event], "more": 1})
    with pytest.raises(TypeError):
        getattr(bus, event)()


def test_a_listener_takes_any_subset_of_the_arguments_in_any_order():
    heard: list[Any] = []

    class Subset:
        @hookimpl
        def eval_step_start(self, eval_index: int) -> None:
            heard.append(eval_index)

        @hookimpl
        def checkpoint_end(self, error: BaseException | None, iteration: int) -> None:
            heard.append((error, iteration))

        @hookimpl
        def teardown(self) -> None:
            heard.append("teardown")

    bus = EventBus()
    bus.register(Subset())
    bus.eval_step_start(iteration=1, eval_index=2)
    bus.checkpoint_end(iteration=3, kind="save", error=None)
    bus.teardown(reason="completed")
    assert heard == [2, (None, 3), "teardown"]


def test_order_is_that_of_pluggy():
    """The last to register hears first, unless it asks for something else."""
    bus, log = EventBus(), []
    for plugin in (Last("last", log), Step("a", log), First("first", log), Step("b", log)):
        bus.register(plugin)
    bus.step_start(iteration=0)
    assert log == ["first", "b", "a", "last"]


def test_a_wrapper_stands_around_all_others():
    bus, log = EventBus(), []
    bus.register(Step("a", log))
    bus.register(Wrapper(log))
    bus.register(First("first", log))
    bus.step_start(iteration=7)
    assert log == ["before 7", "first", "a", "after 7"]


def test_a_listener_that_raises_is_named_once_and_hides_the_event_from_nobody(caplog: pytest.LogCaptureFixture):
    bus, log = EventBus(), []
    for plugin in (Step("a", log), Step("b", log, ValueError("my mistake")), Step("c", log)):
        bus.register(plugin)
    bus.step_start(iteration=0)
    bus.step_start(iteration=1)
    assert log == ["c", "b", "a"] * 2
    (record,) = caplog.records
    assert "Step failed in step_start" in record.message
    assert "ValueError: my mistake" in record.message
    assert record.exc_info


@pytest.mark.parametrize("error", [SectionError("never opened"), StopTraining("straggler")])
def test_two_errors_reach_the_training_after_everybody_has_heard(error: Exception, caplog: pytest.LogCaptureFixture):
    bus, log = EventBus(), []
    for plugin in (Step("a", log), Step("b", log, error), Step("c", log)):
        bus.register(plugin)
    with pytest.raises(type(error)) as caught:
        bus.step_start(iteration=0)
    assert caught.value is error
    assert log == ["c", "b", "a"]
    assert caplog.records == []


def test_of_two_errors_the_first_reaches_the_training():
    bus, first = EventBus(), StopTraining("first")
    bus.register(Step(error=StopTraining("second")))
    bus.register(First(error=first))
    with pytest.raises(StopTraining) as caught:
        bus.step_start(iteration=0)
    assert caught.value is first


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_request_to_leave_is_no_error_of_a_listener(error: BaseException):
    bus = EventBus()
    bus.register(Step(error=error))
    with pytest.raises(type(error)):
        bus.step_start(iteration=0)


@pytest.mark.parametrize("error", [ValueError("mine"), SectionError("never opened")])
def test_a_wrapper_does_not_let_one_listener_hide_the_event_from_the_others(error: Exception):
    bus, log = EventBus(), []
    for plugin in (Step("a", log), Wrapper(log), Step("b", log, error), Step("c", log)):
        bus.register(plugin)
    if isinstance(error, SectionError):
        with pytest.raises(SectionError):
            bus.step_start(iteration=7)
        assert log == ["before 7", "c", "b", "a"]
    else:
        bus.step_start(iteration=7)
        assert log == ["before 7", "c", "b", "a", "after 7"]


def test_wrappers_nest_as_they_would_in_pluggy():
    class Outer(Wrapper):
        @hookimpl(wrapper=True, tryfirst=True)
        def step_start(self) -> Any:
            self.log.append("outer before")
            yield
            self.log.append("outer after")

    bus, log = EventBus(), []
    for plugin in (Outer(log), Step("a", log), Wrapper(log)):
        bus.register(plugin)
    bus.step_start(iteration=7)
    assert log == ["outer before", "before 7", "a", "after 7", "outer after"]


def test_a_wrapper_that_raises_does_not_stop_training(caplog: pytest.LogCaptureFixture):
    class Broken:
        @hookimpl(wrapper=True)
        def step_start(self) -> Any:
            yield
            raise ValueError("mine")

    bus, log = EventBus(), []
    bus.register(Step("a", log))
    bus.register(Broken())
    bus.step_start(iteration=0)
    bus.step_start(iteration=1)
    assert log == ["a", "a"]
    assert len(caplog.records) == 1


def test_a_misspelt_hook_is_refused_with_the_nearest_event():
    class Misspelt:
        @hookimpl
        def step_begin(self, iteration: int) -> None: ...

        @hookimpl
        def step_end(self) -> None: ...

    bus = EventBus()
    with pytest.raises(PluginError, match=r"Misspelt has an unknown hook 'step_begin'; did you mean 'step_"):
        bus.register(Misspelt())
    assert bus.plugins() == []
    bus.step_end(iteration=0)


def test_a_hook_of_a_newer_contract_may_be_optional():
    class Newer:
        @hookimpl(optionalhook=True)
        def batch_fetched(self) -> None: ...

    EventBus().register(Newer())


def test_a_misspelt_argument_is_refused():
    class Misspelt:
        @hookimpl
        def step_start(self, iteraton: int) -> None: ...

    bus = EventBus()
    with pytest.raises(PluginError, match=r"Misspelt: .*iteraton"):
        bus.register(Misspelt())
    assert bus.plugins() == []
    bus.step_start(iteration=0)


def test_registering_twice_is_refused_and_changes_nothing():
    bus, step = EventBus(), Step()
    bus.register(step)
    with pytest.raises(PluginError, match=r"Step is registered already$"):
        bus.register(step)
    bus.step_start(iteration=4)
    assert step.log == [4]


def test_a_plugin_comes_and_goes():
    bus, step = EventBus(), Step()
    name = bus.register(step, name="mine")
    assert name == "mine"
    assert bus.is_registered(step)
    assert bus.plugins() == [step]
    bus.step_start(iteration=1)
    bus.unregister(step)
    bus.unregister(step)
    bus.step_start(iteration=2)
    assert not bus.is_registered(step)
    assert step.log == [1]


def test_a_listener_may_unsubscribe_itself_while_it_hears():
    bus = EventBus()

    class Once(Step):
        @hookimpl
        def step_start(self, iteration: int) -> None:
            self.log.append(iteration)
            bus.unregister(self)

    once, other = Once(), Step()
    bus.register(other)
    bus.register(once)
    bus.step_start(iteration=1)
    bus.step_start(iteration=2)
    assert (once.log, other.log) == ([1], [1, 2])


def test_plugins_may_come_while_events_are_fired():
    """Registration on another thread never shows a half-made event."""
    bus, done = EventBus(), threading.Event()

    def come_and_go() -> None:
        for _ in range(50):
            step = Step()
            bus.register(step)
            bus.unregister(step)
        done.set()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    while not done.is_set():
        bus.step_start(iteration=0)
    thread.join()
    assert bus.plugins() == []


def test_entry_points_of_the_group_resilience_are_loaded(tmp_path: Path):
    """In a process of its own, with a distribution that offers a plugin."""
    (tmp_path / "theirs.py").write_text(
        "from resilience_core import hookimpl\n@hookimpl\ndef step_start(iteration): print('heard', iteration)\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[resilience]\ntheirs = theirs\n")
    code = (
        "from resilience_core import EventBus; b = EventBus(); print(b.load_entry_points()); b.step_start(iteration=5);"
        "print(b.load_entry_points())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "heard", "5", "0"]


def test_a_process_has_one_default_bus():
    assert resilience_core.bus() is resilience_core.bus()
    assert isinstance(resilience_core.bus(), EventBus)


class _Marked:
    @hookimpl
    def step_start(self, iteration: int) -> None: ...


class _Unmarked:
    def step_start(self, iteration: int) -> None: ...


def test_a_class_is_refused_with_the_fix():
    bus = EventBus()
    with pytest.raises(PluginError, match=r"_Marked is a class; register an instance of it: _Marked\(\.\.\.\)"):
        bus.register(_Marked)
    assert bus.plugins() == []


def test_a_plugin_that_would_hear_nothing_is_refused_with_the_fix():
    bus = EventBus()
    with pytest.raises(PluginError, match=r"_Unmarked would hear nothing: .*hookimpl; mark step_start$"):
        bus.register(_Unmarked())
    with pytest.raises(PluginError, match=r"builtins.object would hear nothing: .*events are: setup, step_start"):
        bus.register(object())
    assert bus.plugins() == []


@pytest.mark.parametrize("plugin", [_Unmarked(), 7, "step"])
def test_an_installed_plugin_is_held_to_the_same(plugin: object, monkeypatch: pytest.MonkeyPatch):
    bus = EventBus()
    offer = types.SimpleNamespace(name="theirs", load=lambda: plugin)
    monkeypatch.setattr("resilience_core.event_bus.installed_plugins", lambda: [offer])
    with pytest.raises(PluginError, match="would hear nothing"):
        bus.load_entry_points()
    assert bus.plugins() == []


@pytest.mark.parametrize("exit_type", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_an_exit_in_a_listener_is_passed_on_and_names_the_plugin(
    exit_type: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Exits:
        @hookimpl
        def step_start(self) -> None:
            raise exit_type

    events = EventBus()
    events.register(Exits())
    with pytest.raises(exit_type):
        events.step_start(iteration=0)
    assert f"{exit_type.__name__} was raised while plugin" in caplog.text
    assert "Exits handled step_start" in caplog.text


def test_an_exit_in_the_same_listener_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    bus.register(Step(error=KeyboardInterrupt()))
    for iteration in range(2):
        with pytest.raises(KeyboardInterrupt):
            bus.step_start(iteration=iteration)
    assert len(caplog.records) == 1


def module_plugin(name: str) -> types.ModuleType:
    module = types.ModuleType(name)

    @hookimpl
    def step_start(iteration: int) -> None:
        raise ValueError(name)

    module.step_start = step_start  # type: ignore[attr-defined]
    return module


def test_a_plugin_that_is_a_module_is_called_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    bus.register(module_plugin("of_theirs"))
    bus.step_start(iteration=0)
    assert "plugin of_theirs failed in step_start" in caplog.text


@pytest.mark.parametrize("name", ["log", None])
def test_a_name_that_is_taken_is_refused_with_its_owner_and_the_fix(name: str | None) -> None:
    bus = EventBus()
    first, second = (Step(), First()) if name else (module_plugin("log"), module_plugin("log"))
    bus.register(first, name)
    with pytest.raises(PluginError) as caught:
        bus.register(second, name)
    new, old = (f"{__name__}.First", f"{__name__}.Step") if name else ("log", "log")
    assert str(caught.value) == (
        f"plugin {new}: the name 'log' is taken by plugin {old}. Give one of them another name: in "
        "register(plugin, name), or, of an installed plugin, in the entry point of its package"
    )
    assert bus.plugins() == [first]


def test_the_owner_of_a_name_is_named_with_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, loaded = EventBus(), [Step(), First()]
    entry = types.SimpleNamespace(value=f"{__name__}:Step")
    of_another = types.SimpleNamespace(value="elsewhere:Step")
    offers = [
        InstalledPlugin("log", "not-loaded", "2.0", of_another),  # type: ignore[arg-type]
        InstalledPlugin("log", "step-log", "1.0", entry),  # type: ignore[arg-type]
    ]
    monkeypatch.setattr("resilience_core.event_bus.installed_plugins", lambda: offers)
    bus.register(loaded[0], "log")
    with pytest.raises(PluginError, match=r"'log' is taken by plugin \S+\.Step of step-log 1\.0\. Give one"):
        bus.register(loaded[1], "log")


def test_a_plugin_that_is_registered_already_is_refused_without_its_repr() -> None:
    bus, plugin = EventBus(), Step()
    bus.register(plugin, "mine")
    for name in ("mine", "other", None):
        with pytest.raises(PluginError, match=r"^plugin \S+\.Step is registered already, as 'mine'$"):
            bus.register(plugin, name)


@pytest.mark.parametrize(("plugin", "says"), [(lambda: None, "is a function"), (None, "is None")])
def test_a_factory_and_none_are_refused_with_the_reason(plugin: object, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        EventBus().register(plugin, "p")


class Generator:
    @hookimpl
    def step_start(self, iteration: int) -> Iterator[None]:
        yield


class Coroutine:
    @hookimpl
    async def step_start(self, iteration: int) -> None: ...


class Keywords:
    @hookimpl
    def step_start(self, **facts: int) -> None: ...


class Positional:
    @hookimpl
    def step_start(self, *facts: int) -> None: ...


class KeywordOnly:
    @hookimpl
    def step_start(self, *, iteration: int) -> None: ...


class Misspelt:
    @hookimpl
    def step_start(self, iteratoin: int = 5) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        (Generator(), r"would not hear 'step_start': it is a generator.*hookimpl\(wrapper=True\)"),
        (Coroutine(), r"'step_start': it is an async function"),
        (Keywords(), r"'step_start': \*args and \*\*kwargs stay empty; name .* of iteration"),
        (Positional(), r"'step_start': \*args and \*\*kwargs stay empty"),
        (KeywordOnly(), r"'step_start': its arguments are keyword-only .* remove the \*"),
        (Misspelt(), r"'step_start': the event has no argument 'iteratoin'.*did you mean 'iteration'"),
    ],
)
def test_a_hook_that_would_be_called_in_vain_is_refused(plugin: object, told: str) -> None:
    bus = EventBus()
    with pytest.raises(PluginError, match=told):
        bus.register(plugin)
    assert not bus.is_registered(plugin)


class OfAnotherVersion:
    @hookimpl(optionalhook=True)
    def event_to_come(self, anything: int, more: int = 1) -> None: ...

    @hookimpl
    def step_start(self, iteration: int) -> None: ...


def test_an_optional_hook_is_not_compared_with_a_contract_that_it_has_not() -> None:
    bus, plugin = EventBus(), OfAnotherVersion()
    bus.register(plugin)
    assert bus.is_registered(plugin)


class OfItsOwn:
    @hookimpl
    def step_start(self, iteration: int = 9, _log: list[int] = [], *, _more: int = 1) -> None:  # noqa: B006
        _log.append(iteration + _more)


class OfItsOwnFirst:
    @hookimpl
    def step_start(self, _log: int = 1, iteration: int = 9) -> None: ...


def test_a_hook_may_have_arguments_of_its_own() -> None:
    """A default bound to a name that begins with an underscore is a usual way to keep something at hand."""
    bus = EventBus()
    bus.register(OfItsOwn())
    bus.step_start(iteration=4)
    assert OfItsOwn.step_start.__defaults__[1] == [5]
    with pytest.raises(PluginError, match=r"'_log' stands before an argument of the event; put what .* last"):
        bus.register(OfItsOwnFirst())


@pytest.mark.parametrize("event", ["checkpoint_end", "training_error"])
def test_a_plugin_that_raises_does_not_take_the_error_of_the_event_from_the_others(event: str) -> None:
    """The event's own argument is called ``error``, too."""
    heard: list[BaseException | None] = []

    class Raises:
        @hookimpl(tryfirst=True)
        def checkpoint_end(self) -> None:
            raise ValueError("bad")

        @hookimpl(tryfirst=True)
        def training_error(self) -> None:
            raise ValueError("bad")

    class Hears:
        @hookimpl
        def checkpoint_end(self, error: BaseException | None) -> None:
            heard.append(error)

        @hookimpl
        def training_error(self, error: BaseException) -> None:
            heard.append(error)

    bus = EventBus()
    bus.register(Hears())
    bus.register(Raises())
    given = RuntimeError("the training's")
    if event == "checkpoint_end":
        bus.checkpoint_end(iteration=1, kind="save", error=given)
    else:
        bus.training_error(error=given, iteration=1)

    assert heard == [given]


def test_an_exception_without_a_text_is_told_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    class NoTextError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    class Raises:
        @hookimpl
        def step_end(self) -> None:
            raise NoTextError

    bus = EventBus()
    bus.register(Raises())
    bus.step_end(iteration=1)

    assert "NoTextError: <its text cannot be made: ZeroDivisionError>" in caplog.text


def test_a_plugin_that_cannot_be_compared_is_refused_and_does_not_hinder_others() -> None:
    class Incomparable:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise ValueError("no")

        @hookimpl
        def step_end(self) -> None:
            """Nothing."""

    bus = EventBus()
    with pytest.raises(PluginError, match="its __eq__ raises ValueError"):
        bus.register(Incomparable())
    bus.register(EventRecorder())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("__eq__ = lambda self, other: other is not None and self.k == other.k", "its __eq__ raises AttributeError"),
        ("__eq__ = lambda self, other: True", "its __eq__ says that it equals any other object"),
        ("__eq__ = lambda self, other: False", "its __eq__ says that it does not equal itself"),
        (
            "__eq__ = lambda self, other: other is self and 1 / 0",
            r"equals itself \(ZeroDivisionError: division by zero\)",
        ),
    ],
)
def test_a_plugin_that_errs_in_comparing_itself_is_refused(body: str, why: str) -> None:
    names: dict[str, Any] = {"hookimpl": hookimpl}
    exec(f"class P:\n    k = 1\n    {body}\n    @hookimpl\n    def step_end(self): ...", names)
    bus = EventBus()
    with pytest.raises(PluginError, match=why):
        bus.register(names["P"]())
    bus.register(EventRecorder())


@pytest.mark.parametrize("options", ["", "(wrapper=True)"])
def test_a_hook_without_self_is_refused_and_does_not_hinder_others(options: str) -> None:
    names: dict[str, Any] = {"hookimpl": hookimpl}
    body = "return (yield)" if options else "pass"
    exec(f"class P:\n    @hookimpl{options}\n    def step_end():\n        {body}", names)
    bus = EventBus()
    with pytest.raises(PluginError, match=r"plugin .*P has a hook that cannot be called \(ValueError: invalid method"):
        bus.register(names["P"]())
    recorder = EventRecorder()
    bus.register(recorder)
    bus.step_end(iteration=1)
    assert len(recorder.events) == 1


@pytest.mark.parametrize("options", ["", "(wrapper=True)"])
def test_a_hook_whose_argument_stands_where_self_belongs_is_refused(options: str) -> None:
    names: dict[str, Any] = {"hookimpl": hookimpl}
    body = "return (yield)" if options else "pass"
    exec(f"class P:\n    @hookimpl{options}\n    def step_end(iteration):\n        {body}", names)
    bus = EventBus()
    with pytest.raises(
        PluginError, match="P would not hear 'step_end': its first parameter, 'iteration', is given the"
    ):
        bus.register(names["P"]())
    assert bus.plugins() == []


def test_of_a_plugin_that_equals_a_registered_one_that_is_said() -> None:
    @dataclasses.dataclass(unsafe_hash=True)
    class Equal:
        each: int

        @hookimpl
        def step_end(self) -> None: ...

    bus = EventBus()
    bus.register(Equal(1), "mine")
    with pytest.raises(PluginError, match=r"Equal equals one that is registered already, as 'mine', and .* eq=False"):
        bus.register(Equal(1))
    bus.register(Equal(2))


class _TimeIsUp(Exception):
    pass


def _raise_in_function(*_: object) -> None:
    raise _TimeIsUp


def _remove_itself_and_raise(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise _TimeIsUp


def _remove_itself_and_raise_with(trainer: object, *arguments: Any) -> None:
    _remove_itself_and_raise(arguments[0], None)


def _raise_with_a_keyword(number: int, frame: object, trainer: str) -> None:
    raise _TimeIsUp


class _RaisingHandler:
    def method(self, *_: object) -> None:
        raise _TimeIsUp

    def __call__(self, *_: object) -> None:
        raise _TimeIsUp


class _LooksAtFrames:
    """Has an error of its own in a function that takes a small number and a frame."""

    @hookimpl
    def step_start(self) -> None:
        self.walk(1, sys._getframe().f_back)

    def walk(self, depth: int, frame: object) -> None:
        raise _TimeIsUp


def test_a_function_with_a_number_and_a_frame_is_no_signal_handler(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    bus.register(_LooksAtFrames())
    bus.step_start(iteration=1)
    assert "passed over" in caplog.text


class _Signalled:
    """Gets a signal while it hears a step."""

    @hookimpl
    def step_start(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


class _SignalledWrapper:
    @hookimpl(wrapper=True)
    def step_start(self) -> Iterator[None]:
        signal.raise_signal(signal.SIGUSR1)
        yield


@pytest.mark.parametrize("kind", [_Signalled, _SignalledWrapper])
@pytest.mark.parametrize(
    "handler",
    [
        _raise_in_function,
        _RaisingHandler().method,
        _RaisingHandler(),
        functools.partial(functools.partial(_raise_in_function, "trainer"), "more"),
        functools.partial(_raise_with_a_keyword, trainer="trainer"),
        _remove_itself_and_raise,
        functools.partial(_remove_itself_and_raise_with, "trainer"),
    ],
)
def test_what_a_signal_handler_raises_is_the_trainings_when_all_have_heard(
    handler: Any, kind: type[object], caplog: pytest.LogCaptureFixture
) -> None:
    """It was swallowed as an error of the plugin that ran when the signal came: an order to save and end was lost."""
    bus, heard = EventBus(), list[Any]()
    bus.register(Step("before", heard))
    bus.register(kind())
    bus.register(Step("after", heard))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(_TimeIsUp):
            bus.step_start(iteration=1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(heard) == 2
    assert f"_TimeIsUp was raised while plugin {__name__}.{kind.__name__} " in caplog.text
    assert "passed over" not in caplog.text
