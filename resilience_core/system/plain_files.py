"""Open files by path without waiting for the other end, where somebody may have put a pipe or a terminal."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["only_plain", "plain_size"]


def only_plain(path: str, flags: int) -> int:
    """Open a plain file, or a device such as ``/dev/null``; an ``opener`` for the built-in ``open``.

    Args:
        path: Where.
        flags: For ``os.open``.

    Returns:
        A descriptor whose reads and writes wait as usual.

    Raises:
        OSError: It cannot be opened, is a pipe or a socket, or is to be read and is a terminal.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe, not a plain file", path)
    if flags & os.O_ACCMODE == os.O_RDONLY and os.isatty(descriptor):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a terminal, not a plain file", path)
    os.set_blocking(descriptor, True)
    return descriptor


def plain_size(path: str) -> int:
    """Return the size of a file in bytes; -1 where there is none, or it is not a plain one."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
