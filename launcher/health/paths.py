"""Whether a folder can be written: a small file is written, synced and removed, and there is room for more."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

from launcher.health.check import Context
from launcher.health.sizes import shown

__all__ = ["LEAST_PATH_BYTES", "LEAST_SHM_BYTES", "FolderCheck", "shared_memory_check"]

LEAST_PATH_BYTES = 64 << 20
LEAST_SHM_BYTES = 16 << 20
"""A container has 64 MiB in /dev/shm unless more is asked for, and the run folder needs some."""
_LEAST_INODES = 64
_CONTENT = bytes(4096)
_ADVICE = {
    errno.EROFS: "it is mounted read-only, most often after an error of the device (dmesg); mount it again",
    errno.ENOSPC: "make room there (df, df -i)",
    errno.EDQUOT: "make room in the quota there (quota)",
    errno.EACCES: "let the user of ft_launcher write there",
    errno.EPERM: "let the user of ft_launcher write there",
    errno.ENOENT: "create it, or mount what it belongs to",
    errno.ENOTDIR: "name a folder",
    errno.ESTALE: "the server has forgotten it; mount it again",
    errno.EIO: "its device or server has failed (dmesg)",
}


class FolderCheck:
    """One folder. It is a check of its own, so that a file system that does not answer hides no other.

    Args:
        name: Of the check.
        path: The folder.
        bound_seconds: How long an answer may take.
        least_bytes: Bytes that must be free for this user.
        syncs: Whether to wait until the file is on its device.
    """

    def __init__(
        self, name: str, path: str, bound_seconds: float, least_bytes: int = LEAST_PATH_BYTES, *, syncs: bool = True
    ) -> None:
        self.name, self.path, self.bound_seconds = name, path, bound_seconds
        self._least_bytes, self._syncs = least_bytes, syncs

    def check(self, context: Context) -> str | None:
        """Look at the room, then write."""
        step = "looking at it"
        context.tell(f"{self.path}: {step}")
        try:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if (lack := self._lack()) is not None:
                return lack
            step = "writing a file"
            context.tell(f"{self.path}: {step}")
            self._write()
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "see dmesg and the storage's own messages")
            return f"{self.path} cannot be used, at {step}: {error.strerror}; {advice}"
        return None

    def _lack(self) -> str | None:
        found = os.statvfs(self.path)
        free = found.f_bavail * found.f_frsize
        if free < self._least_bytes:
            return (
                f"{self.path} has {shown(free)} free for this user, and {shown(self._least_bytes)} must be; make room "
                f"there (df), or ask for less in health_checks"
            )
        if found.f_files and found.f_favail < _LEAST_INODES:  # a file system without a fixed number says 0
            return (
                f"{self.path} has room for {found.f_favail} more files (inodes), and {_LEAST_INODES} must be free; "
                "remove some there (df -i)"
            )
        return None

    def _write(self) -> None:
        path = os.path.join(self.path, f".ft-health-{os.uname().nodename}-{secrets.token_hex(8)}")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                left = memoryview(_CONTENT)
                while left:
                    left = left[os.write(file, left) :]
                if self._syncs:
                    os.fsync(file)
            finally:
                os.close(file)  # raises, too: with NFS an error may show only here
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        os.unlink(path)


def shared_memory_check(dev: str, bound_seconds: float, least_bytes: int = LEAST_SHM_BYTES) -> FolderCheck:
    """Return the check of shared memory, in which loaders of data, NCCL and the launcher keep theirs."""
    return FolderCheck("shm", os.path.join(dev, "shm"), bound_seconds, least_bytes, syncs=False)
