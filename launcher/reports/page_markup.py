"""Markup that cannot be broken out of: whatever was not made by :func:`element` is text, and is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

from launcher.records.readable import readable

__all__ = ["LONGEST_TEXT", "Markup", "Part", "element", "joined", "plain"]

LONGEST_TEXT = 4000
"""How many characters of one text from outside are shown, so that no message makes a page too large."""
_DIRECTION_MARKS = {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, 0x061C, 0xFEFF)}
_WITHOUT_END = ("br", "col", "line", "link", "meta", "path", "rect", "use")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Part: TypeAlias = "str | int | Iterable[Part] | None"


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text from outside as it may be shown: without control characters, and not endless.

    Args:
        text: It may hold anything, halves of surrogate pairs from names of files, too.
        longest: How many characters of it are kept.
    """
    kept = text if len(text) <= longest else f"{text[:longest]} … ({len(text) - longest:,} more characters)"
    lines = (readable(line.rstrip("\r")).translate(_DIRECTION_MARKS) for line in kept.split("\n"))
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode("utf-8")


def joined(parts: Iterable[Part]) -> Markup:
    """Return the markup of several parts, one after the other; None is nothing, and text is escaped."""
    return Markup("".join(_markup(part) for part in parts))


def element(name: str, /, *parts: Part, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Args:
        name: Of the element.
        parts: What is in it.
        attributes: ``_`` in a name stands for ``-``, and one at the end is dropped (``class_``). None and False leave
            the attribute out; True gives it no value.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _WITHOUT_END and not parts:
        return Markup(f"<{opening}/>" if name in ("line", "path", "rect", "use") else f"<{opening}>")
    return Markup(f"<{opening}>{joined(parts)}</{name}>")


def _markup(part: Part) -> str:
    if isinstance(part, Markup):
        return part
    if part is None:
        return ""
    if isinstance(part, str):
        return html.escape(plain(part))
    if isinstance(part, int):
        return str(part)
    return joined(part)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(plain(text, 200_000))}"'
