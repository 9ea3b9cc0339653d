"""Checks of what straggler detection is given: each error names the setting, its value and what fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from resilience_core.errors import ConfigError

__all__ = [
    "check_flag",
    "check_function",
    "check_number",
    "check_resources",
    "check_seconds",
    "check_type",
    "check_whole",
    "refuse",
]

_OF_A_PROBE = ("unavailable_because", "start", "watch", "collect", "stop")
_OF_A_STORE = ("set", "get", "add", "check", "delete_key")
_OF_AN_EXCHANGE = ("post", "collect", "close")

_MOST_SECONDS = 1e9

Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def refuse(instance: object, attribute: attrs.Attribute[Any], value: object, expected: str) -> ConfigError:
    """Make the error that refuses the value of a setting.

    Args:
        instance: The settings that are being made.
        attribute: The setting.
        value: What was given.
        expected: What would fit, for people.
    """
    return ConfigError(f"{type(instance).__name__}.{attribute.alias} is {value!r}; expected {expected}")


def check_flag(instance: object, attribute: attrs.Attribute[bool], value: object) -> None:
    """Check that a setting is True or False; text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise refuse(instance, attribute, value, "True or False")


def check_whole(low: int, high: int | None = None) -> Check:
    """Return a validator for whole numbers.

    Args:
        low: The least that fits.
        high: The most that fits; None: no limit.
    """
    expected = f"a whole number from {low}" if high is None else f"a whole number from {low} to {high}"

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < low or (high is not None and value > high):  # type: ignore[operator]  # is an int
            raise refuse(instance, attribute, value, expected)

    return check


def check_number(low: float, high: float) -> Check:
    """Return a validator for numbers.

    Args:
        low: The least that fits.
        high: The most that fits.
    """

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise refuse(instance, attribute, value, f"a number from {low:g} to {high:g}")

    return check


def check_seconds(instance: object, attribute: attrs.Attribute[float], value: object) -> None:
    """Check that a setting is a number of seconds above 0, and no more than some decades."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_SECONDS:
        raise refuse(instance, attribute, value, "seconds above 0")


def check_type(kind: type[Any]) -> Check:
    """Return a validator for instances of a class."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise refuse(instance, attribute, value, f"{kind.__name__}(...)")

    return check


def check_function(name: str, value: object) -> None:
    """Check that an argument is a function, or None.

    Raises:
        ConfigError: It is something else.
    """
    if value is not None and not callable(value):
        raise ConfigError(f"{name} is {value!r}; expected a function, or None")


def check_resources(probes: Any = None, store: Any = None, exchange: Any = None) -> None:
    """Check the objects that a detector works with; None always fits.

    Args:
        probes: A sequence of :class:`straggler.probes.probe.Probe`.
        store: A store of ``torch.distributed``.
        exchange: A :class:`straggler.exchange.exchange.Exchange`.

    Raises:
        ConfigError: One of them lacks what is called.
    """
    if probes is not None:
        if isinstance(probes, (str, bytes)) or not isinstance(probes, Sequence):
            raise ConfigError(f"probes is {probes!r}; expected a list of probes, such as [CpuWallProbe()]")
        for probe in probes:
            if not isinstance(getattr(probe, "name", None), str) or not _has(probe, _OF_A_PROBE):
                raise ConfigError(
                    f"probes has {probe!r}, which is no probe: it needs a name and the methods {', '.join(_OF_A_PROBE)}"
                )
    if store is not None and not _has(store, _OF_A_STORE):
        raise ConfigError(f"store is {store!r}; expected a store of torch.distributed, such as TCPStore(...), or None")
    if exchange is not None and not (_has(exchange, _OF_AN_EXCHANGE) and hasattr(exchange, "world_size")):
        raise ConfigError(f"exchange is {exchange!r}; expected an Exchange, such as LocalExchange(), or None")


def _has(given: object, methods: Sequence[str]) -> bool:
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in methods)
