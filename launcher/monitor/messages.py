"""Define what the launcher tells its monitor, and what the monitor reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Union, get_args

from launcher.incidents.incident import Incident
from launcher.monitor.near_miss import NearMiss
from launcher.monitor.verdict import STARTUP, Deadline
from launcher.processes.message_format import MessageFormat
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "MESSAGE_SIZE",
    "ORDERS",
    "REPORTS",
    "Fenced",
    "Forget",
    "HangReport",
    "LauncherStopped",
    "Look",
    "Looked",
    "MissingParts",
    "MonitorConfig",
    "MonitorOrder",
    "MonitorReport",
    "MonitorSettings",
    "Note",
    "Proceed",
    "RunFolders",
    "Signalled",
    "Spared",
    "Stop",
    "Suspected",
    "Watch",
    "WatchOrder",
]

MESSAGE_SIZE = 1 << 16  # of an order in bytes, at most
_VERSION = 5


class MonitorConfig(NamedTuple):
    """The part of ``FaultToleranceConfig`` that the monitor goes by; the names are those of the keys.

    The configuration itself is a class of attrs, which the monitor runs without.
    """

    initial_rank_heartbeat_timeout: float | None
    rank_heartbeat_timeout: float | None
    rank_out_of_section_timeout: float | None
    rank_section_timeouts: Mapping[str, float | None]
    rank_termination_signal: int
    failure_stop_timeout: float
    capture_stacks: bool
    stack_capture_timeout: float
    log_level: int
    log_format: str = "text"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> MonitorConfig:
        """Return the part of a whole configuration, in JSON types, that the monitor goes by."""
        return cls(**{name: document[name] for name in cls._fields})

    @property
    def smallest_limit_ns(self) -> int:
        """The smallest limit that a rank may be under from the start; 0 for none."""
        limits = [
            self.initial_rank_heartbeat_timeout,
            self.rank_heartbeat_timeout,
            self.rank_out_of_section_timeout,
            *self.rank_section_timeouts.values(),
        ]
        return int(min((limit for limit in limits if limit is not None), default=0) * NS_PER_SECOND)


class MonitorSettings(NamedTuple):
    """What a monitor is started with."""

    channel: int  # the monitor's end of the socket pair, inherited
    parent_pidfd: int
    lost_time: int  # the shared page of ``launcher.monitor.lost_time``, inherited
    log_folder: str
    config: MonitorConfig
    run_folders: tuple[str, ...] = ()  # to be removed should the parent be killed; the last one is in use
    parts: tuple[str, ...] = ()  # paths that must exist
    owns_ranks: bool = True  # whether ranks must die with the parent
    py_spy: str | None = None
    nvml_bindings: str | None = None  # where pynvml is: a monitor finds no site-packages
    lease: int | None = None  # the file of ``launcher.nodes.fence``, inherited; None where the node holds no lease
    names_node: bool = False  # whether lines for people begin with the node's name
    console: int | None = None  # of ``launcher.records.shared_output``, inherited; None where nothing is shared

    def to_text(self) -> str:
        """Return the settings as an argument of a command line."""
        return json.dumps({**self._asdict(), "config": self.config._asdict()})

    @classmethod
    def from_text(cls, text: str) -> MonitorSettings:
        """Return the settings that :meth:`to_text` made a text of."""
        fields: dict[str, Any] = json.loads(text)
        fields["config"] = MonitorConfig(**fields["config"])
        fields.update(run_folders=tuple(fields["run_folders"]), parts=tuple(fields["parts"]))
        return cls(**fields)


# ---- from the launcher to the monitor -------------------------------------------------------------------


class WatchOrder(NamedTuple):
    """What a monitor must know to watch one rank."""

    generation: int
    local_rank: int
    rank: int
    cell: str
    pid: int = 0  # the worker process; 0 where somebody else starts it and the cell will tell
    startup_at_ns: int = 0  # by when the rank must have initialised monitoring; 0 is no limit
    started_ns: int = 0
    has_others: bool = False  # the job has ranks on other nodes
    startup_origin: str | None = None
    """Where the startup limit comes from, and what to do when the start was legitimately slow; for people."""
    startup_advice: str | None = None
    startup_is_learned: bool = False

    @property
    def startup(self) -> Deadline | None:
        """The startup limit as a deadline."""
        if not self.startup_at_ns:
            return None
        return Deadline(STARTUP, None, -1, self.startup_at_ns, self.started_ns)


class Watch(NamedTuple):
    """Watch a rank; its cell, and the pidfd of its worker where that is known, travel beside the message."""

    order: WatchOrder
    is_leader: bool  # whether the worker leads a session, to be ended should the parent die

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return {"order": self.order._asdict(), "is_leader": self.is_leader}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Watch:
        """Return the message that :meth:`to_json` took apart."""
        return cls(WatchOrder(**fields["order"]), fields["is_leader"])


class Forget(NamedTuple):
    """Watch the ranks of a generation no longer."""

    generation: int
    is_over: bool
    """Nothing of it runs any more; until then its sessions still end should the parent be killed."""


class RunFolders(NamedTuple):
    """Where the run folders are, and what must exist; see :class:`MonitorSettings`."""

    run_folders: tuple[str, ...]
    parts: tuple[str, ...]


class Look(NamedTuple):
    """Report what can be seen of the ranks of a generation, since a rank of another node is late."""

    generation: int
    may_signal: bool
    """Where py-spy is missing, a signal may ask them for their stacks: they will be ended, whatever it does to them."""
    is_brief: bool = False  # only who came back since the last look is to be told
    came_back: tuple[int, ...] = ()  # of a brief one: who is known to have, as in Proceed


class Proceed(NamedTuple):
    """The other nodes have looked at their ranks: those that are late may be signalled."""

    generation: int
    came_back: tuple[int, ...] = ()  # see launcher.monitor.comebacks.heard


class Stop(NamedTuple):
    """End."""


# ---- from the monitor to the launcher -------------------------------------------------------------------


class Note(NamedTuple):
    """What people should be told about a rank."""

    generation: int
    text: str


class HangReport(NamedTuple):
    """Verdicts, told before the signal."""

    generation: int
    incident: Incident
    condemned: tuple[int, ...]
    """The local ranks that are about to be signalled."""
    problem: str | None  # why the incident could not be written
    only_waits: bool = False  # they wait in a collective, and nobody of this node is to blame

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return {**self._asdict(), "incident": self.incident.to_json(is_short=True)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HangReport:
        """Return the message that :meth:`to_json` took apart."""
        fields["incident"] = Incident.from_json(fields["incident"])
        return cls(**{**fields, "condemned": tuple(fields["condemned"])})


class Suspected(NamedTuple):
    """A rank is late, and is about to be looked at. Told only where the job has ranks on other nodes."""

    generation: int


class Looked(NamedTuple):
    """What was seen of the ranks of a generation, as :class:`Look` has asked; None where none is watched any more."""

    generation: int
    incident: Incident | None
    came_back: tuple[int, ...] = ()  # see launcher.monitor.comebacks.Comebacks.told
    is_brief: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        document = self.incident.to_json(is_short=True) if self.incident is not None else None
        return {**self._asdict(), "incident": document}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Looked:
        """Return the message that :meth:`to_json` took apart."""
        document = fields["incident"]
        seen = Incident.from_json(document) if document is not None else None
        return cls(fields["generation"], seen, tuple(fields["came_back"]), fields["is_brief"])


class Spared(NamedTuple):
    """Verdicts that were withdrawn before the signal."""

    generation: int
    near_misses: tuple[NearMiss, ...]
    came_back: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return {**self._asdict(), "near_misses": [miss._asdict() for miss in self.near_misses]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Spared:
        """Return the message that :meth:`to_json` took apart."""
        near_misses = tuple(NearMiss(**miss) for miss in fields["near_misses"])
        return cls(fields["generation"], near_misses, tuple(fields["came_back"]))


class Signalled(NamedTuple):
    """The signal was sent; times are ``CLOCK_MONOTONIC`` nanoseconds."""

    generation: int
    signalled_ns: int
    verdict_ns: int


class MissingParts(NamedTuple):
    """Paths that must exist and do not."""

    paths: tuple[str, ...]


class LauncherStopped(NamedTuple):
    """The parent is stopped by a signal; reported once each time."""

    seen_ns: int


class Fenced(NamedTuple):
    """The lease of this node has run out: every rank is killed. Told once for each generation and deadline."""

    generation: int
    """The newest one that the monitor knew; -1 where it knew none, as before it has read its first orders."""
    late_ns: int
    """How long after the deadline that was found."""


# Union, since Python 3.10 evaluates it: a tuple of the members is what the formats need.
MonitorOrder = Union[Watch, Forget, RunFolders, Look, Proceed, Stop]  # noqa: UP007
MonitorReport = Union[  # noqa: UP007
    Note, Suspected, HangReport, Looked, Spared, Signalled, MissingParts, LauncherStopped, Fenced
]

ORDERS: MessageFormat[MonitorOrder] = MessageFormat(_VERSION, get_args(MonitorOrder))
REPORTS: MessageFormat[MonitorReport] = MessageFormat(_VERSION, get_args(MonitorReport))
