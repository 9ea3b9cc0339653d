"""The log folder of a run: made, named, removed where it stays empty."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time

from launcher.processes.working_folder import completed, working_folder_phrase
from launcher.records import latest
from resilience_core.errors import ResilienceError

__all__ = ["FolderError", "as_file_name", "check_parent", "make_log_folder", "new_run_id", "remove_if_empty"]

_LONGEST_NAME_BYTES = 200


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
