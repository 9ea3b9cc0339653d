"""One try: a job, one fault, and what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from benchmarks.nodes.faults import find
from benchmarks.nodes.job import Job, TooLateError
from benchmarks.nodes.journal import overlaps, recovery_seconds
from benchmarks.nodes.namespaces import Machines

__all__ = ["NO_FAULT", "Order", "Result", "run_try"]

NO_FAULT = "none"
_END_SECONDS = 15.0


class Order(NamedTuple):
    """What is to be tried."""

    launcher: str
    """A name of :data:`benchmarks.nodes.job.LAUNCHERS`."""
    fault: str
    """``none``, a name of :data:`benchmarks.nodes.faults.FAULTS`, or ``NAME:SECONDS``."""
    members: int = 3
    spares: int = 1
    options: tuple[str, ...] = ()
    """Of the launcher."""
    steps: int = 1000
    bound_seconds: float = 120.0
    """From the fault to the end of the training."""


class Result(NamedTuple):
    """What came of a try."""

    launcher: str
    fault: str
    is_completed: bool
    """Every rank of the last group has come to the end of the training."""
    is_equal: bool
    """And their weights are, in every bit, those of an undisturbed training."""
    seconds: float | None
    """From the (first) fault to the first ``all_reduce`` of the group that went on; None if there was none."""
    groups: int
    """How many groups have met."""
    overlaps: tuple[str, ...]
    """Sentences about groups that worked at the same time."""
    exit_codes: dict[str, int | None]
    """Of the newest launcher of each node; None where it had not ended; negative where a signal ended it."""
    notes: tuple[str, ...]
    """What a reader of the table should know."""
    load: float
    """Of the machine, one minute, before the try."""


def run_try(order: Order, folder: Path, expected: str) -> Result:
    """Run one job with one fault, and remove every process of it.

    Args:
        order: What is to be tried.
        folder: For its files; made here.
        expected: The fingerprint of an undisturbed training of as many steps.
    """
    load, notes = os.getloadavg()[0], []
    with Machines(order.members + order.spares, folder) as machines:
        job = Job(
            machines, folder / "shared", launcher=order.launcher, members=order.members,
            options=order.options, training=["--steps", str(order.steps)],
        )  # fmt: skip
        try:
            job.begin()
            if order.fault == NO_FAULT:
                job.stamp()
            else:
                fault, seconds = find(order.fault)
                fault.apply(job, seconds)
            job.wait_for(job.is_completed, order.bound_seconds, "the end of the training")
            job.wait_for(lambda: not job.running(), _END_SECONDS, "the end of every launcher")
        except (TooLateError, LookupError, ProcessLookupError) as error:
            notes.append(str(error))
        codes = {
            machines.nodes[index].name: own[-1].exit_code if machines.nodes[index].is_on else None
            for index, own in sorted(job.launches.items())
        }
        gone = [node.name for node in machines.nodes if not node.is_on]
        if gone:
            notes.append(f"powered off: {', '.join(gone)}")
        said, met = job.notes(), job.groups()
    first_ns, last_ns = (job.fault_ns[0], job.fault_ns[-1]) if job.fault_ns else (0, 0)
    seconds_to_next = recovery_seconds(said, first_ns, last_ns) if job.fault_ns else None
    completed = job.is_completed()
    if completed and seconds_to_next is None:
        notes.append("no group has had to meet anew")
    if met and met[-1].world != met[0].world:
        notes.append(f"world {' -> '.join(str(group.world) for group in met)}")
    equal = completed and {digest for group in met for digest in group.digests} == {expected}
    return Result(
        order.launcher, order.fault, completed, equal, seconds_to_next, len(met),
        tuple(overlaps(said)), codes, tuple(notes), load,
    )  # fmt: skip
