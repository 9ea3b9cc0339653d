"""The settings of health checks, and the checks that they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from launcher.health.check import Check, Context
from launcher.health.command import CommandCheck
from launcher.health.installed import GROUP, InstalledCheck, Offer, installed_checks
from launcher.health.memory import LEAST_MEMORY_BYTES, MemoryCheck
from launcher.health.nic import NicCheck
from launcher.health.nvml import NvmlCheck, has_bindings, has_gpus
from launcher.health.paths import LEAST_PATH_BYTES, LEAST_SHM_BYTES, FolderCheck, shared_memory_check
from launcher.health.sizes import parse_size
from resilience_core.environment import PLUGINS_VARIABLE
from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest

__all__ = ["Chosen", "HealthSettings", "choose"]

T = TypeVar("T")

_BUILT_IN = ("paths", "shm", "memory", "nic", "nvml", "command")
_DEFAULT = ("paths", "shm", "memory")
_YES, _NO = frozenset({"", "1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


class HealthSettings(NamedTuple):
    """What to check, and when.

    Args:
        checks: Names, each with an argument after a colon where it has one; None for the default ones.
        command: The user's command; None for none.
        interval_seconds: Between two looks while ranks run; None for no look.
        timeout_seconds: How long a check may take that has no bound of its own.
        load_installed: Whether checks of other distributions are used.
    """

    checks: tuple[str, ...] | None = None
    command: str | None = None
    interval_seconds: float | None = 60.0
    timeout_seconds: float = 10.0
    load_installed: bool = True

    @classmethod
    def of(cls, config: Any, environ: Mapping[str, str] = os.environ) -> HealthSettings:
        """Take them from the configuration of a job; ``FT_LOAD_PLUGINS=0`` counts as ``load_plugins: false``.

        Args:
            config: A ``FaultToleranceConfig``, whose class needs more than the standard library.
            environ: Where the variable is looked up.

        Raises:
            ConfigError: The variable is neither true nor false.
        """
        switch = environ.get(PLUGINS_VARIABLE, "").strip().lower()
        if switch not in _YES | _NO:
            raise ConfigError(f"{PLUGINS_VARIABLE} is {environ[PLUGINS_VARIABLE]!r}: give true or false")
        return cls(
            config.health_checks,
            config.health_check,
            config.health_check_interval,
            config.health_check_timeout,
            config.load_plugins and switch not in _NO,
        )


class Chosen(NamedTuple):
    """The checks of a node.

    Args:
        checks: With what each gets as arguments.
        notes: What people should know: what was left out, and why.
    """

    checks: tuple[tuple[Check, tuple[str, ...]], ...]
    notes: tuple[str, ...]


def choose(settings: HealthSettings, context: Context) -> Chosen:
    """Make the checks that the settings name.

    Raises:
        ConfigError: A name or an argument cannot be used.
    """
    if settings.checks == ():
        return Chosen((), ())
    notes: list[str] = []
    offers: dict[str, Offer] = {}
    for offer in installed_checks() if settings.load_installed else ():
        if offer.name in (*_BUILT_IN, *offers):
            notes.append(f"health check '{offer.name}' of {offer.distribution} is left out: that name is taken")
        else:
            offers[offer.name] = offer
    named = _arguments(settings.checks or ("default",))
    wanted = dict(named)
    if "default" in wanted:
        _takes_none("default", wanted.pop("default"))
        automatic = [*_DEFAULT, *offers]
        if has_gpus(context.machine):
            if has_bindings():
                automatic.append("nvml")
            elif "nvml" not in named:
                notes.append("GPUs are not checked, as nvidia-ml-py is not installed (extra 'gpu'); install it")
        wanted = {**{name: [] for name in automatic}, **wanted}
    if settings.command is not None:
        wanted.setdefault("command", [])
    checks: list[tuple[Check, tuple[str, ...]]] = []
    for name, arguments in wanted.items():
        if name in offers:
            check = InstalledCheck(offers[name], settings.timeout_seconds, is_named=name in named)
            checks.append((check, tuple(arguments)))
        elif name in _BUILT_IN:
            checks += [(each, tuple(arguments)) for each in _built_in(name, arguments, settings, context)]
        else:
            off = "" if settings.load_installed else f"; installed ones (entry points '{GROUP}') are switched off"
            raise _refused(
                name, f"there is no such check{off}{nearest(name, [*_BUILT_IN, *offers, 'default', 'none'])}"
            )
    return Chosen(tuple(checks), tuple(notes))


def _arguments(items: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        name, colon, argument = item.partition(":")
        found.setdefault(name, []).extend([argument] if colon else [])
    return found


def _built_in(name: str, arguments: list[str], settings: HealthSettings, context: Context) -> list[Check]:
    seconds = settings.timeout_seconds
    if name == "paths":
        # The log folder's path is no setting, so that nothing in it is a size: the id of a job may be 'lr=0.1'.
        own = [] if context.log_dir is None else [FolderCheck(f"paths:{context.log_dir}", context.log_dir, seconds)]
        return [*own, *(_folder(each, seconds) for each in dict.fromkeys(arguments) if each != context.log_dir)]
    if name == "shm":
        return [shared_memory_check(context.machine.dev, seconds, _least(name, arguments, LEAST_SHM_BYTES))]
    if name == "memory":
        return [MemoryCheck(seconds, _least(name, arguments, LEAST_MEMORY_BYTES))]
    if name == "nic":
        return [NicCheck(seconds, tuple(arguments))]
    _takes_none(name, arguments)
    if name == "nvml":
        if not has_bindings():
            raise _refused(name, "nvidia-ml-py is not installed; install the extra 'gpu', or leave 'nvml' out")
        return [NvmlCheck(seconds)]
    if settings.command is None:
        raise _refused(name, "no command is given; give it with --ft-health-check COMMAND")
    return [CommandCheck(settings.command, seconds)]


def _folder(argument: str, seconds: float) -> Check:
    path, equals, size = argument.rpartition("=")
    if not equals or "/" in size:
        path, least = argument, LEAST_PATH_BYTES
    else:
        least = _checked(f"paths:{argument}", parse_size, size)
    if not path.startswith("/"):
        raise _refused(f"paths:{argument}", "give an absolute path, as paths:/data or paths:/data=10G")
    return FolderCheck(f"paths:{path}", path, seconds, least)


def _least(name: str, arguments: list[str], default: int) -> int:
    if len(arguments) > 1:
        raise _refused(f"{name}:{arguments[1]}", f"give one size; {name}:{arguments[0]} stands there already")
    return _checked(f"{name}:{arguments[0]}", parse_size, arguments[0]) if arguments else default


def _checked(item: str, convert: Callable[[str], T], text: str) -> T:
    try:
        return convert(text)
    except ValueError as error:
        raise _refused(item, str(error)) from None


def _takes_none(name: str, arguments: list[str]) -> None:
    if arguments:
        raise _refused(f"{name}:{arguments[0]}", f"'{name}' takes nothing after a colon")


def _refused(item: str, fix: str) -> ConfigError:
    return ConfigError(f"health_checks (--ft-health-checks) has {item!r}: {fix}")
