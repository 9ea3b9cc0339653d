"""Plugins that installed distributions offer: entry points of the group ``resilience``.

A plugin that cannot be loaded is left out with a warning, since training does not depend on it. What was loaded is
logged at the first ``setup``, when the rank's log level is in force.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from resilience_core.config.converters import boolean
from resilience_core.environment import PLUGINS_VARIABLE
from resilience_core.errors import ConfigError, PluginError
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
        """Import the plugin; one that is a class is instantiated without arguments."""
        found: object = self.entry_point.load()
        return found() if inspect.isclass(found) else found


class _Announcement:
    """Says at the first ``setup`` which plugins were loaded, once per node."""

    def __init__(self, loaded: list[InstalledPlugin], unregister: Callable[[object], None]) -> None:
        self._loaded = loaded
        self._unregister = unregister

    @hookimpl(trylast=True)
    def setup(self, context: RunContext) -> None:
        """Log the line; the monitor's listener has brought the log level by now."""
        level = logging.INFO if context.local_rank == 0 else logging.DEBUG
        if level == logging.INFO and not logger.hasHandlers():
            level = logging.WARNING  # nobody has configured logging (plain python): INFO would be seen by nobody
        names = ", ".join(map(str, self._loaded))
        logger.log(level, "loaded plugins: %s; %s=0 or load_plugins: false loads none", names, PLUGINS_VARIABLE)
        self._unregister(self)


def is_switched_on() -> bool:
    """Whether plugins of other distributions are wanted, by ``FT_LOAD_PLUGINS``; ft_launcher sets it for its workers.

    Raises:
        ConfigError: The variable is neither true nor false.
    """
    text = os.environ.get(PLUGINS_VARIABLE, "")
    try:
        return not text.strip() or boolean(text)
    except ValueError as error:
        raise ConfigError(f"{PLUGINS_VARIABLE} is {text!r}: {error}") from None


def register_installed(register: Callable[[object, str], str], unregister: Callable[[object], None]) -> None:
    """Register every installed plugin; warn of one that cannot be imported, made or registered, and go on.

    Args:
        register: As ``EventBus.register``.
        unregister: As ``EventBus.unregister``.
    """
    try:
        found = installed_plugins()
    except Exception as error:
        logger.warning("no plugin was loaded: the installed distributions cannot be read: %r", error, exc_info=error)
        return
    loaded = []
    for plugin in found:
        try:
            register(plugin.load(), plugin.name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            logger.warning(
                "plugin %s of %s %s (%s) was not loaded, and training goes on without it: %s: %s",
                *(plugin.name, plugin.distribution, plugin.version, plugin.entry_point.value),
                *(type(error).__name__, error),
                exc_info=None if isinstance(error, PluginError) else error,
            )
        else:
            loaded.append(plugin)
    if loaded:
        register(_Announcement(loaded, unregister), "loaded plugins")


def installed_plugins() -> list[InstalledPlugin]:
    """Find the entry points of the group, by distribution and name; warn of a distribution that cannot be read."""
    found: list[InstalledPlugin] = []
    for name in distributions_with(PROJECT_NAME):
        try:
            distribution = importlib.metadata.distribution(name)  # the one that an import would find
            offered = [
                InstalledPlugin(entry.name, distribution.metadata["Name"], distribution.version, entry)
                for entry in distribution.entry_points
                if entry.group == PROJECT_NAME
            ]
        except Exception as error:  # noqa: BLE001 - whatever a damaged file leads to
            logger.warning("no plugin of %s was loaded: its entry points cannot be read: %r", name, error)
            continue
        found += offered
    return found
