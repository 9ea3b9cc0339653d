"""The two folders of a run: *run* (in memory, 0700, gone with the launcher) and *log* (stays)."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable

from launcher.records.log_folders import FolderError, check_parent
from launcher.records.private_folders import (
    FOLDER_PREFIX,
    Home,
    clear,
    holds,
    is_private,
    make_home,
    make_lock,
    put_in_place,
    remove_stale,
)

__all__ = ["DEFAULT_PARENT", "RunFolder"]


DEFAULT_PARENT = "/dev/shm"


class RunFolder:
    """A private folder in memory for cells, sockets and the configuration that ranks read.

    What is in it can be lost or damaged while the job runs: somebody empties /dev/shm, fills it, or writes to it.
    :meth:`mend` makes it anew in the same place, :meth:`move` goes on elsewhere.

    Args:
        parent: Where to make it; a tmpfs, since a store to a page that is being written to a disk may wait.

    Raises:
        FolderError: The parent is missing, not writable, full, or belongs to somebody else.
    """

    def __init__(self, parent: str = DEFAULT_PARENT) -> None:
        self._files: dict[str, bytes] = {}
        self._homes: list[Home] = []
        self._settle_in(parent)

    @property
    def path(self) -> str:
        """Where it is now."""
        return self._homes[-1].path

    @property
    def paths(self) -> list[str]:
        """Everywhere it has been, the present place last; all of them are to be removed in the end."""
        return [home.path for home in self._homes]

    @property
    def parts(self) -> list[str]:
        """Paths that must exist."""
        return [os.path.join(self.path, name) for name in ("lock", "cells", *self._files)]

    def write(self, name: str, text: str) -> str:
        """Write a small file that only its owner may read; a reader never finds part of it.

        Returns:
            Its path.

        Raises:
            FolderError: It cannot be written.
        """
        return self._write(name, text.encode("utf-8"))

    def file(self, name: str) -> str:
        """Return the path of a file that :meth:`write` has written."""
        return os.path.join(self.path, name)

    def cell(self, generation: int, local_rank: int) -> str:
        """Return the path of a rank's cell; the generation is part of it, so that none is ever used twice."""
        return os.path.join(self.path, "cells", f"{generation}-{local_rank}")

    def remove_cells(self, generation: int) -> None:
        """Remove what a generation that is over has left."""
        for path in self.paths:
            cells = os.path.join(path, "cells")
            with contextlib.suppress(OSError):  # somebody has removed the folder, and the cells with it
                for name in os.listdir(cells):
                    if name.startswith(f"{generation}-"):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(os.path.join(cells, name))

    def mend(self) -> tuple[list[str], list[str]]:
        """Make anew whatever somebody has removed or damaged.

        Files are compared by what is in them, since no time stamp tells of every change.

        Returns:
            The paths that were missing, and those where something else was than what this object has put there.

        Raises:
            FolderError: It cannot be made.
        """
        home = self._homes[-1]
        try:
            wrong = [path for path in self.parts if not self._is_whole(path)]
            if not wrong:
                return [], []
            damaged = [path for path in wrong if os.path.lexists(path)]
            if not os.path.lexists(home.path):
                self._homes[-1] = make_home(home.path)
                os.close(home.lock)
            elif not is_private(home.path):
                raise PermissionError(errno.EPERM, "another stands in its place")
            else:
                if home.path + "/lock" in wrong:
                    self._homes[-1] = Home(home.path, make_lock(home.path))
                    os.close(home.lock)
                if (cells := os.path.join(home.path, "cells")) in wrong:
                    clear(cells)
                    os.mkdir(cells, 0o700)
        except OSError as error:
            raise FolderError(f"cannot make the run folder {home.path} anew: {error.strerror}") from error
        for name, raw in self._files.items():
            if self.file(name) in wrong:
                self._write(name, raw)
        return [path for path in wrong if path not in damaged], damaged

    def move(self, parents: Iterable[str] | None = None) -> None:
        """Go on in another place, files included.

        Args:
            parents: Where that may be, the best first; by default memory, then the folder for temporary files.

        Raises:
            FolderError: There is none.
        """
        problems = []
        files = dict(self._files)
        for parent in parents if parents is not None else _other_parents():
            if os.path.join(parent, "") == os.path.join(os.path.dirname(self.path), ""):
                continue
            try:
                self._settle_in(parent)
            except FolderError as error:
                problems.append(str(error))
                continue
            try:
                for name, raw in files.items():
                    self._write(name, raw)
                return
            except FolderError as error:
                problems.append(str(error))
                self._leave(self._homes.pop())
        raise FolderError("; ".join(problems) or "there is no other place for the run folder")

    def remove(self) -> None:
        """Remove it with all that is in it."""
        while self._homes:
            self._leave(self._homes.pop())

    def _write(self, name: str, raw: bytes) -> str:
        path, new = self.file(name), self.file(f".{name}-{secrets.token_hex(4)}")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, len(raw))
                os.write(descriptor, raw)
                put_in_place(new, path)
            except OSError:
                os.unlink(new)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise FolderError(
                f"cannot write {path}: {error.strerror}; name another folder in memory with --ft-run-dir"
            ) from error
        self._files[name] = raw
        return path

    def _is_whole(self, path: str) -> bool:
        """Return whether one of :attr:`parts` is what this object has made."""
        name = os.path.basename(path)
        if name in self._files:
            return holds(path, self._files[name])
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if name == "lock":  # a file that is not ours is not locked, and the next launcher would sweep the folder
            return os.path.samestat(status, os.fstat(self._homes[-1].lock))
        return stat.S_ISDIR(status.st_mode)

    def _settle_in(self, parent: str) -> None:
        remove_stale(parent)
        path = os.path.join(parent, f"{FOLDER_PREFIX}{os.getuid()}-{secrets.token_hex(6)}")
        try:
            check_parent(parent)
            self._homes.append(make_home(path))
        except OSError as error:
            raise FolderError(
                f"cannot make the run folder {path}: {error.strerror}; name another folder in memory with --ft-run-dir"
            ) from error

    def _leave(self, home: Home) -> None:
        shutil.rmtree(home.path, ignore_errors=True)
        os.close(home.lock)


def _other_parents() -> list[str]:
    return [DEFAULT_PARENT, f"/run/user/{os.getuid()}", tempfile.gettempdir()]
