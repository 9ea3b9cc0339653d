"""What is left of a URL where it is told or written: its scheme and its host; and of a long text, its two ends.

User and password are secrets; the query most often is, and of a webhook the path, too. Standard library only, for the
process that tells events.
"""

from __future__ import annotations

import re

__all__ = ["redacted", "redacted_url", "shortened"]

# The length of a scheme has a bound, so that text without a URL is searched in linear time.
_SCHEME = r"[a-z][a-z0-9+.-]{0,30}://"
_URL = re.compile(rf"({_SCHEME})(\S*)", re.IGNORECASE)
_WHOLE_URL = re.compile(rf"({_SCHEME})(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(?:[\w.-]*|\[[0-9a-f:.]*\]?)(?::[0-9]{0,5})?", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^/?#\\]*")
_AFTER_A_URL = "'\"`),.;:>]}"
"""What may follow a URL in a sentence without a blank."""


def redacted(text: str) -> str:
    """Return a text with each URL in it as ``scheme://host/***``, where it has more than scheme and host."""
    return _URL.sub(lambda found: _shown(found[1], found[2]), text)


def redacted_url(url: str) -> str:
    """Return one URL so, whatever it holds: one with a blank in it, which is none, does not go on behind that."""
    found = _WHOLE_URL.fullmatch(url)
    return url if found is None else _shown(found[1], found[2])


def shortened(text: str, longest: int = 160) -> str:
    """Return a text with its middle left out where it is longer than so many characters.

    To be called with what :func:`redacted` returns: of half a URL it cannot tell which part is secret.
    """
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end]}...{text[-end:]} ({len(text)} characters)"


def _shown(scheme: str, rest: str) -> str:
    bare = rest.rstrip(_AFTER_A_URL)
    after = rest[len(bare) :]
    authority = _AUTHORITY.match(bare)
    assert authority is not None
    _user, at, host = authority[0].rpartition("@")
    path = bare[authority.end() :]
    # With an @ further on, what looks like the host may be a user and the beginning of a password with a / in it.
    if "@" in path or not _HOST.fullmatch(host):
        return f"{scheme}***{after}"
    return f"{scheme}{host}{'/***' if at or path not in ('', '/') else path}{after}"
