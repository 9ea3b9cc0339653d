"""Which launches belong to one run, and how their nodes are called.

Launches whose lives overlap belong to one run. One that begins after all others have ended begins the next run of the
same training, as those of ``ft_autoresume`` do; so does one on a machine on which a launcher of the run has ended that
had come at least as far in generations, however the clocks of machines differ.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from launcher.reports.launches import Launch

__all__ = ["end_ns", "ended_before_others", "node_names", "runs_of", "taking_part"]


def runs_of(launches: Sequence[Launch]) -> list[list[int]]:
    """Return which launches (indices, in the order of their begins) belong to one run, run by run."""
    runs: list[list[int]] = []
    for number, launch in enumerate(launches):
        if not runs or _begins_anew(launch, [launches[other] for other in runs[-1]]):
            runs.append([])
        runs[-1].append(number)
    return runs


def _begins_anew(launch: Launch, run: Sequence[Launch]) -> bool:
    began_ns = _began_ns(launch)
    if all(_ended_at(other) <= launch.at(began_ns) for other in run):
        return True
    first = min((generation.number for generation in launch.generations), default=None)
    return first is not None and any(
        (other.node, other.boot) == (launch.node, launch.boot)
        and (not other.is_running or other.is_guessed)
        and (other.ended_ns or other.last_ns) <= began_ns
        and max((generation.number for generation in other.generations), default=-1) >= first
        for other in run
    )


def _began_ns(launch: Launch) -> int:
    """Return when a launch has begun: its process, also where the first line that is left was written much later."""
    began_ns = launch.process_began_ns
    return launch.began_ns if began_ns is None or began_ns <= 0 else min(began_ns, launch.began_ns)


def _ended_at(launch: Launch) -> float:
    """Return when a launch has ended; its last line counts where it only seems to run."""
    is_running = launch.is_running and not launch.is_guessed
    return float("inf") if is_running else launch.at(launch.ended_ns or launch.last_ns)


def ended_before_others(launches: Sequence[Launch], runs: Sequence[Sequence[int]]) -> list[Launch]:
    """Return launches of which those have ended that only seemed to run, and that a later run has followed."""
    over = {number for run in runs[:-1] for number in run if launches[number].is_guessed}
    return [launch._replace(is_running=launch.is_running and n not in over) for n, launch in enumerate(launches)]


def node_names(launches: Sequence[Launch]) -> dict[int, str]:
    """Return a name for the place of each launch; one that begins when another has ended there takes its place."""
    names: dict[int, str] = {}
    places: dict[str, list[list[int]]] = collections.defaultdict(list)
    for number, launch in enumerate(launches):
        free = (
            place for place in places[launch.node] if _ended_at(launches[place[-1]]) <= launch.at(_began_ns(launch))
        )
        place = next(free, None)
        if place is None:
            place = []
            places[launch.node].append(place)
        place.append(number)
        index = places[launch.node].index(place)
        names[number] = launch.node if index == 0 else f"{launch.node} ({index + 1})"
    return names


def end_ns(launch: Launch) -> int:
    """Return when a launch has ended, or the last time that anything of it is known."""
    return launch.ended_ns if launch.ended_ns is not None else launch.last_ns


def taking_part(launches: Sequence[Launch], run: Sequence[int]) -> list[int]:
    """Return the launches of a run that have started ranks; all where none has.

    A launcher that waits for a place in vain makes a run no longer, whether it began before others or ended after them.
    """
    return [number for number in run if launches[number].generations] or list(run)
