"""Make a text that came from a rank safe to print: it must not control a terminal, nor look like a message of ours."""

from __future__ import annotations

__all__ = ["readable"]

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"}
# Some readers take the first two for ends of lines; the others turn the direction of all that follows.
_CONTROLS |= {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def readable(line: str, prefix: str = "") -> str:
    """Return one line of a message with its control characters escaped.

    A line feed in it stays, since a text of several lines is easier to read. Each line that follows is indented, so it
    cannot look like the beginning of another message.

    Args:
        line: Without the line's end.
        prefix: What every line begins with, those that follow a line feed, too.
    """
    return prefix + line.translate(_CONTROLS).replace("\n", f"\n{prefix}    ")
