"""The part of a client that is about limits: which are in force, how they are learned, kept and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from resilience_core.monitoring.client_state import ClientState
from resilience_core.monitoring.limits_in_force import LimitsInForce

if TYPE_CHECKING:
    from resilience_core.monitoring.timeouts import HeartbeatTimeouts, SectionTimeouts

__all__ = ["ClientLimits"]


class ClientLimits:
    """What :class:`~resilience_core.monitoring.client.RankMonitorClient` offers about its limits.

    Args:
        state: The client's.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._limits = LimitsInForce(state)

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """Heartbeat timeouts in force, None before init."""
        return self._limits.heartbeat_timeouts if self._state.cell is not None else None

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """Section timeouts in force, None before init."""
        return self._limits.section_timeouts if self._state.cell is not None else None

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Learn both heartbeat timeouts, in force from the next heartbeat on, from all ranks' intervals. A collective.

        Args:
            skip_if_not_ready: Return False instead of raising when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TimeoutsNotReadyError: No rank has sent two heartbeats since the last calculation.
        """
        return self._limits.learn_heartbeats(skip_if_not_ready)

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Learn section timeouts from the longest intervals any rank saw. A collective.

        A new limit applies from the next time its section is opened. The out-of-section limit applies at once, counted
        from now, if none was running: otherwise a hang in the interval that is open would not be found.

        Args:
            selected_sections: Names to learn; all that any rank has used when None. Others keep theirs.
            calc_out_of_section: Learn the out-of-section timeout as well.
            skip_if_not_ready: Return False, and change nothing, when there is too little to learn from.

        Returns:
            Whether timeouts were calculated; the same on every rank.

        Raises:
            TypeError: ``selected_sections`` holds a value that is no name.
            TimeoutsNotReadyError: A selected section was never closed on any rank, or nothing was seen at all.
        """
        return self._limits.learn_sections(selected_sections, calc_out_of_section, skip_if_not_ready)

    def learned_summary(self) -> str:
        """Return what was learned, from how much, and which limits follow from it, in one line."""
        return self._limits.summary()

    def undercut_limits(self) -> str:
        """Return which learned limits in force are shorter than the configured ones; empty where none is."""
        return self._limits.undercut()

    def spared_limits(self) -> dict[str, str]:
        """Return which learned limits in force are longer because no restart is left, by kind; each in words."""
        return self._limits.spared()

    def name_state_file(self, path: str | None) -> None:
        """Name the file that learned timeouts are kept in, for messages about limits that come from it."""
        self._limits.name_state_file(path)

    def state_dict(self) -> dict[str, Any]:
        """Return the learned timeouts as JSON types, equal on all ranks; configured values are not part of it."""
        return self._limits.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over timeouts that an earlier run learned; ``learned_limits`` says which of them come into force.

        May be called before ``init_workload_monitoring``, too; then they apply from there on. To what is running, a
        longer limit applies from its beginning, and a shorter one from now on, but never later than the former one.

        Raises:
            RankMonitorClientError: The state does not have the shape that ``state_dict`` gives it.
        """
        self._limits.load(state)
