"""What will go wrong in a job, derived from its seed alone. Pure.

A fault strikes at a training step, not at a time: the ranks wait at that step (in steps that train nothing) until the
injector has seen what came of the fault, so the same seed gives the same faults at the same points of the training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["KINDS", "Fault", "Kind", "Plan", "make_plan"]

_FIRST_STEP = 8
_STEPS_PER_FAULT = 8
_LEAST_GAP = 3
_LAST_STEPS = 10


class Kind(NamedTuple):
    """One way to disturb a job."""

    weight: int
    what: str
    in_script: bool = False
    """The rank itself does it, at the exact step."""
    hits_rank: bool = False
    """A rank is the culprit of the incident that must follow."""
    needs_peers: bool = False
    needs_warm: bool = False
    cannot_be_told: bool = False
    """Naming nobody is as right as naming the rank: nothing that can be seen from outside tells them apart."""
    may_restart: bool = False
    """The fault may cost a restart; where it does, its rank is the culprit or nobody is."""


KINDS: dict[str, Kind] = {
    "rank-kill": Kind(6, "SIGKILL to a rank", hits_rank=True),
    "rank-stop": Kind(5, "SIGSTOP to a rank", hits_rank=True),
    "rank-segv": Kind(3, "SIGSEGV to a rank from outside", hits_rank=True),
    "rank-crash": Kind(3, "a rank reads address 0, and dumps core", in_script=True, hits_rank=True),
    "rank-hang": Kind(
        8, "a rank sleeps, spins, waits for its own lock, or keeps the GIL", in_script=True, hits_rank=True
    ),
    "rank-raise": Kind(5, "a rank raises", in_script=True, hits_rank=True),
    "rank-raise-slow": Kind(3, "a rank raises and takes 1.5 s to exit", in_script=True, hits_rank=True),
    "rank-exit0": Kind(3, "a rank leaves early, with 0", in_script=True, hits_rank=True, needs_peers=True),
    "rank-skip": Kind(
        3,
        "a rank skips a collective and waits in another group's barrier",
        in_script=True,
        hits_rank=True,
        needs_peers=True,
        cannot_be_told=True,
    ),
    "rank-kill-twice": Kind(3, "SIGKILL to a rank, and to one of the next generation as it starts", hits_rank=True),
    "rank-stop-monitor-kill": Kind(3, "SIGSTOP to a rank, then SIGKILL to the monitor", hits_rank=True),
    "monitor-kill": Kind(4, "SIGKILL to the monitor"),
    "monitor-stop": Kind(3, "SIGSTOP to the monitor"),
    "monitor-pause": Kind(3, "SIGSTOP, then SIGCONT to the monitor"),
    "zygote-kill": Kind(2, "SIGKILL to the zygote", needs_warm=True),
    "zygote-stop": Kind(2, "SIGSTOP to the zygote", needs_warm=True),
    "zygote-pause": Kind(2, "SIGSTOP, then SIGCONT to the zygote", needs_warm=True),
    "parked-kill": Kind(2, "SIGKILL to one or all parked workers", needs_warm=True),
    "parked-stop": Kind(3, "SIGSTOP to one or all parked workers", needs_warm=True),
    "parked-stop-kill": Kind(
        3, "SIGSTOP to all parked workers, and SIGKILL to a rank at once", hits_rank=True, needs_warm=True
    ),
    "parked-pause": Kind(2, "SIGSTOP, then SIGCONT to one or all parked workers", needs_warm=True),
    "launcher-pause": Kind(4, "SIGSTOP, then SIGCONT to the launcher"),
    "launcher-pause-kill": Kind(3, "a rank dies by SIGKILL while the launcher is stopped", hits_rank=True),
    "run-removed": Kind(2, "the run folder removed"),
    "cells-removed": Kind(2, "everything in the folders of the run folder removed"),
    "cell-random": Kind(2, "what a rank has mapped of the run folder overwritten with random bytes", may_restart=True),
    "cell-truncated": Kind(2, "what a rank has mapped of the run folder truncated to nothing", may_restart=True),
    "run-full": Kind(3, "the run folder's file system full while a rank dies by SIGKILL", hits_rank=True),
    "log-removed": Kind(2, "the log folder removed"),
    "log-readonly": Kind(2, "the log folder read-only while a rank is stopped by SIGSTOP", hits_rank=True),
    "pids-max": Kind(2, "no process or thread can be started while a rank is stopped by SIGSTOP", hits_rank=True),
    "stderr-stopped": Kind(3, "nobody reads stderr, which is full, while a rank dies by SIGKILL", hits_rank=True),
    "freeze-cgroup": Kind(4, "the whole tree frozen by the cgroup freezer"),
    "freeze-signals": Kind(3, "the whole tree stopped, then continued, by signals"),
}


class Fault(NamedTuple):
    """One fault of a plan. ``seconds`` and ``detail`` mean what its kind makes of them."""

    index: int
    kind: str
    step: int
    rank: int
    seconds: float
    detail: int


class Plan(NamedTuple):
    """One job."""

    seed: int
    ranks: int
    worker_start: str
    has_py_spy: bool
    steps: int
    faults: tuple[Fault, ...]


def make_plan(
    seed: int,
    faults: int,
    *,
    ranks: int | None = None,
    worker_start: str | None = None,
    has_py_spy: bool | None = None,
    kinds: Sequence[str] = (),
) -> Plan:
    """Make the plan of one job.

    Args:
        seed: Everything that is not given follows from it. Sixteen seeds in a row have every combination of 1 to 4
            ranks, warm and spawned workers, with and without py-spy.
        faults: How many.
        ranks: How many ranks.
        worker_start: ``warm`` or ``spawn``.
        has_py_spy: Whether the job may see py-spy.
        kinds: Only these, as often as they are named; all, by their weights, when empty.

    Raises:
        ValueError: No kind that was asked for is possible in this job.
    """
    ranks = seed % 4 + 1 if ranks is None else ranks
    worker_start = ("warm", "spawn")[seed // 4 % 2] if worker_start is None else worker_start
    has_py_spy = bool(seed // 8 % 2) if has_py_spy is None else has_py_spy
    possible = {
        name: kinds.count(name) if kinds else kind.weight
        for name, kind in KINDS.items()
        if (not kinds or name in kinds)
        and (ranks > 1 or not kind.needs_peers)
        and (worker_start == "warm" or not kind.needs_warm)
    }
    if not possible:
        raise ValueError(f"none of {', '.join(kinds)} is possible with {ranks} rank(s) and {worker_start} workers")
    chance = random.Random(seed)
    drawn = []
    for index in range(faults):
        offset = chance.randrange(_STEPS_PER_FAULT - _LEAST_GAP)
        drawn.append(
            Fault(
                index=index,
                kind=chance.choices(list(possible), list(possible.values()))[0],
                step=_FIRST_STEP + index * _STEPS_PER_FAULT + offset,
                rank=chance.randrange(ranks),
                seconds=round(0.1 * 30 ** chance.random(), 3),  # 0.1 to 3, as many below 0.55 as above
                detail=chance.randrange(1 << 30),
            )
        )
    steps = _FIRST_STEP + faults * _STEPS_PER_FAULT + _LAST_STEPS
    return Plan(seed, ranks, worker_start, has_py_spy, steps, tuple(drawn))
