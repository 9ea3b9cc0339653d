"""Validators of the settings of straggler detection: each names the class, the setting, its value and what fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs

from resilience_core.errors import ConfigError

__all__ = ["check_flag", "check_number", "check_seconds", "check_type", "check_whole", "refuse"]

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
    """Check that a setting is a finite number of seconds above 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]  # is a number
        raise refuse(instance, attribute, value, "seconds above 0")


def check_type(kind: type[Any]) -> Check:
    """Return a validator for instances of a class."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise refuse(instance, attribute, value, f"{kind.__name__}(...)")

    return check
