"""The two folders of a run: *run* (in memory, 0700, gone with the launcher) and *log* (stays)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time

from resilience_core.errors import ResilienceError

__all__ = ["DEFAULT_PARENT", "FolderError", "RunFolder", "make_log_folder", "new_run_id", "remove_if_empty"]

DEFAULT_PARENT = "/dev/shm"
_PREFIX = "ft_launcher-"


class FolderError(ResilienceError):
    """A folder cannot be made or used; the message says which, why, and which option names another."""


class RunFolder:
    """A private folder in memory for cells, sockets and the configuration that ranks read.

    Args:
        parent: Where to make it; a tmpfs, since a store to a page that is being written to a disk may wait.

    Raises:
        FolderError: The parent is missing, not writable, full, or belongs to somebody else.
    """

    def __init__(self, parent: str = DEFAULT_PARENT) -> None:
        _sweep(parent)
        name = f"{_PREFIX}{os.getuid()}-{secrets.token_hex(6)}"
        self.path = os.path.join(parent, name)
        # Made under another name: a launcher that starts at the same moment must not sweep it before it is locked.
        new = os.path.join(parent, f".{name}")
        try:
            _check_parent(parent)
            os.mkdir(new, 0o700)
            self._lock = os.open(os.path.join(new, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.mkdir(os.path.join(new, "cells"), 0o700)
            os.rename(new, self.path)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise FolderError(
                f"cannot make the run folder {self.path}: {error.strerror}; "
                "name another folder in memory with --ft-run-dir"
            ) from error

    def write(self, name: str, text: str) -> str:
        """Write a small file that only its owner may read.

        Returns:
            Its path.
        """
        path = os.path.join(self.path, name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            raw = text.encode("utf-8")
            os.posix_fallocate(descriptor, 0, len(raw))
            os.write(descriptor, raw)
        except OSError as error:
            raise FolderError(
                f"cannot write {path}: {error.strerror}; name another folder in memory with --ft-run-dir"
            ) from error
        finally:
            os.close(descriptor)
        return path

    def cell(self, generation: int, local_rank: int) -> str:
        """The path of a rank's cell; the generation is part of it, so that none is ever used twice."""
        return os.path.join(self.path, "cells", f"{generation}-{local_rank}")

    def drop_cells(self, generation: int) -> None:
        """Remove what a generation that is over has left."""
        cells = os.path.join(self.path, "cells")
        try:
            names = os.listdir(cells)
        except OSError:  # somebody has removed the folder, and the cells with it
            return
        for name in names:
            if name.startswith(f"{generation}-"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(cells, name))

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def make_log_folder(log_dir: str | None, run_id: str) -> str:
    """Make ``<log_dir>/<run id>``, by default under ``./ft_logs``.

    Raises:
        FolderError: It cannot be made.
    """
    path = os.path.abspath(os.path.join(log_dir or "ft_logs", run_id.replace(os.sep, "_")))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"cannot make the log folder {path}: {error.strerror}; name another with --log-dir"
        ) from error
    return path


def remove_if_empty(log_folder: str) -> None:
    """Take away a log folder that nothing was written to: a job that was refused leaves nothing behind."""
    parent = os.path.dirname(log_folder)
    for folder in (os.path.join(log_folder, "workers"), log_folder, parent if parent.endswith("ft_logs") else ""):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def new_run_id() -> str:
    """A run's name for people: when it began, and something that makes it unique."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _check_parent(parent: str) -> None:
    status = os.stat(parent)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder")
    # In a folder that others may write to without the sticky bit, anybody could put theirs in place of ours.
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid not in (os.getuid(), 0):
        raise PermissionError(errno.EPERM, f"{parent} belongs to another user (uid {status.st_uid})")
    if is_shared and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, f"{parent} can be written by others and has no sticky bit")


def _sweep(parent: str) -> None:
    """Remove folders of ours whose launcher and monitor were both killed: nobody holds their lock."""
    prefix = f"{_PREFIX}{os.getuid()}-"
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            if name.startswith(prefix) and os.lstat(path).st_uid == os.getuid():
                with contextlib.suppress(OSError):
                    descriptor = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path, ignore_errors=True)
                    finally:
                        os.close(descriptor)
