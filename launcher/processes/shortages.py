"""Explain in one line what the system has refused: processes, descriptors, memory or disk space."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

from resilience_core.system.installation import HOME

__all__ = ["explained", "needed_descriptors", "shortage", "too_few_descriptors"]

_ENOUGH_DESCRIPTORS = 1024
_LAUNCHERS_OWN_DESCRIPTORS = 48
"""Run folder, log, control socket, monitor, store, the process and the port of ``--ft-on-event`` and
``--ft-metrics-port``, and files that are open briefly: 35 as measured in restarts, and a third to spare."""
_DESCRIPTORS_PER_WORKER = 10
"""Its cell (three), its figures, its process (two) and its connections to the store: 8 as measured, two of them for
those connections, and two more for scripts and backends that make connections of their own."""
_DESCRIPTORS_PER_COPIED_WORKER = 4
"""With ``--tee``: a file for each of two streams, twice where a copy of the generation before is not done yet."""
_DESCRIPTORS_OF_NODES = 16
_DESCRIPTORS_PER_NODE = 4


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
    """Return an error of ours in words; where another limit than a folder's is the cause, with advice on that."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE, errno.EFBIG):
        return f"{str(error).partition('; ')[0]}; {_ADVICE[cause.errno](cause)}"
    return str(error)


def needed_descriptors(workers: int, nodes: int = 1, *, are_copied: bool = False) -> int:
    """Return how many descriptors a launcher needs in all its restarts, beyond those that it was started with.

    Its monitor needs fewer, and a rank too, as far as torch's and our own go.

    Args:
        workers: How many there are to be on this node.
        nodes: How many there may be.
        are_copied: What they write is copied (``--tee``).
    """
    each = _DESCRIPTORS_PER_WORKER + (_DESCRIPTORS_PER_COPIED_WORKER if are_copied else 0)
    between_nodes = _DESCRIPTORS_OF_NODES + _DESCRIPTORS_PER_NODE * nodes if nodes > 1 else 0
    return _LAUNCHERS_OWN_DESCRIPTORS + each * workers + between_nodes


def too_few_descriptors(needed: int, open_now: int) -> str | None:
    """Raise the limit of descriptors as far as a job needs it; return why it cannot be run if that is impossible.

    With fewer, the exact limit decides what fails first, and some of torch's calls then wait without end. Only the soft
    limit is raised, and not beyond what is needed: programs that use ``select`` or close every possible descriptor do
    badly with a high one.

    Args:
        needed: How many the job needs.
        open_now: How many descriptors this process has.

    Returns:
        None where there are enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = needed + open_now
    if soft == resource.RLIM_INFINITY or soft >= total:
        return None
    try:
        if hard == resource.RLIM_INFINITY or hard >= total:
            resource.setrlimit(resource.RLIMIT_NOFILE, (total, hard))
            return None
    except (OSError, ValueError):  # a sandbox may forbid it
        pass
    said = f"the job needs {total} open files in this process, of which {open_now} are open"
    return f"{said}; {_descriptors(wanted=total)}"


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


def _descriptors(error: OSError | None = None, wanted: int | None = None) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None:
        wanted = max(_ENOUGH_DESCRIPTORS, 2 * soft)
    advice = f"this process may open {_number(soft)} files; allow more before the start: ulimit -n {wanted}"
    is_capped = hard != resource.RLIM_INFINITY and hard < wanted
    return f"{advice} (an administrator has to raise the hard limit, {hard}, first)" if is_capped else advice


def _file_size() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        return "the file system takes no file of that size; name a folder on another one"
    return f"this process may write files of {soft} bytes; allow more before the start: ulimit -f unlimited"


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
    errno.EFBIG: lambda error: _file_size(),
    errno.EDQUOT: lambda error: "make room in the quota there (quota)",
}
