"""The log folder of a run: made, named, removed where it stays empty."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from typing import Any, NamedTuple

from launcher.processes.background import Background, NotDoneError
from launcher.processes.working_folder import completed, working_folder_phrase
from launcher.records import latest
from resilience_core.errors import ResilienceError

__all__ = [
    "FolderError",
    "Place",
    "as_file_name",
    "check_parent",
    "make_log_folder",
    "new_run_id",
    "place_facts",
    "place_of",
    "remove_if_empty",
]

_LONGEST_NAME_BYTES = 200
_LONGEST_LOOK_SECONDS = 5.0


class Place(NamedTuple):
    """What tells a log folder from a copy of it, which may have its name.

    A path alone is also that of a copy which was put in the place of the folder, an inode number alone that of a folder
    which was moved, or of a snapshot. Both outlast a restart of the machine, and are the same on all nodes that mount a
    file system at the same path; the number of its device is neither.
    """

    log_folder: str
    """Its absolute path, without links."""
    inode: int


def place_of(log_folder: str) -> Place:
    """Return which folder this is.

    Raises:
        OSError: It cannot be looked at.
    """
    return Place(os.path.realpath(log_folder), os.stat(log_folder).st_ino)


def place_facts(log_folder: str, disk: Background) -> dict[str, Any]:
    """Return :func:`place_of` as facts of an event; none where the disk does not answer, which keeps the folder."""
    try:
        return disk.call(lambda: place_of(log_folder), _LONGEST_LOOK_SECONDS)._asdict()
    except (NotDoneError, OSError):
        return {}


def make_log_folder(log_dir: str | None, run_id: str) -> str:
    """Make ``<log_dir>/<run id>``, by default under ``./ft_logs``.

    Raises:
        FolderError: It cannot be made.
    """
    path = completed(os.path.join(log_dir or "ft_logs", as_file_name(run_id)))
    if not os.path.isabs(path):
        raise FolderError(
            f"cannot make the log folder {path} in the {working_folder_phrase()}; go to another, or name an absolute "
            "one with --log-dir"
        )
    try:
        latest.make_room(path)
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"cannot make the log folder {path}: {error.strerror}; name another with --log-dir"
        ) from error
    return path


def as_file_name(run_id: str) -> str:
    """Return a run's name as the name of one file: no folders, none above, no longer than a file system takes."""
    name = re.sub(r"[/\0]", "_", run_id)
    if name in ("", ".", ".."):
        name = name.replace(".", "_") or "_"
    return os.fsencode(name)[:_LONGEST_NAME_BYTES].decode("utf-8", errors="ignore")


def remove_if_empty(log_folder: str) -> None:
    """Take away a log folder that nothing was written to: a job that was refused leaves nothing behind."""
    parent = os.path.dirname(log_folder)
    for folder in (os.path.join(log_folder, "workers"), log_folder, parent if parent.endswith("ft_logs") else ""):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def new_run_id() -> str:
    """Return a run's name for people: when it began, and something that makes it unique."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def check_parent(parent: str) -> None:
    """Refuse a folder in which another user could replace what we make there.

    Raises:
        OSError: It is no folder, belongs to another user than this one and root, or others may write to it and it has
            no sticky bit.
    """
    status = os.stat(parent)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder")
    # In a folder that others may write to without the sticky bit, anybody could put theirs in place of ours.
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid not in (os.getuid(), 0):
        raise PermissionError(errno.EPERM, f"{parent} belongs to another user (uid {status.st_uid})")
    if is_shared and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, f"{parent} can be written by others and has no sticky bit")


class FolderError(ResilienceError):
    """A folder cannot be made or used; the message says which, why, and which option names another."""
