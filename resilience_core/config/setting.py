"""Metadata of the configuration's fields: converter, unit, meaning, and the name in errors.

The class that holds the fields is in :mod:`resilience_core.config.schema`. Its converters are plain functions that
raise ``ValueError`` with the fix, so that type checkers read what a field accepts from them; what is added here names
the field and the value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from resilience_core.config.nvrx_keys import why_ignored
from resilience_core.errors import ConfigError
from resilience_core.redaction import redacted, shortened
from resilience_core.suggestions import nearest

__all__ = [
    "Setting",
    "checked_and_documented",
    "convert",
    "described",
    "name_in_errors",
    "settings_of",
    "unknown_key",
]

T = TypeVar("T")
_LONGEST_FIX = 1200
"""Of the text of a fix, which may list all names that there are, and may repeat a part of the value."""


@attrs.frozen
class Setting:
    """What is known about one field of the configuration, for its checks, its option and the documentation.

    Args:
        name: The field's name.
        default: Its default.
        metavar: Its unit or form.
        meaning: One or two sentences.
        convert: Raw value to checked value; raises ``ValueError`` with the fix.
        shown: Raw value to what an error shows of it.
    """

    name: str
    default: Any
    metavar: str
    meaning: str
    convert: Callable[[Any], Any] = attrs.field(repr=False)
    shown: Callable[[Any], str] = attrs.field(default=repr, repr=False)


def described(metavar: str, meaning: str, shown: Callable[[Any], str] = repr) -> dict[str, Any]:
    """Return the ``metadata`` of a field: its unit or form, one or two sentences, and what errors show of a value."""
    return {"metavar": metavar, "meaning": meaning, "shown": shown}


def name_in_errors(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Let each described field's converter name field and value when it refuses; a ``field_transformer`` of attrs."""
    return [_naming(field) if field.metadata else field for field in fields]


def _naming(field: attrs.Attribute[Any]) -> attrs.Attribute[Any]:
    described_field = field.evolve(metadata={**field.metadata, "convert": field.converter})
    return described_field.evolve(converter=functools.partial(convert, _setting(described_field), label=field.name))


def _setting(field: attrs.Attribute[Any]) -> Setting:
    default = {} if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
    return Setting(name=field.name, default=default, **field.metadata)


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the described fields of a class, in their order."""
    return tuple(_setting(field) for field in attrs.fields(cls) if field.metadata)


def convert(setting: Setting, value: Any, label: str, written: str | None = None) -> Any:
    """Check one raw value.

    Args:
        setting: The field that it is meant for.
        value: What was written.
        label: The place as a person knows it, to begin the error message with.
        written: How the value stands there, where that differs from Python's view of it.

    Raises:
        ConfigError: Label, value and fix.
    """
    try:
        return setting.convert(value)
    except ValueError as error:
        shown = shortened(redacted(_shown(setting, value, written)))
        raise ConfigError(f"{label} is {shown}: {shortened(str(error), _LONGEST_FIX)}") from None


def _shown(setting: Setting, value: Any, written: str | None) -> str:
    if written is not None and setting.shown is repr:
        return written
    try:
        return setting.shown(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number with too many digits to show"


def unknown_key(key: str, place: str, known: Iterable[str]) -> ConfigError:
    """Make the error of a key that is no setting; it names the nearest one."""
    return ConfigError(f"unknown key '{shortened(key)}' in {place}{nearest(shortened(key), known)}")


def checked_and_documented(cls: type[T]) -> type[T]:
    """Complete a class of settings; a class decorator that type checkers need not see through.

    A keyword that is no setting is refused as in a file, not with Python's error. The docstring gets the settings with
    their meanings, so that an option's help, the documentation and ``help()`` have one text.
    """
    settings = settings_of(cls)
    setattr(cls, "__init__", _refusing_unknown(cls, settings))  # noqa: B010 - mypy allows no other assignment
    arguments = "".join(f"        {s.name}: {s.meaning} [{s.metavar}]\n" for s in settings)
    cls.__doc__ = (cls.__doc__ or "").replace("\n    Raises:", f"\n    Args:\n{arguments}\n    Raises:")
    return cls


def _refusing_unknown(cls: type, settings: Iterable[Setting]) -> Callable[..., None]:
    construct: Callable[..., None] = cls.__init__  # type: ignore[misc]
    names = {field.name for field in attrs.fields(cls)}
    known = [setting.name for setting in settings]

    @functools.wraps(construct)
    def checked(self: object, *args: Any, **given: Any) -> None:
        for key in given.keys() - names:
            place = f"{cls.__name__}(...)"
            if (why := why_ignored(key)) is not None:
                raise ConfigError(f"key '{key}' in {place} means nothing here: {why}; leave it out")
            raise unknown_key(key, place, known)
        construct(self, *args, **given)

    return checked
