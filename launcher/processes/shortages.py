"""Explain in one line what the system has refused: processes, descriptors, memory or disk space."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

from resilience_core.system.installation import HOME

__all__ = ["explained", "shortage", "too_few_descriptors"]

_ENOUGH_DESCRIPTORS = 1024
_LAUNCHERS_OWN_DESCRIPTORS = 23
"""Run folder, log, control socket, monitor, store, and files that are open briefly, as measured."""
_DESCRIPTORS_PER_WORKER = 4
"""Its cell (two), its figures, and its process; what its connections to the store need comes on top."""


def shortage(error: BaseException) -> str | None:
    """Return one line about what the system has refused: where, how much there is, and how to get more.

    Returns:
        None where the error says nothing of that kind.
    """
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # Python's word for EAGAIN
        error = OSError(errno.EAGAIN, str(error)).with_traceback(error.__traceback__)
    advice = _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
    if advice is None:
        return None
    assert isinstance(error, OSError)
    of_what = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"the system has refused what ft_launcher needs{_place(error)}: {error.strerror}{of_what}; {advice(error)}"


def explained(error: Exception) -> str:
    """Return an error of ours in words; where no descriptor was left, with advice on that instead of on folders."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return f"{str(error).partition('; ')[0]}; {_ADVICE[cause.errno](cause)}"
    return str(error)


def too_few_descriptors(workers: int, open_now: int) -> str | None:
    """Return why so many workers cannot be started: too few descriptors. None where there are enough.

    With fewer, the exact limit decides what fails first, and some of torch's calls then wait without end.

    Args:
        workers: How many there are to be on this node.
        open_now: How many descriptors this process has.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _LAUNCHERS_OWN_DESCRIPTORS + _DESCRIPTORS_PER_WORKER * workers
    if soft == resource.RLIM_INFINITY or soft - open_now >= needed:
        return None
    return f"{open_now} files are open, and {workers} worker(s) need {needed} more; {_descriptors()}"


def _place(error: BaseException) -> str:
    """Return the innermost line of our own code in the traceback of an error."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        path = os.path.relpath(code.co_filename, HOME) if code.co_filename.startswith(HOME + os.sep) else ""
        if path.startswith(("launcher" + os.sep, "resilience_core" + os.sep)):
            place = f" in {code.co_name} ({path} line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _number(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def _descriptors(error: OSError | None = None) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = (
        f"this process may open {_number(soft)} files; allow more before the start: ulimit -n {_ENOUGH_DESCRIPTORS}"
    )
    is_capped = hard != resource.RLIM_INFINITY and hard < _ENOUGH_DESCRIPTORS
    return f"{advice} (an administrator has to raise the hard limit, {hard}, first)" if is_capped else advice


def _processes(error: OSError) -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return (
        f"this user may have {_number(soft)} processes and threads; allow more before the start: ulimit -u unlimited, "
        "and pids.max of the cgroup (docker run --pids-limit)"
    )


_ADVICE: dict[int, Callable[[OSError], str]] = {
    errno.EMFILE: _descriptors,
    errno.ENFILE: lambda error: "the whole machine has too many files open; raise /proc/sys/fs/file-max",
    errno.EAGAIN: _processes,
    errno.ENOMEM: lambda error: "free memory, or raise memory.max of the cgroup and ulimit -v",
    errno.ENOSPC: lambda error: "make room there (df, df -i)",
    errno.EDQUOT: lambda error: "make room in the quota there (quota)",
}
