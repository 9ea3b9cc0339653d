"""Converters of the settings for notices; as those in :mod:`resilience_core.config.converters`.

Standard library only: the process that tells events splits its command with the same rule.
"""

from __future__ import annotations

import re
from typing import Any

from resilience_core.redaction import redacted, redacted_url

__all__ = ["SCHEMES", "on_event", "program_shown", "quoted", "scheme_of", "shown"]

SCHEMES = ("http", "https")
_NOTHING = frozenset({"null", "none", "~"})
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_MISTYPED_URL = re.compile(r"https?[:/](?!//)", re.IGNORECASE)
"""What begins a URL that lacks a colon or a slash; ``./http/notify`` is a command in a folder of that name."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=.*", re.DOTALL)
_LONGEST_SHOWN = 80
_HELP = "give a command, for example 'python3 notify.py', or a URL, http://HOST/PATH or https://HOST/PATH"


def scheme_of(text: str) -> str | None:
    """Return the scheme of a URL, in lower case; None for anything else, which is a command."""
    match = _SCHEME.match(text)
    return match["scheme"].lower() if match is not None else None


def shown(value: Any) -> str:
    """Return what messages and logs call a command or a URL, checked or not: no more of it than who is called.

    The arguments of a command may hold a token, as in ``-H 'Authorization: ...'``, and so may the path of a URL.
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join([shown(each) for each in value[:1]] + ['...'] * (len(value) > 1))}]"
    if not isinstance(value, str):
        return repr(value) if value is None or isinstance(value, (bool, int, float)) else type(value).__name__
    text = value.strip()
    if scheme_of(text) is not None:
        return redacted_url(text)
    program, has_more = _first_word(text)
    return f"{program_shown(program)} ..." if has_more else program_shown(program)


def quoted(value: Any) -> str:
    """Return what :func:`shown` does, text between quotation marks."""
    return repr(shown(value)) if isinstance(value, str) else shown(value)


def program_shown(program: str) -> str:
    """Return the first word of a command as messages show it; a variable that is set there keeps its value."""
    if (mistyped := _MISTYPED_URL.match(program)) is not None:
        return f"{mistyped[0]}***"
    text = _ASSIGNMENT.sub(r"\1=***", redacted(program))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _first_word(text: str) -> tuple[str, bool]:
    """Return the first word of a command, and whether there are more."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:  # a quotation mark is not closed
        words = text.split()
    return (words[0], len(words) > 1) if words else ("", False)


def on_event(value: str | None) -> str | None:
    """Read a command or a URL; ``null`` is none. Whether there is such a command is not known here."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{_HELP}; null tells nobody")
    text = value.strip()
    if any(not character.isprintable() and character not in "\t\n" for character in text):
        raise ValueError("holds a control character; remove it")
    scheme = scheme_of(text)
    if scheme is None:
        _check_command(text)
    elif scheme not in SCHEMES:
        raise ValueError(f"the scheme '{scheme}' is not supported: use http:// or https://, or a command")
    else:
        _check_url(text)
    return text


def _check_command(text: str) -> None:
    import shlex  # here, as below: a rank reads its configuration at every restart, and most have no such setting

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({error}): close each quotation mark") from None
    if not words or not words[0]:
        raise ValueError(_HELP)
    if (mistyped := _MISTYPED_URL.match(words[0])) is not None:
        raise ValueError(f"no URL, and no command: write {mistyped[0][:-1].lower()}://HOST/PATH")


def _check_url(text: str) -> None:
    import urllib.parse

    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its text may quote what stands in place of the host or the port: a password
        raise ValueError("no URL: its host or its port is none; write http://HOST:PORT/PATH") from None
    if not host:
        raise ValueError("the URL has no host: write http://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL has a user or a password in it, which would be written to the log; use a command that reads it "
            "from a file, for example curl with --netrc-file"
        )
    if any(character.isspace() or not character.isascii() for character in text):
        raise ValueError("a URL holds no blanks and plain ASCII alone: write other characters as %20 and the like")
