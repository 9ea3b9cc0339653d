"""Texts as standard output takes them: a rank's section or a node may have any name, and a terminal any encoding."""

from __future__ import annotations

import sys

__all__ = ["encoded"]


def encoded(text: str, errors: str) -> bytes:
    """Return a text in the encoding of standard output.

    Args:
        text: Which.
        errors: What becomes of characters that it has not: ``backslashreplace``, or ``replace`` where columns count.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # it is None where the descriptor is closed
    try:
        return text.encode(encoding, errors)
    except LookupError:
        return text.encode("ascii", errors)
