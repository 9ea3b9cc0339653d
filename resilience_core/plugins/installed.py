"""Plugins that installed distributions offer: entry points of the group ``resilience``.

A plugin that cannot be loaded is left out with a warning, since training does not depend on it. That is so for an
``Exception``, and for the ``SystemExit`` of a module that calls ``sys.exit()`` while it is imported. What a signal
handler of the training raises meanwhile, and any other ``BaseException``, is not the plugin's and is passed on.

What was loaded, and what was not, is logged at the first ``setup``, when the rank's log level is in force. In a process
whose ``setup`` never fires the failures are logged at its exit: before, the level is not known, and without a ``setup``
no event was missed.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import inspect
import logging
import os
import signal
import traceback
from collections.abc import Callable
from typing import NamedTuple

from resilience_core.config.converters import boolean
from resilience_core.environment import PLUGINS_VARIABLE
from resilience_core.errors import ConfigError, PluginError
from resilience_core.exception_text import text_of
from resilience_core.hookspecs import PROJECT_NAME, RunContext, hookimpl
from resilience_core.system.distributions import distributions_with

__all__ = ["InstalledPlugin", "installed_plugins", "is_switched_on", "register_installed"]

logger = logging.getLogger(__name__)


class InstalledPlugin(NamedTuple):
    """One entry point of the group.

    Args:
        name: The entry point's, and the plugin's on the bus.
        distribution: Name of the distribution that offers it.
        version: The distribution's.
        entry_point: Where it is.
    """

    name: str
    distribution: str
    version: str
    entry_point: importlib.metadata.EntryPoint

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"

    def load(self) -> object:
        """Import the plugin; one that is a class is instantiated without arguments.

        Raises:
            PluginError: It is a monitor.
        """
        found: object = self.entry_point.load()
        _refuse_monitor(found)
        return found() if inspect.isclass(found) else found


def _refuse_monitor(found: object) -> None:
    """Refuse a monitor: every adapter brings the one that a rank may have, and would refuse to run beside this one."""
    from resilience_core.plugins.monitor_session import MonitorPlugin  # here: most jobs have no installed plugin

    kind = found if inspect.isclass(found) else type(found)
    if issubclass(kind, MonitorPlugin):
        of_ours = next(each.__name__ for each in kind.__mro__ if each.__module__.startswith("resilience_core."))
        raise PluginError(
            f"{kind.__qualname__} is a monitor ({of_ours}). A rank has one, which the adapter makes, so an installed "
            "plugin cannot be one: derive it from no monitor, or register it in a script that uses no adapter"
        )


class _Failure(NamedTuple):
    """Why something was not loaded, for the log."""

    text: str
    error: BaseException | None = None

    def tell(self) -> None:
        """Log it."""
        logger.warning("%s", self.text, exc_info=self.error)


class _Announcement:
    """Says at the first ``setup`` which plugins were loaded, once per node, and which were not."""

    def __init__(
        self, loaded: list[InstalledPlugin], failures: list[_Failure], unregister: Callable[[object], None]
    ) -> None:
        self._loaded = loaded
        self._failures = failures
        self._unregister = unregister
        self._pid = os.getpid()
        if failures:
            atexit.register(self._tell_failures)

    @hookimpl(trylast=True)
    def setup(self, context: RunContext) -> None:
        """Log the lines; the monitor's listener has brought the log level by now."""
        self._tell_failures()
        self._unregister(self)
        if not self._loaded:
            return
        level = logging.INFO if context.local_rank == 0 else logging.DEBUG
        if level == logging.INFO and not logger.hasHandlers():
            level = logging.WARNING  # nobody has configured logging (plain python): INFO would be seen by nobody
        names = ", ".join(map(str, self._loaded))
        logger.log(level, "loaded plugins: %s; %s=0 or load_plugins: false loads none", names, PLUGINS_VARIABLE)

    def _tell_failures(self) -> None:
        atexit.unregister(self._tell_failures)
        failures, self._failures = self._failures, []
        for failure in failures if os.getpid() == self._pid else ():
            failure.tell()


def is_switched_on() -> bool:
    """Return whether ``FT_LOAD_PLUGINS`` wants plugins of other distributions; ft_launcher sets it for its workers.

    Raises:
        ConfigError: The variable is neither true nor false.
    """
    text = os.environ.get(PLUGINS_VARIABLE, "")
    try:
        return not text.strip() or boolean(text)
    except ValueError as error:
        raise ConfigError(f"{PLUGINS_VARIABLE} is {text!r}: {error}") from None


def register_installed(register: Callable[[object, str], str], unregister: Callable[[object], None]) -> None:
    """Register every installed plugin; go on without one that cannot be imported, made or registered.

    Args:
        register: As ``EventBus.register``.
        unregister: As ``EventBus.unregister``.

    Raises:
        BaseException: What a signal handler has raised meanwhile; see the module.
    """
    found: list[InstalledPlugin] = []
    failures: list[_Failure] = []
    try:
        found, failures = _search()
    except Exception as error:
        if _is_of_a_signal(error):
            raise
        text = f"no plugin was loaded: the installed distributions cannot be read: {error!r}"
        failures.append(_Failure(text, error))
    loaded = []
    for plugin in found:
        try:
            register(plugin.load(), plugin.name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or _is_of_a_signal(error):
                raise
            text = (
                f"plugin {plugin.name} of {plugin.distribution} {plugin.version} ({plugin.entry_point.value}) was not "
                f"loaded, and training goes on without it: {type(error).__name__}: {text_of(error)}"
            )
            failures.append(_Failure(text, None if isinstance(error, PluginError) else error))
        else:
            loaded.append(plugin)
    if loaded or failures:
        register(_Announcement(loaded, failures, unregister), "resilience_core, which names loaded plugins")


def _is_of_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler has raised an exception: one of its frames is of a handler that is installed."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def installed_plugins() -> list[InstalledPlugin]:
    """Find the entry points of the group, by distribution and name; warn of a distribution that cannot be read."""
    found, failures = _search()
    for failure in failures:
        failure.tell()
    return found


def _search() -> tuple[list[InstalledPlugin], list[_Failure]]:
    found: list[InstalledPlugin] = []
    failures: list[_Failure] = []
    for name in distributions_with(PROJECT_NAME):
        try:
            distribution = importlib.metadata.distribution(name)  # the one that an import would find
            offered = [
                InstalledPlugin(entry.name, distribution.metadata["Name"], distribution.version, entry)
                for entry in distribution.entry_points
                if entry.group == PROJECT_NAME
            ]
        except Exception as error:
            if _is_of_a_signal(error):
                raise
            failures.append(_Failure(f"no plugin of {name} was loaded: its entry points cannot be read: {error!r}"))
            continue
        found += offered
    return found, failures
