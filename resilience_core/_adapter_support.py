"""Parts of the translator: a run's plugins, simulated faults, cleanups, and the path of its state file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from resilience_core.environment import FAULTS_VARIABLE
from resilience_core.errors import ConfigError, PluginError, StopTraining
from resilience_core.event_bus import EventBus
from resilience_core.faults import Fault, FaultInjector, parse_faults
from resilience_core.hookspecs import RunContext

__all__ = [
    "STATE_FILE_NAME",
    "Cleanups",
    "RunPlugins",
    "reason_of",
    "simulated_faults",
    "state_path_in",
]

STATE_FILE_NAME = "ft_state.json"
"""Learned timeouts are kept under this name in whatever folder an adapter is given."""

_ABSENT = object()


class RunPlugins:
    """The plugins that are on a bus for the length of one run.

    Args:
        bus: Which.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._added: list[object] = []
        self._context = RunContext()

    def begin(self, context: RunContext, plugins: Iterable[object], faults: Sequence[Fault]) -> None:
        """Subscribe the plugins of a run and, where there are any, its simulated faults; all of them or none.

        Args:
            context: Who this rank is.
            plugins: Any listeners.
            faults: Simulated ones.

        Raises:
            PluginError: The bus has a monitor of the same kind already.
        """
        self._context = context
        try:
            for plugin in plugins:
                self._add(plugin)
            if faults:
                self._add(FaultInjector(*faults))
        except BaseException:
            self.remove()
            raise

    def simulate(self, faults: Iterable[Fault]) -> None:
        """Subscribe simulated faults after ``setup`` was fired."""
        injector = FaultInjector(*faults)
        self._add(injector)
        injector.setup(context=self._context)

    def _add(self, plugin: object) -> None:
        for other in self._bus.plugins():
            if hasattr(plugin, "client") and type(other) is type(plugin):
                raise PluginError(
                    f"the bus has a {type(plugin).__name__} already, and a rank has one monitor: use one adapter, and "
                    "each of its callbacks once"
                )
        self._bus.register(plugin)
        self._added.append(plugin)

    def remove(self) -> None:
        """Unsubscribe all of them."""
        while self._added:
            self._bus.unregister(self._added.pop())


def simulated_faults(bus: EventBus) -> tuple[Fault, ...]:
    """Return the faults that ``FT_SIMULATED_FAULTS`` asks for, unless they are on the bus already.

    Raises:
        ConfigError: The variable cannot be used.
    """
    if any(isinstance(plugin, FaultInjector) for plugin in bus.plugins()):
        return ()  # installed already, and must not strike twice
    return tuple(parse_faults(os.environ.get(FAULTS_VARIABLE, "")))


def reason_of(error: BaseException) -> str:
    """Return the reason of ``teardown`` for a run that this exception ends."""
    if isinstance(error, StopTraining):
        return "stopped"
    return "signal" if isinstance(error, KeyboardInterrupt) else "exception"


class Cleanups:
    """What is to be called when a run ends, what was added last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def add(self, undo: Callable[[], None]) -> None:
        """Add a function that takes no arguments."""
        self._undo.append(undo)

    def wrap(self, owner: object, method: str, around: Callable[..., Any], is_active: Callable[[], bool]) -> None:
        """Replace a method of one object, where it has one of that name; the cleanup puts it back.

        Args:
            owner: The object.
            method: The method's name.
            around: Called with the original and the arguments.
            is_active: Asked at each call; the original alone is called where it says no.
        """
        undo = _wrap_method(owner, method, around, is_active)
        if undo is not None:
            self._undo.append(undo)

    def run(self) -> None:
        """Call all of them, and forget them."""
        while self._undo:
            self._undo.pop()()


def _wrap_method(
    owner: object, method: str, around: Callable[..., Any], is_active: Callable[[], bool]
) -> Callable[[], None] | None:
    """Replace a method of one object; its class is left alone.

    Args:
        owner: The object.
        method: The method's name.
        around: Called with the original and the arguments.
        is_active: Asked at each call; the original alone is called where it says no.

    Returns:
        What puts the original back; None where the object has no method of that name.
    """
    original = getattr(owner, method, None)
    if original is None:
        return None

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if not is_active():
            return original(*arguments, **named)
        return around(original, *arguments, **named)

    attributes = vars(owner)
    before = attributes.get(method, _ABSENT)
    setattr(owner, method, wrapper)

    def undo() -> None:
        # Somebody may have wrapped the wrapper meanwhile; then it stays, and only passes through.
        if attributes.get(method) is wrapper:
            if before is _ABSENT:
                delattr(owner, method)
            else:
                setattr(owner, method, before)

    return undo


def state_path_in(exp_dir: str | os.PathLike[str] | None, default: str | os.PathLike[str]) -> str:
    """Return where learned timeouts are kept: in ``exp_dir``, else in ``default``, which is made when they are saved.

    Raises:
        ConfigError: ``exp_dir`` was named and is no folder.
    """
    if exp_dir is None:
        return os.path.join(os.fspath(default), STATE_FILE_NAME)
    if not isinstance(exp_dir, (str, os.PathLike)):
        raise ConfigError(f"exp_dir is {exp_dir!r} ({type(exp_dir).__name__}); it must be a path, or None")
    folder = os.fspath(exp_dir)
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise ConfigError(
            f"exp_dir {folder!r} {what}; it must be there, and be the same folder, in every job of this training. "
            "Make it, or leave exp_dir out"
        )
    return os.path.join(folder, STATE_FILE_NAME)
