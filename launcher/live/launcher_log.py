"""What one launcher has written into its event log so far, as the state of its node."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from launcher.live.event_tail import EventTail

__all__ = ["Ending", "LastIncident", "LauncherLog"]


class LastIncident(NamedTuple):
    """The last failure that was written down."""

    kind: str
    """``hang``, ``failure``, or ``job_incident`` of a job on several nodes."""
    generation: int
    culprits: tuple[int, ...]
    """Global ranks; empty where none can be named."""
    t_ns: int
    time: str
    folder: str | None


class Ending(NamedTuple):
    """How a launcher has ended."""

    outcome: str
    exit_code: int | None
    why: str | None
    time: str


class LauncherLog:
    """The state of one launcher, brought up to date by :meth:`update`.

    Args:
        path: Its file of events.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._tail: EventTail | None = EventTail(path)
        self._begin()

    @classmethod
    def without_file(cls, run_folder: str) -> LauncherLog:
        """Return the state of a launcher of which the run folder alone is known."""
        log = cls(run_folder)
        log._tail, log.run_folder, log.is_between = None, run_folder, False
        return log

    def _begin(self) -> None:
        self.node: str | None = None
        self.boot: str | None = None
        """Whose monotonic clock the instants are of."""
        self.launcher: int | None = None
        """Its pid, in the PID namespace of the launcher."""
        self.began_ns: int | None = None
        """When its process was started."""
        self.began: str = ""
        """The same, for people; empty until it was written."""
        self.run_folder: str | None = None
        self.max_restarts: int | None = None
        self.generation: int | None = None
        """The one that was started last; None before the first."""
        self.generation_ns: int | None = None
        """When it was started."""
        self.local_ranks: tuple[int, ...] = ()
        """Of that generation, on this node."""
        self.is_between = True
        """No generation runs: the first has not begun, or the last one is over."""
        self.restarts: int | None = None
        """How many of the restart budget are used, by the whole job; None where that is not known."""
        self.nodes: int | None = None
        """How many have met; None where that is not known."""
        self._culprits: dict[int, set[int]] = {}
        self.monitor_replacements = 0
        self.unprotected_ns: int | None = None
        """Since when no monitor lives; None while one does."""
        self.incident: LastIncident | None = None
        self.given_up: str | None = None
        self.ending: Ending | None = None
        """None until the launcher has written that it ends."""
        self.last_ns = 0
        """When the last event happened."""

    def update(self) -> bool:
        """Read what was written since the last call.

        Returns:
            Whether there was anything.

        Raises:
            OSError: The file cannot be read.
            UnknownVersionError: Another release of torch-resilience has written it.
        """
        if self._tail is None:
            return False
        events = self._tail.read()
        # What the lost lines said still holds, unless another launcher has begun in their place.
        if self._tail.is_anew and any(event["event"] == "began" for event in events):
            self._begin()
        for event in events:
            self._apply(event)
        return bool(events)

    @property
    def is_whole(self) -> bool:
        """Whether all that was written is there, its first events too; without them, nothing is known of incidents."""
        return self.began_ns is not None

    def caused(self, rank: int) -> int | None:
        """Return how many failures a global rank was to blame for; None where that is not known."""
        if not self.is_whole:
            return None
        return sum(rank in culprits for culprits in self._culprits.values())

    def close(self) -> None:
        """Close the file."""
        if self._tail is not None:
            self._tail.close()

    # ---- events -------------------------------------------------------------------------------------------------

    def _apply(self, event: dict[str, Any]) -> None:
        at_ns = event["t_ns"]
        self.last_ns = max(self.last_ns, at_ns)
        if self.node is None and isinstance(event.get("node"), str):
            self.node, self.boot = event["node"], _text(event, "boot")
        handler = _HANDLERS.get(event["event"])
        if handler is not None:
            handler(self, event, at_ns)

    def _on_began(self, event: dict[str, Any], at_ns: int) -> None:
        self.launcher, self.run_folder = _count(event, "launcher"), _text(event, "run_folder")
        self.max_restarts = _count(event, "max_restarts")
        process_ns = _count(event, "process_began_ns")  # an older release wrote none
        self.began_ns = min(process_ns, at_ns) if process_ns else at_ns
        self.began = _earlier(_text(event, "time") or "", at_ns - self.began_ns)
        self.restarts, self.nodes = self.restarts or 0, self.nodes or 1

    def _on_lost(self, event: dict[str, Any], at_ns: int) -> None:
        """Take over what the first line of a file that was made anew repeats."""
        self._on_run_folder(event, at_ns)
        for name in ("max_restarts", "restarts"):
            if (value := _count(event, name)) is not None:
                setattr(self, name, value)

    def _on_run_folder(self, event: dict[str, Any], at_ns: int) -> None:
        self.run_folder = _text(event, "run_folder") or self.run_folder

    def _on_rendezvous(self, event: dict[str, Any], at_ns: int) -> None:
        self.nodes = _count(event, "nodes") or self.nodes

    def _on_started(self, event: dict[str, Any], at_ns: int) -> None:
        generation = _count(event, "generation")
        if generation is None:
            return
        self.generation, self.generation_ns, self.is_between = generation, at_ns, False
        restarts = _count(event, "restarts")
        self.restarts = generation if restarts is None else restarts  # an older release wrote none
        pids = event.get("pids")
        names = pids if isinstance(pids, dict) else {}
        self.local_ranks = tuple(sorted(int(name) for name in names if name.isdecimal() and len(name) < 10))

    def _on_stopped(self, event: dict[str, Any], at_ns: int) -> None:
        if _count(event, "generation") == self.generation:
            self.is_between = True

    def _on_incident(self, event: dict[str, Any], at_ns: int) -> None:
        generation, culprits = _count(event, "generation") or 0, _ranks(event)
        if event["event"] == "job_incident":  # what all nodes have found takes the place of what this one had found
            self._culprits[generation] = set(culprits)
        else:
            self._culprits.setdefault(generation, set()).update(culprits)
        time, folder = _text(event, "time") or "", _text(event, "folder")
        self.incident = LastIncident(event["event"], generation, culprits, at_ns, time, folder)

    def _on_monitor_replaced(self, event: dict[str, Any], at_ns: int) -> None:
        self.monitor_replacements += 1
        self.unprotected_ns = None

    def _on_monitor_lost(self, event: dict[str, Any], at_ns: int) -> None:
        self.unprotected_ns = at_ns

    def _on_monitor_back(self, event: dict[str, Any], at_ns: int) -> None:
        self.unprotected_ns = None

    def _on_given_up(self, event: dict[str, Any], at_ns: int) -> None:
        self.given_up = _text(event, "why")

    def _on_ended(self, event: dict[str, Any], at_ns: int) -> None:
        self.is_between = True
        why = _text(event, "why") or self.given_up
        outcome, time = _text(event, "outcome") or "ended", _text(event, "time") or ""
        self.ending = Ending(outcome, _count(event, "exit_code"), why, time)


_HANDLERS = {
    "began": LauncherLog._on_began,
    "lost": LauncherLog._on_lost,
    "run_folder_moved": LauncherLog._on_run_folder,
    "run_folder_mended": LauncherLog._on_run_folder,
    "rendezvous": LauncherLog._on_rendezvous,
    "started": LauncherLog._on_started,
    "stopped": LauncherLog._on_stopped,
    "hang": LauncherLog._on_incident,
    "failure": LauncherLog._on_incident,
    "job_incident": LauncherLog._on_incident,
    "monitor_replaced": LauncherLog._on_monitor_replaced,
    "monitor_lost": LauncherLog._on_monitor_lost,
    "monitor_back": LauncherLog._on_monitor_back,
    "given_up": LauncherLog._on_given_up,
    "ended": LauncherLog._on_ended,
}


def _count(event: dict[str, Any], key: str) -> int | None:
    value = event.get(key)
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _text(event: dict[str, Any], key: str) -> str | None:
    value = event.get(key)
    return value if isinstance(value, str) and "\0" not in value else None


def _earlier(time: str, ns: int) -> str:
    """Return the time stamp of an event that came so long before another one; that one's where it is damaged."""
    try:
        at = datetime.fromisoformat(time) - timedelta(microseconds=ns // 1000)
    except (ValueError, OverflowError):
        return time
    return at.isoformat(timespec="milliseconds")


def _ranks(event: dict[str, Any]) -> tuple[int, ...]:
    value = event.get("culprits")
    found = value if isinstance(value, list) else []
    return tuple(rank for rank in found if type(rank) is int and 0 <= rank < 1 << 31)
