"""What a stack tells of waiting: whether a rank waits for others, does not, or may do so unseen. Pure.

A collective is a frame of torch. What waits in C (``Work.wait``, ``Store.get``) is no frame of Python, so the source of
the innermost line has to tell. Hardly any other line proves that nobody is waited for: a name may be a bound method, a
loop may poll, a lock may be shared with another rank or let go by the callback of a future, and a file, a pipe or a
child process may be what another rank is to fill or to end. Code that draws conclusions from where a rank stands has to
say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from launcher.incidents.frames import OURS, Frame, Thread, innermost_frame, main_thread

__all__ = [
    "is_entered_by_all",
    "is_for_one",
    "is_for_the_store",
    "lines_that_tell",
    "may_wait_unseen",
    "tells_no_wait",
    "waits_for_peers",
]

_WAITING_FILES = ("torch/distributed/", "torch/futures/", "torch/nn/parallel/distributed.py", "torch/cuda/streams.py")
# DDP's all-reduce runs inside backward; torch.cuda.synchronize waits for whatever NCCL kernel is queued.
_WAITING_FUNCTIONS = ("_engine_run_backward", "synchronize")
# In these nobody goes on before everybody has come; who broadcasts or sends, goes on at once.
_ENTERED_BY_ALL = re.compile("all_reduce|all_gather|all_to_all|reduce_scatter|barrier|monitored_barrier")
# Who sends by gloo or NCCL waits for the one who receives, and for nobody else.
_FOR_ONE = re.compile(r"(batch_)?i?(send|recv)(_\w+)?$")
_CALLS_FOR_ONE = re.compile(r"\b(batch_)?i?(send|recv)\w*\(")
# The wait of a Work, a Future or a Store is a C function, which is no frame; os.wait() waits for a child.
_A_WAIT = re.compile(r"(?<!\bos)\.wait\(|\.is_completed\(|store\w*(\(\))?\.get\(", re.IGNORECASE)
# A variable that holds a store may have any name; the get() of a dictionary does not block.
_MAY_WAIT = re.compile(_A_WAIT.pattern + r"|\.get\(", re.IGNORECASE)
# The get() of a store takes a key alone, that of a queue no text; this one looks something up, and has a default.
_LOOKS_UP = re.compile(r"\benviron\.get\(|\.get\(\s*[rbuf]?(?P<quote>[\"'])[^\"']*(?P=quote)\s*,(?!\s*timeout\b)")
# What else may be called on such a line; any other call may be what does not come back.
_CALLS = re.compile(r"([\w.\])]*)\(")
_KEYWORDS = "if|elif|while|for|in|and|or|not|return|assert|print|len|range"
_NO_OTHER_CALL = re.compile(
    rf"(|{_KEYWORDS}|.*\b(get_future|_get_default_store|get_default_store|"
    r"(all_|reduce|broadcast|barrier|send|isend|recv|irecv|batch_isend)\w*))$"
)
# What surely waits for no other rank, whatever calls it. A short sleep may be part of a loop that polls.
_SLEEPS = re.compile(r"(?:\w+\.)*sleep\((\d[\d_]{0,15}(?:\.\d{0,9})?)(?:e(\d)|\s*\*\*\s*(\d)|\s*\*\s*(\d{1,9}))?\)")
_LOOPS = re.compile(r"while (True|1): pass")
_LEAST_SLEEP_SECONDS = 60
# In these the main thread may wait for what another thread waits for.
_WAITS_FOR_A_THREAD = ("threading.py", "selectors.py")


def waits_for_peers(threads: Sequence[Thread], sources: Mapping[Frame, str]) -> Frame | None:
    """Return the frame in which a rank waits for others; None when it does not, or nothing is known.

    Args:
        threads: Its stacks.
        sources: The source of innermost frames, as far as it is known, as ``SourceReader.lines()`` gives it.
    """
    return _wait_of(main_thread(tuple(threads)), sources)


def tells_no_wait(threads: Sequence[Thread], sources: Mapping[Frame, str], *, sleeps: bool = True) -> bool:
    """Return whether a stack in which :func:`waits_for_peers` finds no wait shows none in another way either.

    Args:
        threads: The rank's stacks.
        sources: As there.
        sleeps: Whether the rank is in interruptible sleep, as one that waits for a store is. One that runs, or sleeps
            uninterruptibly, is in the ``get()`` of something else.
    """
    innermost = innermost_frame(threads)
    if innermost is None:
        return True
    if any(_wait_of(thread, sources) for thread in _threads_to_wait_for(threads, sources)):
        return False
    if innermost.package == "python":
        return True
    return innermost in sources and not (_MAY_WAIT if sleeps else _A_WAIT).search(_code(innermost, sources))


def may_wait_unseen(threads: Sequence[Thread], sources: Mapping[Frame, str]) -> bool:
    """Return whether a rank may wait for others although its stack shows nothing of it, as nearly everywhere.

    It surely does not in a sleep of a minute and more, which only a signal of another rank might end, or in a loop that
    does nothing. The other threads of the training may stand nowhere else, unless they wait for a thread.

    Args:
        threads: The rank's stacks.
        sources: As for :func:`waits_for_peers`.
    """
    main = main_thread(tuple(threads))
    others = [t for t in threads if t is not main and any(not frame.package for frame in t.frames)]
    plain = [t for t in others if t.frames[0].file != "threading.py"]
    return main is None or not all(_waits_for_nobody(thread, sources) for thread in (main, *plain))


def is_entered_by_all(frame: Frame) -> bool:
    """Return whether that frame is a collective which nobody can leave before everybody has entered it."""
    is_collective = frame.file.endswith("torch/distributed/distributed_c10d.py")
    return is_collective and _ENTERED_BY_ALL.match(frame.function) is not None


def is_for_one(frame: Frame, sources: Mapping[Frame, str]) -> bool:
    """Return whether a rank waits there for a message to or from one other, as far as the frame or its line tells."""
    if frame.file.endswith("torch/distributed/distributed_c10d.py"):
        return _FOR_ONE.match(frame.function) is not None
    return _CALLS_FOR_ONE.search(_code(frame, sources)) is not None


def is_for_the_store(frame: Frame) -> bool:
    """Return whether ``init_process_group()`` makes the store there, before any group exists."""
    return frame.file.endswith("torch/distributed/rendezvous.py")


def lines_that_tell(stacks: Sequence[Sequence[Thread]]) -> list[Frame]:
    """Return the frames of several ranks whose source this module asks for, those of main threads first."""
    mains = [innermost_frame(threads) for threads in stacks]
    others = [t.frames[0] for threads in stacks for t in threads if any(not frame.package for frame in t.frames)]
    return [frame for frame in dict.fromkeys((*mains, *others)) if frame is not None]


def _wait_of(thread: Thread | None, sources: Mapping[Frame, str]) -> Frame | None:
    if thread is None or not thread.frames:
        return None
    # Wrappers of the collectives stand between the call and its C function, so the innermost few count.
    for frame in thread.frames[:3]:
        if frame.function in _WAITING_FUNCTIONS or any(place in frame.file for place in _WAITING_FILES):
            return frame
        if not frame.package:
            break  # what calls the user's code, as backward does a hook of autograd, is not what waits
    innermost = thread.frames[0]
    code = _code(innermost, sources)
    if not _A_WAIT.search(code):
        return None
    others = _CALLS.findall(_A_WAIT.sub("", code))
    return innermost if all(_NO_OTHER_CALL.match(name) for name in others) else None


def _threads_to_wait_for(threads: Sequence[Thread], sources: Mapping[Frame, str]) -> list[Thread]:
    """Return the training's other threads, where the main thread stands in a wait that one of them may have to end."""
    main, innermost = main_thread(tuple(threads)), innermost_frame(threads)
    if innermost is None or not (
        innermost.file.endswith(_WAITS_FOR_A_THREAD) or ".acquire(" in _code(innermost, sources)
    ):
        return []
    packages = {id(thread): {frame.package for frame in thread.frames} for thread in threads}
    # Ours wait for a store at times, and the main thread for none of them.
    return [t for t in threads if t is not main and ("" in (of := packages[id(t)]) or of.isdisjoint(OURS))]


def _waits_for_nobody(thread: Thread, sources: Mapping[Frame, str]) -> bool:
    if not thread.frames:
        return False
    code = _code(thread.frames[0], sources).strip()
    if (sleep := _SLEEPS.fullmatch(code)) is not None:
        number, exponent, power, factor = sleep.groups()
        seconds = float(number) ** int(power or 1) * 10.0 ** int(exponent or 0) * int(factor or 1)
        return seconds >= _LEAST_SLEEP_SECONDS
    return _LOOPS.fullmatch(code) is not None


def _code(innermost: Frame, sources: Mapping[Frame, str]) -> str:
    # What waits in the standard library waits in a frame of Python, and seldom for another rank.
    code = sources.get(innermost, "").partition("#")[0] if innermost.package != "python" else ""
    return _LOOKS_UP.sub("(", code)
