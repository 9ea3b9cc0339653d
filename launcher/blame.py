"""Who is to blame for a hang. Pure.

In a synchronous job every rank opens ``step`` within microseconds of the others, so which deadline expires first
is a coin. What tells the culprit from its victims: it is stopped, it is behind in iteration, or its stack stands
outside any collective while the others wait inside one. Where none of these tells, nobody is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.stacks import Frame, Thread, main_thread

__all__ = ["Blame", "Suspect", "assign_blame", "waits_for_peers"]

_WAITING_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "torch/cuda/streams.py")
# DDP's all-reduce runs inside backward; torch.cuda.synchronize waits for whatever NCCL kernel is queued.
_WAITING_FUNCTIONS = ("_engine_run_backward", "synchronize")


class Suspect(NamedTuple):
    """One local rank at the moment of the verdict."""

    local_rank: int
    is_condemned: bool
    is_stopped: bool
    iteration: int
    threads: tuple[Thread, ...]


class Blame(NamedTuple):
    """The culprits' local ranks, empty when it cannot be told, and why."""

    local_ranks: tuple[int, ...]
    why: str


def waits_for_peers(threads: Sequence[Thread]) -> Frame | None:
    """The frame in which a rank waits for others; None when it does not, or nothing is known."""
    thread = main_thread(tuple(threads))
    if thread is None or not thread.frames:
        return None
    # Wrappers of the collectives stand between the call and its C function, so the innermost few count.
    for frame in thread.frames[:3]:
        if frame.function in _WAITING_FUNCTIONS or any(place in frame.file for place in _WAITING_FILES):
            return frame
    return None


def assign_blame(suspects: Sequence[Suspect]) -> Blame:
    """Tell the culprit from the victims, from the surest sign to the weakest.

    Args:
        suspects: Every local rank that is alive; at least one is condemned.
    """
    stopped = [s for s in suspects if s.is_stopped and s.is_condemned]
    if stopped:
        return Blame(_ranks(stopped), "the process is stopped (SIGSTOP)")
    iterations = {s.iteration for s in suspects if s.iteration >= 0}
    if len(iterations) > 1:
        behind = [s for s in suspects if s.iteration == min(iterations)]
        if len(behind) < len(suspects):
            return Blame(_ranks(behind), f"behind the others, at iteration {min(iterations)} of {max(iterations)}")
    condemned = [s for s in suspects if s.is_condemned]
    for group in (suspects, condemned):
        known = [s for s in group if s.threads]
        outside = [s for s in known if waits_for_peers(s.threads) is None]
        if len(known) == len(group) and 0 < len(outside) < len(known):
            return Blame(_ranks(outside), "its stack stands outside any collective, the others wait in one")
    if len(condemned) == 1:
        return Blame(_ranks(condemned), "the only rank that is overdue")
    if condemned and all(s.threads and waits_for_peers(s.threads) for s in condemned):
        return Blame((), "every rank here waits for others: the culprit skipped a collective or is on another node")
    return Blame((), "it cannot be told from iterations or stacks which rank held the others up")


def _ranks(suspects: Sequence[Suspect]) -> tuple[int, ...]:
    return tuple(s.local_rank for s in suspects)
