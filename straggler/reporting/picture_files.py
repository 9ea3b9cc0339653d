"""Files of the pictures: what may be written over by default, and what is said where one cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from straggler.errors import ReportLogError
from straggler.reporting.own_files import not_replaceable_because

__all__ = ["MARK", "check_apart", "check_default", "write_picture"]

MARK = "torch-resilience straggler plot"
"""Stands near the beginning of each picture, in the meta element ``generator`` or in the PNG's text ``Software``."""

_MARK_WITHIN = 4096
_SAID = {
    errno.ENOENT: "make its folder first, or name a file in another one",
    errno.ENOTDIR: "name a file in a folder",
    errno.EISDIR: "name a file in it",
    errno.ENOSPC: "free some space, or name a file on another disk",
    errno.EDQUOT: "free some space, or name a file on another disk",
}
"""What to do, by the error's number."""
_SAID_OTHERWISE = "name a file that you may write"


def check_default(path: Path, option: str) -> None:
    """Check that what is at the place of a picture for which no file was named is such a picture, or nobody's.

    Args:
        path: The place, which was made from the log's.
        option: The one that names another.

    Raises:
        ReportLogError: It is something else, which is not to be written over.
    """
    why = not_replaceable_because(path, _is_picture)
    if why:
        raise ReportLogError(
            f"{path} stays as it is: {why}, and was not written by this command; "
            f"name the file to be written with {option} FILE"
        )


def check_apart(log: str | os.PathLike[str], files: Mapping[str, Path]) -> None:
    """Check that no picture would be written over the log, or over the other one.

    Args:
        log: What is drawn.
        files: Where the pictures go, by their kind.

    Raises:
        ReportLogError: Two of them are one file.
    """
    known = {"the log": Path(log)}
    for kind, path in files.items():
        for name, other in known.items():
            if _is_same(path, other):
                raise ReportLogError(f"{path} is {name}, so it is not written; name another file with --{kind} FILE")
        known[f"where the {kind.upper()} goes"] = path


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.resolve() == other.resolve() or path.samefile(other)
    except (OSError, RuntimeError):  # one of them is not there yet; RuntimeError: links that lead in a circle
        return False


def write_picture(path: str | os.PathLike[str], content: bytes, option: str) -> Path:
    """Write a file.

    Args:
        path: The file; what is there is replaced.
        content: All of it.
        option: The one that names it.

    Raises:
        ReportLogError: It cannot be written.
    """
    target = Path(path)
    try:
        target.write_bytes(content)
    except OSError as error:
        what_to_do = _SAID.get(error.errno or 0, _SAID_OTHERWISE)
        raise ReportLogError(
            f"{target} cannot be written: {error.strerror or error}; {what_to_do}, with {option} FILE"
        ) from error
    return target


def _is_picture(head: bytes) -> bool:
    start = head[:_MARK_WITHIN]
    return MARK.encode() in start or not start.strip(b"\0")
