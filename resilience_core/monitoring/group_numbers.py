"""A thread of the rank that tells how far it is in the collectives of each process group, when its monitor asks.

It tells the stacks of all threads, too (:mod:`resilience_core.protocol.stack_question`). While an exception may be
under way in the thread that trains, it looks whether that was caught (:mod:`resilience_core.monitoring.propagation`).
All of this has to be known while that thread waits for its peers.

Sketched were, beside it:

* *The signal for stacks writes the numbers, too.* No Python runs in faulthandler's handler, and a handler of Python
  would run only once the main thread is back from the collective in which it hangs.
* *The rank notes the numbers with what it writes at the end of a section.* That costs each step, and tells how far it
  was before the step that hangs.
* *The debug pipe of NCCL's flight recorder* (``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``). torch looks at it once a second, it
  has to be set up in the environment of every rank, knows nothing of gloo, and is answered by a pickle.
* *torch's own server of such figures* (``torch.distributed.elastic.control_plane``): a server with a pool of threads.

A thread that reads from a pipe costs nothing until it is asked, and answers while the main thread waits in a
collective, which lets go of the GIL. Where that is kept, the thread cannot answer: such a rank waits in no collective.

What it asks torch for makes no CUDA call, but for the names of collectives of NCCL that are not done (event queries,
as torch's own watchdog makes them all the time). It is therefore asked for last.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from resilience_core.protocol.group_numbers import ANSWERS, MOST_GROUPS, QUESTIONS, GroupNumber, GroupNumbers
from resilience_core.protocol.stack_question import END_OF_STACKS, STACKS_QUESTION, THREADS, main_thread_stack
from resilience_core.system.plain_files import only_plain

__all__ = ["NumbersThread", "answers_to", "has_groups", "start_answering"]

logger = logging.getLogger(__name__)

_C10D = "torch.distributed.distributed_c10d"
_WAKE_UP = b"\n"
_LONGEST_QUESTION = 200
_FIRST_LOOK_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 1.0
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
"""What a fault of the thread itself raises; it must not be blocked."""


class NumbersThread(threading.Thread):
    """Waits for questions beside a cell, and answers them there.

    Args:
        cell_path: Of the cell.
        look: Is called before each answer, and again, after pauses that get longer, for as long as it returns True.

    Raises:
        OSError: The pipe or the file cannot be made.
    """

    def __init__(self, cell_path: str, look: Callable[[], bool] = lambda: False) -> None:
        super().__init__(name="ft_groups", daemon=True)
        self._pid = os.getpid()
        self._path = cell_path + QUESTIONS
        self._look = look
        self._is_told_to_stop = False
        self._open = threading.RLock()  # the number of a pipe that is closed may be another file's
        with contextlib.suppress(FileNotFoundError):  # of an earlier client of this process
            os.unlink(self._path)
        os.mkfifo(self._path, 0o600)
        # Both ends, so that a read waits for the next question once the monitor has closed its end.
        self._questions = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        opened = [self._questions]
        try:
            for answers in (ANSWERS, THREADS):
                opened.append(only_plain(cell_path + answers, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        self._answers, self._stacks = opened[1:]

    def run(self) -> None:
        """Answer until told to stop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        poller = select.poll()
        poller.register(self._questions, select.POLLIN)
        pause: float | None = None
        while True:
            question = b""
            if poller.poll(None if pause is None else pause * 1000):
                question = os.read(self._questions, _LONGEST_QUESTION)
                pause = _FIRST_LOOK_SECONDS / 2
            if self._is_told_to_stop:
                break
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS) if self._look() and pause is not None else None
            names = _names_in(question)
            if STACKS_QUESTION in names:
                self._write_stacks()
            numbered = [name for name in names if name != STACKS_QUESTION]
            if name := numbered[-1] if numbered else "":  # of several, the last one is waited for
                with contextlib.suppress(OSError):  # no room, or a folder that is gone
                    for line in answers_to(name):
                        os.write(self._answers, line.encode())
        self.close()

    def _write_stacks(self) -> None:
        main = threading.main_thread().ident
        with contextlib.suppress(OSError):
            frame = sys._current_frames().get(main or 0)
            os.write(self._stacks, main_thread_stack(main or 0, frame).encode(errors="replace"))
            faulthandler.dump_traceback(self._stacks, all_threads=True)
            os.write(self._stacks, f"\n{END_OF_STACKS}".encode())

    def stop(self) -> None:
        """Answer no more; does not wait for that."""
        # A child that was forked has the descriptors and not the thread.
        if self._pid != os.getpid() or self._is_told_to_stop:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with self._open:
            self._is_told_to_stop = True
            self._wake_up()

    def look_soon(self) -> None:
        """Have ``look`` called within milliseconds."""
        with self._open:
            if self._pid == os.getpid() and not self._is_told_to_stop:
                self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # so full of questions that it wakes up in any case
            os.write(self._questions, _WAKE_UP)

    def close(self) -> None:
        """Let go of the pipe and the file; the thread does so when it ends."""
        with self._open:
            os.close(self._questions)
            os.close(self._answers)
            os.close(self._stacks)


def has_groups() -> bool:
    """Return whether this process has a process group of torch.

    Without one there is nothing to tell, and no thread of ours that Python would warn of where the script forks.
    """
    world = getattr(sys.modules.get(_C10D), "_world", None)
    return bool(getattr(world, "pg_names", None))


def start_answering(cell_path: str, look: Callable[[], bool] = lambda: False) -> NumbersThread | None:
    """Start the thread; None where it cannot be had, which costs the answers and nothing else."""
    thread = None
    try:
        thread = NumbersThread(cell_path, look)
        thread.start()
    except (OSError, RuntimeError) as error:  # RuntimeError: pids.max, RLIMIT_NPROC
        logger.debug("nobody can ask this rank how far it is in its collectives: %s", error)
        if thread is not None:
            thread.close()
        return None
    return thread


def _names_in(questions: bytes) -> list[str]:
    """Return the names of questions; an empty one asks for nothing."""
    return [line for line in questions.decode("ascii", errors="replace").split("\n") if line]


def answers_to(question: str) -> Iterator[str]:
    """Yield the lines of an answer: what can always be had, then the same with what may take longer."""
    try:
        known = _numbers()
        yield known.to_line(question, is_last=False)
        yield _with_recorder(known).to_line(question, is_last=True)
    except Exception:
        logger.debug("cannot tell how far this rank is in its collectives", exc_info=True)


def _numbers() -> GroupNumbers:
    c10d = sys.modules.get(_C10D)
    if c10d is None:
        return GroupNumbers()
    world = c10d._world
    groups = []
    for group, name in list(world.pg_names.items())[:MOST_GROUPS]:
        try:
            number = group._get_sequence_number_for_group()
        except RuntimeError:  # its backend has none
            continue
        backend = world.pg_map[group][0] if group in world.pg_map else ""
        groups.append(GroupNumber(str(name), int(number), group.size(), str(backend), _description(group)))
    return GroupNumbers(tuple(groups))


def _description(group: Any) -> str:
    description = str(getattr(group, "group_desc", ""))
    return "" if description in ("default_pg", "undefined") else description


def _with_recorder(known: GroupNumbers) -> GroupNumbers:
    """Add what the flight recorder knows of what is not done."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    of_all, of_nccl = (getattr(c10d, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"))
    status = [each for dump in (of_all, of_nccl) if dump is not None for each in _status(dump(False, True))]
    # Entries of gloo are never marked as done, so all of them would come: megabytes, while the GIL is held.
    entries = json.loads(of_nccl(True, True)).get("entries", []) if of_nccl is not None else []
    active = [each for each in entries if not each.get("retired")]
    if not status:
        return known
    groups = [
        _undone(group, status, [e for e in active if e["process_group"][0] == group.name]) for group in known.groups
    ]
    return GroupNumbers(tuple(groups), not active and all(done >= called for called, done in status))


def _status(dump: bytes) -> Iterator[tuple[int, int]]:
    """Yield how many collectives of each group were called, and how many are done; groups have other names there."""
    for each in (json.loads(dump).get("pg_status") or {}).values():
        if (called := int(each["last_enqueued_collective"])) >= 0:
            yield called, max(int(each["last_completed_collective"]), 0)


def _undone(group: GroupNumber, status: list[tuple[int, int]], active: list[dict[str, Any]]) -> GroupNumber:
    collectives = [each for each in active if not each.get("is_p2p")]
    for first in (*collectives, *active):
        operation = str(first["profiling_name"]).rpartition("nccl:")[2]
        number = int(first["collective_seq_id"]) if collectives else None
        return group._replace(operation=operation, first_undone=number)
    firsts = {0 if done >= called else done + 1 for called, done in status if called == group.number}
    return group._replace(first_undone=firsts.pop()) if len(firsts) == 1 else group
