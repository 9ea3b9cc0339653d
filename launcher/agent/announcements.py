"""The lines that people are shown about generations: restarts, ends, monitors, near misses."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import TypedDict

from launcher.incidents.attributed import LIKELY
from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import JobIncident
from launcher.incidents.phrases import time_of_day
from launcher.monitor.near_miss import announced as near_miss
from launcher.monitor.near_miss import withdrawn
from launcher.records.console import ERROR, WARNING
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "About",
    "about",
    "backing_off",
    "closing",
    "failed",
    "ended_unprotected",
    "level_of",
    "monitor_changed",
    "near_miss",
    "restarted",
    "stuck",
    "what_failed",
    "what_follows",
    "withdrawn",
]


class About(TypedDict):
    """How an incident is announced, beside its lines (:func:`launcher.records.console.announce`)."""

    level: int
    event: str
    ranks: list[int]
    generation: int
    culprits_from: int
    facts: dict[str, list[int]]


def about(incident: Incident | JobIncident) -> About:
    """Return how an incident is announced."""
    if isinstance(incident, JobIncident):
        culprits = ranks = [each.rank.rank for each in incident.culprits]
    else:
        culprits, ranks = ([each.rank for each in of] for of in (incident.culprits, incident.speakers))
    return About(
        level=ERROR,
        event=incident.kind,
        ranks=ranks,
        generation=incident.generation,
        culprits_from=0,
        facts={"culprits": culprits},
    )


def what_failed(condemned: Collection[int]) -> str:
    """Return what the other nodes are told of a failure here, which need not be who has caused it.

    Args:
        condemned: Local ranks that the monitor has ended, if any.
    """
    return f"a rank {'has passed its limit' if condemned else 'failed'} on {os.uname().nodename}"


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
        seconds: Length of the wait.
    """
    return f"{failures} generations in a row died within 10 s of their start; waiting {seconds:g} s"


def failed(why: str | None) -> str:
    """Return one line about a job that has failed and why it is not restarted."""
    return f"the job has failed{f': {why}' if why else ''}"


def closing(said: str, incident: Incident | JobIncident | None) -> list[str]:
    """Return the last lines about a job: about the incident that ended it, not later victims.

    Args:
        said: The first line.
        incident: The last generation's, of all nodes where they have told each other; None where it ended without one.
    """
    lines = [said]
    if incident is not None:
        lines += [f"  {line}" for line in incident.headlines()]
        if _is_doubtful(incident):  # otherwise why that rank is named was told with the incident
            lines.append(f"  why     {incident.why}")
        lines += incident.where_more_is()
    return lines


def _is_doubtful(incident: Incident | JobIncident) -> bool:
    """Return whether an incident names nobody, or somebody as likely."""
    nodes = incident.nodes_to_blame if isinstance(incident, JobIncident) else ()
    return incident.why.startswith(LIKELY) or not (incident.culprits or nodes)


def restarted(generation: int, workers: int, cause: str | None, seconds: float | None) -> str:
    """Return one line about a group that was started.

    Args:
        generation: Its number.
        workers: How many there are on this node.
        cause: What the group was restarted for; None where this node was not there before.
        seconds: From when that was seen here.
    """
    after = f", {seconds:.2f} s after {cause} was seen" if cause is not None else ""
    return f"generation {generation} started: {workers} worker(s) here{after}"


def monitor_changed(change: str, reason: str) -> str:
    """Return one line about the monitor: ``monitor_replaced``, ``monitor_lost`` or ``monitor_back``."""
    if change == "monitor_replaced":
        return f"the monitor {reason}; a new one has taken over, and training was not affected"
    if change == "monitor_lost":
        return (
            f"PROTECTION IS OFF: no monitor stays alive. The last attempt: {reason}. Training goes on, but a rank that "
            "hangs may not be noticed. The launcher goes on starting monitors, at growing intervals, and says when one "
            "stays alive"
        )
    return f"protection is on again {reason}: a monitor stays alive and watches every rank"


def ended_unprotected(since_ns: int) -> str:
    """Return one line about a job that ended while protection was still off (``monitor_lost``).

    Args:
        since_ns: ``CLOCK_MONOTONIC`` since when it was off.
    """
    now_ns = time.monotonic_ns()
    return (
        f"PROTECTION WAS STILL OFF when the job ended, since {time_of_day(since_ns, now_ns)} "
        f"({(now_ns - since_ns) / NS_PER_SECOND:.1f} s): a rank that hung in that time may not have been seen"
    )


def level_of(change: str) -> int:
    """Return the level of a change of the monitor: ERROR where the ranks are no longer protected, else WARNING."""
    return ERROR if change == "monitor_lost" else WARNING


def stuck(rank: str, state: str, kill_timeout: float) -> str:
    """Return one line about a rank whose process has not ended after SIGKILL.

    Args:
        rank: Its number, for people.
        state: Of its process.
        kill_timeout: ``--ft-kill-timeout``, seconds.
    """
    return (
        f"{rank} was killed and is not gone ({state}): it counts as failed. The launcher waits for it "
        f"(--ft-kill-timeout {kill_timeout:g}), then replaces it anyway; what it holds (memory of a GPU, files, ports) "
        "stays in use"
    )
