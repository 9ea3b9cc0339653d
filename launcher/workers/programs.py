"""Why a program cannot be started, in words: which file, what is wrong with it, and what to do.

A script without a ``#!`` line runs in a shell, which reads it itself where the kernel refuses; a launcher gets the
kernel's errno alone (``ENOEXEC``), or ``ENOENT`` for a file that is there, whose interpreter is not.
"""

from __future__ import annotations

import errno
import os
import shutil

from launcher.processes.working_folder import working_folder_phrase
from resilience_core.errors import ResilienceError
from resilience_core.system.plain_files import only_plain

__all__ = ["CannotStartError", "cannot_start", "problem_with"]

_OF_THE_FILE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG)
)
_LONGEST_FIRST_LINE = 256


class CannotStartError(ResilienceError):
    """A worker's program cannot be started, and another try would end the same way."""


def problem_with(program: str) -> str | None:
    """Return what is wrong with a program that ``--no-python`` names, as far as that can be told without starting it.

    Args:
        program: A path, or a name that is looked up in ``PATH``.

    Returns:
        The problem and the fix; None where it may well start.
    """
    if shutil.which(program) is not None:
        return None
    if os.path.isdir(program):
        return f"'{program}' is a folder; name the program in it"
    if os.path.isfile(program):
        if os.path.dirname(program):
            return f"'{program}' is not executable: chmod +x {program}"
        return f"'{program}' is looked up in PATH, and is not there; for the one in this folder write ./{program}"
    where = f"({working_folder_phrase()})" if os.path.dirname(program) else "in PATH"
    return f"the program '{program}' does not exist {where}"


def cannot_start(error: OSError, program: str) -> CannotStartError | None:
    """Return what to say where starting a program has failed.

    Args:
        error: What the system said.
        program: What was to be started.

    Returns:
        None where the program is not the reason: no memory, no process numbers left.
    """
    program = os.fspath(error.filename) if isinstance(error.filename, str) else program
    if error.errno not in _OF_THE_FILE:
        return None
    why, fix = error.strerror or "unknown reason", "start it by hand to see what is wrong"
    first_line = _first_line(shutil.which(program) or program)
    if error.errno == errno.ENOEXEC:
        if not first_line.startswith("#!"):
            why = "it has no '#!' line and is no binary for this machine"
            fix = "begin the file with '#!/bin/bash', or name its interpreter: --no-python bash ..."
    elif error.errno == errno.ENOENT and first_line.startswith("#!"):
        interpreter = (first_line[2:].split(maxsplit=1) or [""])[0]
        why = f"its interpreter {interpreter!r}, named in the first line, does not exist"
        fix = "correct the '#!' line" if "\r" not in first_line else "the file has line ends of Windows: remove the \\r"
    elif error.errno in (errno.EACCES, errno.EPERM):
        fix = f"chmod +x {program}; a file system mounted with noexec starts none either"
    return CannotStartError(f"cannot start '{program}': {why}; {fix}")


def _first_line(path: str) -> str:
    try:
        with open(path, "rb", opener=only_plain) as file:
            return file.read(_LONGEST_FIRST_LINE).partition(b"\n")[0].decode("utf-8", errors="replace")
    except OSError:
        return ""
