"""What may be lost of a job over several nodes: one entry for each thing that the benchmark does to a job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.nodes.job import Job, lowest_count

__all__ = ["FAULTS", "Fault", "find"]

_BACK_AFTER_SECONDS = 3.0


class Fault(NamedTuple):
    """Something that is done to a job once."""

    what: str
    """For people."""
    apply: Callable[[Job, float], None]
    """Does it; the number is the seconds of the fault (its duration, or the time to the second loss)."""
    seconds: float = 0.0
    """What the number is unless ``NAME:SECONDS`` names another."""


def find(name: str) -> tuple[Fault, float]:
    """Return the fault of a name, or of ``NAME:SECONDS``, and its seconds.

    Raises:
        KeyError: There is none.
        ValueError: The seconds are no number.
    """
    base, _, seconds = name.partition(":")
    fault = FAULTS[base]
    return fault, float(seconds) if seconds else fault.seconds


def _kill_rank(job: Job, seconds: float) -> None:
    job.kill_rank(job.victims()[0], 1)


def _kill_launcher(job: Job, seconds: float) -> None:
    job.signal_launcher(job.victims()[0], signal.SIGKILL)


def _kill_store_launcher(job: Job, seconds: float) -> None:
    job.signal_launcher(0, signal.SIGKILL)


def _term_launcher(job: Job, seconds: float) -> None:
    job.signal_launcher(job.victims()[0], signal.SIGTERM)


def _stop_launcher(job: Job, seconds: float) -> None:
    victim = job.victims()[0]
    job.signal_launcher(victim, signal.SIGSTOP)
    if seconds:
        time.sleep(seconds)
        job.launches[victim][-1].signal(signal.SIGCONT)


def _power_off(job: Job, seconds: float) -> None:
    job.power_off(job.victims()[0])


def _power_off_store(job: Job, seconds: float) -> None:
    job.power_off(0)


def _power_off_spare(job: Job, seconds: float) -> None:
    job.power_off(_spare(job))


def _power_off_node_and_spare(job: Job, seconds: float) -> None:
    lost = [job.victims()[0], _spare(job)]
    job.power_off(*lost)
    _bring_back_what_is_missing(job, lost)


def _power_off_two(job: Job, seconds: float) -> None:
    victims = job.victims(2)
    job.power_off(*victims)
    _bring_back_what_is_missing(job, victims)


def _power_off_two_in_turn(job: Job, seconds: float) -> None:
    victims = job.victims(2)
    job.power_off(victims[0])
    time.sleep(seconds)
    job.power_off(victims[1])
    _bring_back_what_is_missing(job, victims)


def _kill_rank_then_power_off(job: Job, seconds: float) -> None:
    first, second = job.victims(2)
    job.kill_rank(first, 1)
    time.sleep(seconds)
    job.power_off(second)


def _power_off_and_come_back(job: Job, seconds: float) -> None:
    victim, met = job.victims()[0], len(job.groups())
    job.power_off(victim)
    job.wait_for(lambda: len(job.groups()) > met, seconds, "the next group")
    job.come_back(victim)


def _kill_launcher_and_come_back(job: Job, seconds: float) -> None:
    victim = job.victims()[0]
    job.signal_launcher(victim, signal.SIGKILL)
    time.sleep(seconds)
    job.come_back(victim)


def _cut(job: Job, seconds: float) -> None:
    job.cut(job.victims()[0], seconds)


def _cut_store(job: Job, seconds: float) -> None:
    job.cut(0, seconds)


def _spare(job: Job) -> int:
    """Return a node that runs a launcher and is not in the newest group."""
    names = job.groups()[-1].nodes
    found = [index for index in job.running() if job.machines.nodes[index].name not in names]
    if not found:
        raise LookupError("every node is in the newest group, the fault needs one that waits")
    return found[0]


def _bring_back_what_is_missing(job: Job, lost: list[int]) -> None:
    """Start launchers on lost nodes until the job has as many nodes as it needs."""
    missing = lowest_count(job.options) - len(job.running())
    if missing > 0:
        time.sleep(_BACK_AFTER_SECONDS)
    for index in lost[: max(0, missing)]:
        job.come_back(index)


FAULTS = {
    "kill-rank": Fault("SIGKILL of one rank", _kill_rank),
    "kill-launcher": Fault("SIGKILL of a launcher; its monitor and ranks live on", _kill_launcher),
    "kill-store-launcher": Fault("SIGKILL of node 0's launcher", _kill_store_launcher),
    "term-launcher": Fault("SIGTERM of a launcher", _term_launcher),
    "stop-launcher": Fault("SIGSTOP of a launcher, for good or for SECONDS", _stop_launcher),
    "power-off": Fault("a node is gone: silence, no FIN and no RST", _power_off),
    "power-off-store": Fault("node 0 is gone, and what it serves", _power_off_store),
    "power-off-spare": Fault("a node that waits is gone", _power_off_spare),
    "power-off-node-and-spare": Fault("a node, and one that waits, are gone at once", _power_off_node_and_spare),
    "power-off-two": Fault("two nodes are gone at once", _power_off_two),
    "power-off-two-in-turn": Fault("a second node is gone SECONDS after the first", _power_off_two_in_turn, 0.3),
    "kill-rank-then-power-off": Fault(
        "a node is gone SECONDS after a rank of another was killed", _kill_rank_then_power_off, 0.3
    ),
    "power-off-and-back": Fault(
        "a node is gone, and starts again when the others have met, within SECONDS", _power_off_and_come_back, 60.0
    ),
    "kill-launcher-and-back": Fault(
        "SIGKILL of a launcher, and a new one on its node SECONDS later", _kill_launcher_and_come_back, 2.0
    ),
    "cut": Fault("a node's link is silent for SECONDS", _cut, 2.0),
    "cut-store": Fault("node 0's link is silent for SECONDS", _cut_store, 2.0),
}
"""Every fault by its name."""
