"""What the events of a node tell for its metrics: restarts and their causes, times, near misses, the monitor. Pure.

Events are taken one by one, in the order in which they happen, by the launcher that writes them to the log;
:mod:`launcher.agent.shared_history` says why, and how the exporter comes to know of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.agent.durations import Durations, Histogram
from launcher.records.verdicts import SPARED, seen_at_ns, was_taken_back
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["BOUNDS", "CAUSES", "HEARD", "History", "Told"]

CAUSES = ("hang", "failure", "lost_node", "cut_off", "request", "membership", "unknown")

HEARD = frozenset(
    {
        *("began", "run_folder_moved", *SPARED, "monitor_replaced", "monitor_lost", "monitor_back", "fenced"),
        *("rendezvous", "started", "seen", "stopped", "hang", "failure", "job_incident", "phases"),
    }
)
"""The events that tell anything here."""

_CUT_OFF, _MEMBERSHIP = "cut_off", "membership"
_OF_STORIES = {"hang": "hang", "failure": "failure", "lost": "lost_node", "request": "request"}
"""From the kind of what all nodes have found."""
_LONGEST_WAIT_NS = 5 * NS_PER_SECOND
"""For what all nodes have found: as long as a launcher waits until it tells what it has seen alone."""
_LONGEST_WAIT_OF_A_NODE_NS = NS_PER_SECOND // 100
"""So much more for each node."""
_BOUND = 1 << 63
"""Of the whole numbers in events: of larger ones no sum can be a float."""
_NO_WAIT = 1 << 63
"""A time at which no story is on its way any more."""
_GENERATIONS_KEPT = 8
_SPARED_KEPT = 256
"""Of one generation: a verdict is taken back right after it was told, on as many ranks as a node has."""
_INCIDENTS_KEPT = 64
"""Of one generation, the first ones, of those that stand; the first one tells its cause."""

_SECONDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5))
"""1 ms to 5,000 s."""
BOUNDS = {
    "detections": tuple(bound for bound in _SECONDS if bound <= 10),
    "restart_times": tuple(bound for bound in _SECONDS if 0.01 <= bound <= 500),
    "recoveries": tuple(bound for bound in _SECONDS if 0.1 <= bound <= 5000),
}
"""Of the histograms in :class:`Told`, by field, in seconds."""


class Told(NamedTuple):
    """What the events have told so far."""

    run_folder: str | None
    """Where the cells are; None while no event has said so."""
    generation: int | None
    restarts: Mapping[str, int]
    """By cause; every cause is there."""
    detections: Histogram
    restart_times: Histogram
    recoveries: Histogram
    near_misses: int
    fenced: int
    is_monitored: bool
    monitors_replaced: int
    over: int
    """The newest generation that has ended; -1 before the first."""
    awaited: tuple[tuple[int, str], ...] = ()
    """Restarts that are not in :attr:`restarts`, since other nodes may still tell their cause: until when
    (``CLOCK_MONOTONIC``), and by which cause to count each from then on."""


class _Generation:
    """What is known of one generation until its successor has been counted."""

    def __init__(self) -> None:
        self.nodes = 1
        self.seen_ns: int | None = None
        """When its failure was seen here."""
        self.incidents: list[Mapping[str, Any]] = []
        """That were seen here, without those that were taken back."""
        self.spared: deque[Mapping[str, Any]] = deque(maxlen=_SPARED_KEPT)
        self.was_cut_off = False
        self.story: str | None = None
        self.succeeded_ns: int | None = None
        """When the next one was started here; None once that was counted."""
        self.recovers_from_ns: int | None = None
        """When the failure of the one before was seen."""

    @property
    def own_cause(self) -> str | None:
        """What has ended it as this node has seen it."""
        return self.incidents[0]["event"] if self.incidents else None

    def drop_what_was_taken_back(self) -> None:
        """Forget the verdicts after which every rank was spared."""
        self.incidents = [each for each in self.incidents if not was_taken_back(each, self.spared)]


class History:
    """Takes events. What an event lacks, or has of another type, costs what it would have told and no more."""

    def __init__(self) -> None:
        self._generations: dict[int, _Generation] = {}
        self._current: int | None = None
        self._over = -1
        self._run_folder: str | None = None
        self._restarts: Counter[str] = Counter()
        self._detections = Durations(BOUNDS["detections"])
        self._restart_times = Durations(BOUNDS["restart_times"])
        self._recoveries = Durations(BOUNDS["recoveries"])
        self._near_misses = self._fenced = self._replaced = 0
        self._is_monitored = True

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event.

        Args:
            event: A line of the event log; ``event`` is text, ``t_ns`` a whole number.
        """
        name = event["event"]
        if name not in HEARD:
            return
        if name in ("began", "run_folder_moved"):
            folder = event.get("run_folder")
            self._run_folder = folder if isinstance(folder, str) else self._run_folder
        elif name in SPARED:
            self._spared(name, event)
        elif name == "monitor_replaced":
            self._replaced += 1
        elif name in ("monitor_lost", "monitor_back"):
            self._is_monitored = name == "monitor_back"
        elif name == "fenced":
            self._fenced += 1
            if self._current is not None:
                self._generation(self._current).was_cut_off = True
        elif (number := _whole(event, "generation")) is not None and number >= 0:
            self._take_of_generation(name, number, event)

    def told(self, now_ns: int) -> Told:
        """Return what the events have told.

        Args:
            now_ns: ``CLOCK_MONOTONIC``; a restart whose cause is not known yet is counted some seconds later.
        """
        self.settle(now_ns)
        return Told(
            run_folder=self._run_folder,
            generation=self._current,
            restarts={cause: self._restarts[cause] for cause in CAUSES},
            detections=self._detections.histogram,
            restart_times=self._restart_times.histogram,
            recoveries=self._recoveries.histogram,
            near_misses=self._near_misses,
            fenced=self._fenced,
            is_monitored=self._is_monitored,
            monitors_replaced=self._replaced,
            over=self._over,
            awaited=tuple(
                (_wait_end_ns(each), each.own_cause or _MEMBERSHIP)
                for each in self._generations.values()
                if each.succeeded_ns is not None
            ),
        )

    def settle(self, now_ns: int) -> None:
        """Count the restarts whose cause is known, or has been awaited for long enough.

        Called before an event is taken, so that one that comes later does not change what was counted.

        Args:
            now_ns: ``CLOCK_MONOTONIC``.
        """
        for generation in self._generations.values():
            self._count_restart(generation, now_ns)

    def _take_of_generation(self, name: str, number: int, event: Mapping[str, Any]) -> None:
        generation = self._generation(number)
        if name == "rendezvous":
            generation.nodes = _whole(event, "nodes") or 1
        elif name == "started":
            self._started(number, generation, event["t_ns"])
        elif name == "seen" and generation.seen_ns is None:
            generation.seen_ns = event["t_ns"]
        elif name == "stopped":
            self._over = max(self._over, number)
        elif name in ("hang", "failure"):
            if len(generation.incidents) < _INCIDENTS_KEPT:
                generation.incidents.append(event)
            generation.drop_what_was_taken_back()
            deadline_ns, seen_ns = _whole(event, "deadline_ns"), _whole(event, "seen_ns")
            if name == "hang" and deadline_ns is not None and seen_ns is not None:
                self._detections.add(seen_ns - deadline_ns)
        elif name == "job_incident":
            generation.story = _OF_STORIES.get(str(event.get("kind")), "unknown")
        elif name == "phases" and generation.recovers_from_ns is not None:
            signs = _first_signs(event.get("ranks"))
            if signs is not None:
                self._recoveries.add(max(signs) - generation.recovers_from_ns)
            generation.recovers_from_ns = None

    def _spared(self, name: str, event: Mapping[str, Any]) -> None:
        self._near_misses += name == "near_miss"
        if (number := _whole(event, "generation")) is not None and number in self._generations:
            generation = self._generations[number]
            generation.spared.append(event)
            generation.drop_what_was_taken_back()

    def _started(self, number: int, generation: _Generation, started_ns: int) -> None:
        before = self._current
        self._current = number
        if before is None or before >= number:
            return
        former = self._generation(before)
        former.succeeded_ns = started_ns
        if former.seen_ns is not None:  # of a hang, it tells when the first rank had been ended
            seen_ns = min([former.seen_ns, *(seen_at_ns(each) for each in former.incidents if each["event"] == "hang")])
            self._restart_times.add(started_ns - seen_ns)
            generation.recovers_from_ns = seen_ns

    def _count_restart(self, generation: _Generation, now_ns: int) -> None:
        """Count the restart after a generation, once it is known, or clear, why that was over."""
        if generation.succeeded_ns is None:
            return
        cause = generation.story or generation.own_cause
        if generation.was_cut_off:  # the others have found only that this node was lost
            cause = _CUT_OFF
        elif generation.nodes > 1 and generation.story is None:  # the story may be on its way
            if now_ns < _wait_end_ns(generation):
                return
            cause = cause or _MEMBERSHIP
        self._restarts[cause or "unknown"] += 1
        generation.succeeded_ns = None

    def _generation(self, number: int) -> _Generation:
        if number not in self._generations:
            self._generations[number] = _Generation()
            if len(self._generations) > _GENERATIONS_KEPT:
                oldest = self._generations.pop(min(self._generations))
                self._count_restart(oldest, _NO_WAIT)
        return self._generations[number]


def _wait_end_ns(generation: _Generation) -> int:
    """Return until when all nodes may tell why a generation was over."""
    assert generation.succeeded_ns is not None
    return generation.succeeded_ns + _LONGEST_WAIT_NS + generation.nodes * _LONGEST_WAIT_OF_A_NODE_NS


def _first_signs(ranks: object) -> list[int] | None:
    """Return when each rank has shown its first sign of life; None unless all have."""
    if not isinstance(ranks, dict) or not ranks:
        return None
    signs = [_whole(stamps, "first_sign_ns") if isinstance(stamps, dict) else None for stamps in ranks.values()]
    known = [sign for sign in signs if sign is not None]
    return known if len(known) == len(signs) else None


def _whole(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return value if type(value) is int and -_BOUND <= value < _BOUND else None
