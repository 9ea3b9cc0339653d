"""What the agent tells people about generations: restarts, ends, monitors, near misses."""

from __future__ import annotations

import os
import time

from launcher.incidents.incident import Incident
from launcher.incidents.phrases import time_of_day
from launcher.monitor.near_miss import NearMiss, late_phrase
from launcher.records.console import ERROR, WARNING

__all__ = [
    "backing_off",
    "closing",
    "ended_unprotected",
    "level_of",
    "monitor_changed",
    "near_miss",
    "restarted",
    "stuck",
    "what_follows",
    "withdrawn",
]


def what_follows(taken: int, allowed: int) -> str:
    """Return one line about what a failure leads to.

    Args:
        taken: How many restarts there were before.
        allowed: ``--max-restarts``.
    """
    if taken < allowed:
        return f"restart {taken + 1} of {allowed} follows"
    if allowed == 0:
        return "no restart follows (--max-restarts 0)"
    return f"no restart is left (--max-restarts {allowed})"


def backing_off(failures: int, seconds: float) -> str:
    """Return one line about a wait before a restart.

    Args:
        failures: How many generations in a row failed early.
        seconds: How long the wait is.
    """
    return f"{failures} generations in a row died within 10 s of their start; waiting {seconds:g} s"


def closing(incident: Incident | None, why: str | None) -> list[str]:
    """Return the last lines about a job that has failed: about the incident that ended it, not later victims.

    Args:
        incident: The last generation's, None where it was ended without one.
        why: Why it is not started again.
    """
    lines = [f"the job has failed{f': {why}' if why else ''}"]
    if incident is not None:
        lines += [f"  {line}" for line in incident.headlines()]
        if incident.folder is not None:
            lines.append(f"  report  {os.path.join(incident.folder, 'report.txt')}")
    return lines


def restarted(generation: int, workers: int, reason: tuple[str, int] | None) -> str:
    """Return one line about a group that is back.

    Args:
        generation: Its number.
        workers: How many there are on this node.
        reason: What the group was started anew for, and when that was seen here; None where nothing was.
    """
    after = f", {(time.monotonic_ns() - reason[1]) / 1e9:.2f} s after {reason[0]} was seen" if reason else ""
    return f"generation {generation} started: {workers} worker(s) here{after}"


def monitor_changed(change: str, reason: str) -> str:
    """Return one line about the monitor: ``monitor_replaced``, ``monitor_lost`` or ``monitor_back``."""
    if change == "monitor_replaced":
        return f"the monitor {reason}; a new one watches on, training was not touched"
    if change == "monitor_lost":
        return (
            f"PROTECTION IS OFF: one monitor after the other is lost, the last one {reason}. Training goes on, but a "
            "rank that hangs may not be seen. New ones are started, more and more slowly; it will be said when one "
            "lives on"
        )
    return f"protection is on again {reason}: the monitor lives on, and watches every rank"


def ended_unprotected(since_ns: int) -> str:
    """Return one line about a job at whose end no monitor had lived on since ``monitor_lost``."""
    now_ns = time.monotonic_ns()
    return (
        f"PROTECTION WAS STILL OFF when the job ended, since {time_of_day(since_ns, now_ns)} "
        f"({(now_ns - since_ns) / 1e9:.1f} s): a rank that hung in that time may not have been seen"
    )


def level_of(change: str) -> int:
    """Return the level of a change of the monitor; that nobody is protected is an ERROR."""
    return ERROR if change == "monitor_lost" else WARNING


def near_miss(miss: NearMiss, count: int) -> str:
    """Return one line about a rank whose verdict was withdrawn; ``count`` is how many there were so far."""
    where = f"section '{miss.section}'" if miss.section is not None else miss.cause
    late = late_phrase(miss.late_seconds, miss.late_at_most_seconds)
    rank = f"near miss {count}: rank {miss.rank} (pid {miss.pid})"
    limit = f"({where}, limit {miss.limit_seconds:g} s)"
    if miss.waited_for is not None:
        return f"{rank} waits for rank {miss.waited_for}, which came back {limit}; it was spared, and is watched on"
    if miss.was_asked:
        return (
            f"{rank} came back{late} {limit} when a signal asked it for its stack; it was spared. Either the limit is "
            "too close to what is normal, or it was stuck in a call that any signal ends"
        )
    return (
        f"{rank} came back{late} {limit} before it was signalled; it was spared. The limit is too close to what is "
        "normal"
    )


def stuck(rank: str, state: str, kill_timeout: float) -> str:
    """Return one line about a rank that was killed and is not gone."""
    return (
        f"{rank} was killed and is not gone ({state}): it counts as failed. It is waited for (--ft-kill-timeout "
        f"{kill_timeout:g}), then replaced all the same; what it holds (memory of a GPU, files, ports) stays held"
    )


def withdrawn(miss: NearMiss) -> str:
    """Return one line about a rank that was announced to be terminated with an overdue one, and was not."""
    return (
        f"withdrawn: rank {miss.rank} (pid {miss.pid}) was not overdue itself, and is not signalled after all; "
        "it is watched on"
    )
