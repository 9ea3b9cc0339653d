"""What a hung rank has started and may wait for: workers of a DataLoader, say. Evidence for people; decides nothing.

Only what never waits is read here: the memory of a process that is stuck, its command line included, may take for
ever. Stacks are for ``launcher.incidents.stacks``, within the time that those of the ranks have.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.incidents.frames import Frame, Thread, main_thread
from launcher.incidents.phrases import wait_phrase
from launcher.processes.evidence import kernel_wait
from launcher.processes.proc import child_pids, process_name, process_status, thread_ids

__all__ = ["MOST_STACKS_OF_CHILDREN", "Child", "children_of", "families_of", "most_telling", "with_awaited"]

MOST_STACKS_OF_CHILDREN = 4
"""Of how many a stack is taken, of all ranks together."""
_MOST_CHILDREN = 64
_MOST_THREADS = 256
_WAITING_FILES = ("multiprocessing/", "selectors.py", "threading.py", "queue.py")
_COMMAND_LINE = "<string>"
"""What follows ``python -c``, as multiprocessing starts its own helpers: the resource tracker waits for ever."""
_LOOP_OF_A_WORKER = "torch/utils/data/_utils/worker.py"
_OURS = ("ft_monitor", "ft_parked", "ft_zygote")
"""Names of processes of ours, which a rank may have started (``start_monitor``) and never waits for."""
_WORKER = "pt_data_worker"
"""What torch calls a worker of a DataLoader, which waits for an index in poll(2) where it has nothing to do."""


class Child(NamedTuple):
    """A process below a rank."""

    pid: int
    name: str
    """What it calls itself (``pt_data_worker``)."""
    state: str
    """One letter of proc(5)."""
    kernel_wait: str | None = None
    stack: tuple[Thread, ...] = ()
    stands_out: bool = False
    """It is the only one of its name that the kernel has wait there, while the others of that name wait alike."""
    is_direct: bool = False
    """The rank has started it itself."""
    is_awaited: bool = False
    """The rank's main thread waits for a process that it has started, and most likely for this one."""
    system_call: str | None = None
    """The system call that its main thread sleeps in."""

    @property
    def place(self) -> Frame | None:
        """Where it stands; None where that is not known, or where it waits for something to do."""
        thread = main_thread(self.stack)
        for frame in _since_the_fork(thread.frames) if thread is not None else ():
            is_waiting = frame.package == "python" and frame.file.startswith(_WAITING_FILES)
            if not is_waiting and frame.file != _COMMAND_LINE:
                return None if frame.file == _LOOP_OF_A_WORKER else frame
        return None

    @property
    def is_suspect(self) -> bool:
        """Return whether a rank may well wait for it."""
        if self.state in ("D", "T", "t") or self.is_awaited:
            return True
        return self.place is not None if self.stack else self.stands_out

    def without_most(self) -> Child:
        """Return the same with only the innermost part of its stack."""
        return self._replace(stack=(Thread("MainThread", False, False, (self.place,)),) if self.place else ())

    def __str__(self) -> str:
        wait = wait_phrase(self.system_call, self.kernel_wait)
        place = f", at {self.place}" if self.place is not None else ", unlike its siblings" if self.stands_out else ""
        awaited = ", which the rank seems to wait for" if self.is_awaited else ""
        return f"pid {self.pid} ({self.name}): state {self.state}{wait}{place}{awaited}"


def children_of(pid: int, end: float) -> tuple[Child, ...]:
    """Return the processes below one, its own children first; nothing where they may not be looked at.

    Args:
        pid: Whose.
        end: When to stop, on ``time.monotonic()``: what was found until then has to do.
    """
    found: dict[int, Child] = {}
    own = _pids_below(pid)
    pending = collections.deque(own)
    while pending and len(found) < _MOST_CHILDREN and time.monotonic() < end:
        child = pending.popleft()
        if child not in found and (look := _look(child)) is not None and look.name not in _OURS:
            found[child] = look._replace(is_direct=child in own)
            pending += _pids_below(child)
    return _compared(found.values())


def families_of(pids: Mapping[int, int], seconds: float) -> dict[int, tuple[Child, ...]]:
    """Return the processes below several; each but the last may take half of the time that is left.

    Args:
        pids: Key (say, a local rank) to process, those first that matter most.
        seconds: For all of them together.
    """
    end = time.monotonic() + seconds
    families = {}
    for number, (key, pid) in enumerate(pids.items()):
        now = time.monotonic()
        families[key] = children_of(pid, now + (end - now) / 2 if number + 1 < len(pids) else end)
    return families


def with_awaited(family: Sequence[Child], stack: Sequence[Thread]) -> tuple[Child, ...]:
    """Tell which of its children a rank waits for, going by its main thread's stack."""
    thread = main_thread(tuple(stack))
    library = itertools.takewhile(lambda frame: frame.package, thread.frames if thread is not None else ())
    files = [frame.file for frame in library]
    own = [child for child in family if child.is_direct and child.state not in "ZX"]
    awaited: list[Child] = []
    if "torch/utils/data/dataloader.py" in files:
        awaited = [child for child in own if child.name == _WORKER and _has_work(child)]
    elif any(file == "subprocess.py" or file.startswith("multiprocessing/") for file in files):
        others = [child for child in own if child.name != _WORKER]
        # Of several the one that works; else the youngest, since most programs wait for what they have just started.
        if "subprocess.py" in files or not any(child.is_suspect for child in others):
            awaited = sorted(others, key=lambda child: child.pid)[-1:]
    return tuple(child._replace(is_awaited=child in awaited) for child in family)


def _has_work(worker: Child) -> bool:
    if worker.stack:
        return worker.place is not None
    return worker.state != "S" or (worker.kernel_wait is not None and "poll" not in worker.kernel_wait)


def most_telling(families: Mapping[int, Sequence[Child]]) -> list[Child]:
    """Return the few whose stacks are worth taking: what is stuck or stopped, then what waits unlike most."""
    everybody = [child for family in families.values() for child in family if child.state not in "ZX"]
    alike = collections.Counter((child.name, child.kernel_wait) for child in everybody)
    everybody.sort(key=lambda child: (child.state not in "DTt", alike[child.name, child.kernel_wait]))
    return everybody[:MOST_STACKS_OF_CHILDREN]


def _compared(family: Collection[Child]) -> tuple[Child, ...]:
    alike = collections.Counter((child.name, child.kernel_wait) for child in family)
    others: dict[str, set[str | None]] = {}
    for name, wait in alike:
        others.setdefault(name, set()).add(wait)
    return tuple(
        child._replace(
            stands_out=alike[child.name, child.kernel_wait] == 1
            and any(alike[child.name, wait] > 1 for wait in others[child.name])
            and len(others[child.name]) == 2
        )
        for child in family
    )


def _pids_below(pid: int) -> list[int]:
    try:
        return child_pids(pid, thread_ids(pid)[:_MOST_THREADS])
    except OSError:  # gone meanwhile, or hidden
        return []


def _look(pid: int) -> Child | None:
    status = process_status(pid)
    return None if status is None else Child(pid, process_name(pid), status.state, kernel_wait(pid))


def _since_the_fork(frames: Iterable[Frame]) -> list[Frame]:
    """Return the stack without what the parent was doing when it forked."""
    own: list[Frame] = []
    for frame in frames:
        own.append(frame)
        if frame.function.rpartition(".")[2] == "_bootstrap" and frame.file == "multiprocessing/process.py":
            break
    return own
