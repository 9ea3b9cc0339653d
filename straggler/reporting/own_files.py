"""Whether a file at a path that the user has named is one of ours, so that nothing else is written over.

A file of ours begins with a marker, also where the rest was cut off by a full disk or a loss of power. One that is
empty, or holds zero bytes only, as after a loss of power, is nobody's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

__all__ = ["begins_as", "not_replaceable_because"]

_CHUNK = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def begins_as(head: bytes, format_name: str) -> bool:
    """Return whether a file is ours, or nobody's, by its first bytes.

    Args:
        head: The first bytes.
        format_name: What ``format`` says, the first name of the JSON object at the beginning.
    """
    marker = f'{{"format":"{format_name}"'.encode()
    is_strange = False
    *ended, last = head.split(b"\n")
    for line in (*ended, last):
        text = line.strip(b"\0 \r\t")
        start = re.sub(rb"^\{ *|: *", lambda found: found[0].strip(), text[: 2 * len(marker)])
        if start.startswith(marker):
            return True
        if not start or (line is last and marker.startswith(start)):  # cut off in the marker
            continue
        if b"\0" not in line and not marker.startswith(start):
            return False
        is_strange = True  # a line of ours of which most is lost, or a file of another kind
    return not is_strange


def not_replaceable_because(path: Path, is_ours: Callable[[bytes], bool]) -> str:
    """Return why what is at a path must stay as it is, ``""`` where nothing is there, or a file that is ours.

    Args:
        path: Links are followed.
        is_ours: Tells by the first bytes whether a file is ours, or nobody's.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # the write says why it cannot be looked at
        return ""
    if not stat.S_ISREG(mode):
        return f"it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}"
    try:
        with path.open("rb") as file:
            head = file.read(_CHUNK)
            while head and not head.strip(b"\0"):
                head = file.read(_CHUNK)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "" if is_ours(head) else "it holds something else"
