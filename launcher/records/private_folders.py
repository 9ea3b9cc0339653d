"""Folders of one process: private, locked while they are in use, removed when nobody holds the lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from typing import NamedTuple

__all__ = [
    "FOLDER_PREFIX",
    "Home",
    "clear",
    "holds",
    "is_held",
    "is_private",
    "make_home",
    "make_lock",
    "put_in_place",
    "remove_stale",
]

FOLDER_PREFIX = "ft_launcher-"


class Home(NamedTuple):
    """The private folder of a launcher and the descriptor of its lock."""

    path: str
    lock: int


def make_home(path: str) -> Home:
    # Made under another name: a launcher that starts at the same moment must not sweep it before it is locked.
    """Make a private folder and lock it."""
    parent, name = os.path.split(path)
    new = os.path.join(parent, f".{name}")
    try:
        os.mkdir(new, 0o700)
        lock = make_lock(new)
        try:
            os.mkdir(os.path.join(new, "cells"), 0o700)
            os.rename(new, path)
        except OSError:
            os.close(lock)
            raise
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Home(path, lock)


def make_lock(folder: str) -> int:
    """Make the file whose lock says that the folder is in use; locked before it has its name."""
    path = os.path.join(folder, f".lock-{secrets.token_hex(4)}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        put_in_place(path, os.path.join(folder, "lock"))
    except OSError:
        os.close(lock)
        raise
    return lock


def clear(path: str) -> None:
    """Take away whatever is found at a path, a folder with all that is in it.

    Raises:
        OSError: It cannot be removed: a file system is mounted there, say.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # Linux, and POSIX, of a folder
            raise
        aside = f"{path}-{secrets.token_hex(4)}"
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def put_in_place(new: str, path: str) -> None:
    """Put a file in its place in one step, whatever is there."""
    try:
        os.rename(new, path)
    except IsADirectoryError:
        clear(path)
        os.rename(new, path)


def holds(path: str, raw: bytes) -> bool:
    """Return whether a path leads to a plain file with exactly this in it. Never waits for the other end of a pipe.

    Raises:
        OSError: No descriptor is left to look with.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and os.read(descriptor, len(raw) + 1) == raw
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_private(path: str) -> bool:
    """Return whether a path is a folder of this user that nobody else may enter."""
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def is_held(folder: str) -> bool | None:
    """Return whether a launcher or its monitor holds the lock of a private folder; None where that cannot be told.

    The lock is tried in shared mode for an instant, by a descriptor that cannot write: neither its holder nor a
    launcher that looks for folders to remove notices, but for leaving one a little longer.
    """
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(os.path.join(folder, "lock"), flags)
    except OSError as error:
        return False if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def remove_stale(parent: str) -> None:
    """Remove folders of ours whose launcher and monitor were both killed: nobody holds their lock."""
    prefix = f"{FOLDER_PREFIX}{os.getuid()}-"
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
