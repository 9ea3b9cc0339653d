"""What the launcher tells the process that serves metrics when it starts it."""

from __future__ import annotations

import json
from typing import NamedTuple

from launcher.records.console import State

__all__ = ["ExporterSettings"]


class ExporterSettings(NamedTuple):
    """The single argument of an exporter, as JSON."""

    listener: int
    """The listening socket, inherited."""
    launcher: int
    """Its pid: the exporter ends with it."""
    run: str
    """The name of the run, a label of every metric."""
    node: str
    """The name of this node, the other label of every metric."""
    run_folder: str
    """Where the cells are at first; an event says where else they go."""
    history: int
    """What the launcher counts of its events (:mod:`launcher.agent.shared_history`), a descriptor, inherited."""
    figures: str | None = None
    """The figures that this launcher writes."""
    straggler_log: str | None = None
    """What rank 0 writes its straggler reports to."""
    console: State = State()
    """How the launcher speaks."""
    shared_output: tuple[int, ...] = ()
    """What is known of standard error (:mod:`launcher.records.shared_output`), a descriptor, inherited, if shared."""

    def to_text(self) -> str:
        """Return the settings as an argument of a command line."""
        return json.dumps(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> ExporterSettings:
        """Return the settings that :meth:`to_text` made a text of."""
        known = json.loads(text)
        return cls(**{**known, "console": State(*known["console"])})
