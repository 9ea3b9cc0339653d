"""Public fakes for people who write adapters, and for our own tests.

A test of an adapter registers an :class:`EventRecorder` on a bus, trains for a few steps with the framework, and
asks whether the events that came out are those of the contract::

    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    train(steps=2, adapter=MyAdapter(bus))
    assert_conforms(recorder, ["setup", ("step_start", {"iteration": 0}), "step_end", ..., "teardown"])

Nothing here imports pytest: a failed check is an ``AssertionError`` that shows both sides.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from resilience_core._conformance import SCRIPTS, Script, ScriptedError, Traits, expected_trace
from resilience_core._event_order import Event, Expected, matches, show, violations
from resilience_core.event_bus import EventBus
from resilience_core.event_bus import bus as default_bus
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, hookimpl
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "SCRIPTS",
    "Event",
    "EventRecorder",
    "Expected",
    "FakeClock",
    "Script",
    "ScriptedError",
    "Traits",
    "assert_conforms",
    "check_adapter",
    "expected_trace",
    "violations",
]


class FakeClock:
    """A monotonic clock that moves only when it is told to.

    Call it for nanoseconds, as ``time.monotonic_ns``; :meth:`monotonic` gives seconds.

    Args:
        start_ns: The first reading, nanoseconds.
    """

    def __init__(self, start_ns: int = 1_000 * NS_PER_SECOND) -> None:
        self.now_ns = start_ns

    def __call__(self) -> int:
        """Return the reading in nanoseconds."""
        return self.now_ns

    def monotonic(self) -> float:
        """Return the reading in seconds."""
        return self.now_ns / NS_PER_SECOND

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> int:
        """Move on, never back.

        Args:
            seconds: How far.
            ns: Nanoseconds more, for a test just before or after a deadline.

        Returns:
            The new reading, nanoseconds.

        Raises:
            ValueError: The step is negative.
        """
        step = round(seconds * NS_PER_SECOND) + ns
        if step < 0:
            raise ValueError(f"a monotonic clock does not go back by {-step} ns")
        self.now_ns += step
        return self.now_ns


class EventRecorder:
    """A bus plugin that keeps every event, in order, with all its arguments."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def names(self) -> list[str]:
        """Return the events' names, in order."""
        return [name for name, _ in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of each event of that name, in order."""
        return [arguments for event, arguments in self.events if event == name]

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Record the event."""
        self.events.append(("setup", {"context": context}))

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Record the event."""
        self.events.append(("step_start", {"iteration": iteration}))

    @hookimpl
    def step_end(self, iteration: int) -> None:
        """Record the event."""
        self.events.append(("step_end", {"iteration": iteration}))

    @hookimpl
    def eval_step_start(self, iteration: int, eval_index: int) -> None:
        """Record the event."""
        self.events.append(("eval_step_start", {"iteration": iteration, "eval_index": eval_index}))

    @hookimpl
    def eval_step_end(self, iteration: int, eval_index: int) -> None:
        """Record the event."""
        self.events.append(("eval_step_end", {"iteration": iteration, "eval_index": eval_index}))

    @hookimpl
    def checkpoint_start(self, iteration: int, kind: CheckpointKind) -> None:
        """Record the event."""
        self.events.append(("checkpoint_start", {"iteration": iteration, "kind": kind}))

    @hookimpl
    def checkpoint_end(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> None:
        """Record the event."""
        self.events.append(("checkpoint_end", {"iteration": iteration, "kind": kind, "error": error}))

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """Record the event."""
        self.events.append(("checkpoint_loaded", {"iteration": iteration, "source": source}))

    @hookimpl
    def training_error(self, error: BaseException, iteration: int) -> None:
        """Record the event."""
        self.events.append(("training_error", {"error": error, "iteration": iteration}))

    @hookimpl
    def teardown(self, reason: str) -> None:
        """Record the event."""
        self.events.append(("teardown", {"reason": reason}))


def assert_conforms(trace: EventRecorder | Iterable[Event], expected: Sequence[Expected] | None = None) -> None:
    """Fail unless a trace keeps the contract and, where given, is the expected one.

    Args:
        trace: A recorder, or its events.
        expected: Names, or names with the arguments that matter, in order; ``...`` stands for any events.

    Raises:
        AssertionError: Says what is wrong and shows the trace.
    """
    events = list(trace.events if isinstance(trace, EventRecorder) else trace)
    wrong = violations(events)
    if expected is not None and not matches(events, list(expected)):
        wanted = "\n".join(f"  {show(item)}" for item in expected)
        wrong.append(f"the events are not the expected ones, which are:\n{wanted}")
    if wrong:
        shown = "\n".join(f"  {index}: {show(event)}" for index, event in enumerate(events))
        raise AssertionError("\n".join(wrong) + f"\nthe trace:\n{shown}")


def check_adapter(
    train: Callable[[Script, Path], None],
    folder: Path,
    traits: Traits | None = None,
    *,
    scripts: Sequence[Script] = SCRIPTS,
    on: EventBus | None = None,
) -> dict[str, list[Event]]:
    """Play every script through an adapter, and fail unless the events are those of the contract.

    Args:
        train: Trains as the script says, with checkpoints in the folder. It calls ``script.act`` in each step, and
            lets out the ``ScriptedError``; after SIGTERM it may return, or let out a ``SystemExit``. It must handle
            SIGTERM itself: a handler from before is set aside, and without one of its own no signal is sent.
        folder: An empty folder.
        traits: The framework's own way.
        scripts: Which trainings, in order.
        on: The bus that the adapter fires on; the process's default one when None.

    Returns:
        The events of each script, by its name.

    Raises:
        AssertionError: Says which script, what is wrong, and shows the trace.
    """
    bus = default_bus() if on is None else on
    traces: dict[str, list[Event]] = {}
    for script in scripts:
        recorder = EventRecorder()
        bus.register(recorder)
        ended = "completed"
        try:
            with _default_sigterm():
                train(script, folder)
        except ScriptedError:
            ended = "exception"
        except SystemExit:
            ended = "signal"
        finally:
            bus.unregister(recorder)
        if ended != script.ends and not (ended == "completed" and script.ends == "signal"):
            raise AssertionError(f"script '{script.name}' should have ended by {script.ends}, and ended by {ended}")
        try:
            assert_conforms(recorder, expected_trace(script, traits))
        except AssertionError as error:
            raise AssertionError(f"script '{script.name}': {error}") from None
        traces[script.name] = recorder.events
    return traces


@contextlib.contextmanager
def _default_sigterm() -> Iterator[None]:
    """Set aside whatever handles SIGTERM, so that what is found there later is the training's own."""
    if threading.current_thread() is not threading.main_thread():  # handlers cannot be set here, nor by a framework
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
