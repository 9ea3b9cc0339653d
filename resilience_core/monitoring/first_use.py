"""The first use of either API, or of a section's name: whatever can fail fails here, not in a later call."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from resilience_core.errors import RankMonitorClientError, SectionError, UnconfiguredSectionError
from resilience_core.monitoring.client_arguments import no_name, unconfigured
from resilience_core.monitoring.client_state import ClientState
from resilience_core.monitoring.limits_in_force import LimitsInForce
from resilience_core.monitoring.saves_beside_steps import CheckpointingSection
from resilience_core.monitoring.section_state import Section
from resilience_core.protocol.cell import CellError
from resilience_core.protocol.cell_layout import (
    CLOSED,
    FIRST_REPORT,
    HEARTBEAT,
    MAX_SECTIONS,
    NO_LIMIT,
    NOT_SHOWN,
    OUT_OF_SECTION,
)
from resilience_core.protocol.figures import CHECKPOINTING

__all__ = ["FirstUse"]

logger = logging.getLogger(__name__)

_warned: set[str] = set()


class FirstUse:
    """What a client does once: for its first heartbeat, and for each new section name.

    Args:
        state: The client's.
        limits: The client's.
        was_used: Called after each first use; must not raise.
    """

    def __init__(self, state: ClientState, limits: LimitsInForce, was_used: Callable[[], None]) -> None:
        self._state = state
        self._limits = limits
        self._was_used = was_used

    def heartbeat(self, now: int) -> None:
        """Check that a first heartbeat may be sent, and switch off what a client that sends them does not use.

        Args:
            now: When the call began.

        Raises:
            RankMonitorClientError: Before ``init_workload_monitoring`` or after shutdown.
        """
        state = self._state
        with state.lock:
            state.require_init("send_heartbeat()")
            # Not the caller's gap: it may have waited for the initialisation, before which there was no interval.
            state.first_heartbeat_gap_ns = max(1, now - state.began_ns)
            self._note_first_report()
            if not state.has_used_section:
                state.words[OUT_OF_SECTION] = CLOSED
            limit = self._limits.heartbeat_timeouts.subsequent
        self._was_used()
        logger.debug(
            "first heartbeat: %s", "no limit for the next" if limit is None else f"the next is due within {limit:.4g} s"
        )

    def section(self, name: str) -> Section:
        """Return the section of a name that was not used before, or that another thread uses for the first time, too.

        Raises:
            SectionError: It is no name, or not configured although others are.
            RankMonitorClientError: Before ``init_workload_monitoring`` or after shutdown.
        """
        state, limits = self._state, self._limits
        with state.lock:
            state.require_init("start_section()")
            if not isinstance(name, str) or not name:
                raise no_name("start_section()", name)
            if limits.config.names_sections and name not in limits.config.rank_section_timeouts:
                raise UnconfiguredSectionError(unconfigured(name, limits.config.rank_section_timeouts))
            timeouts = limits.section_timeouts.section
            section = state.sections.get(name)
            if section is None:  # else another thread was first
                section = self._prepare_section(name)
        self._was_used()
        limit = timeouts.get(name)
        logger.debug("first use of section '%s': %s", name, "no limit" if limit is None else f"limit {limit:.4g} s")
        if name not in timeouts:
            _warn_once(
                "section '%s' has no timeout: the configuration names no sections, so they are measured without a "
                "limit until timeouts are calculated (said once)",
                name,
            )
        if section.deadline_word == NOT_SHOWN:
            _warn_once(
                "section '%s' is one of more than %d names; those beyond share one place, which shows the first "
                "that is due, without its name. Use fewer names (no iteration numbers in them) to have each named "
                "(said once)",
                name,
                MAX_SECTIONS - 1,
            )
        return section

    def not_open(self, name: object) -> RankMonitorClientError:
        """Return the error of closing a section that is not open."""
        if self._state.cell is None:
            return self._state.not_initialised("end_section()")
        if not isinstance(name, str):
            return no_name("end_section()", name)
        opened = ", ".join(f"'{other}'" for other in list(self._state.open)) or "none"
        return SectionError(f"section '{name}' is not open; open now: {opened}")

    def _note_first_report(self) -> None:
        """For the event log of the restart: when this process first used either API."""
        if self._state.words[FIRST_REPORT] == 0:
            self._state.words[FIRST_REPORT] = time.monotonic_ns()

    def _prepare_section(self, name: str) -> Section:
        """Make a section that was not used before; other threads and later calls find it only when it is complete.

        A signal handler may raise anywhere in it, or use the client itself.
        """
        state, limits = self._state, self._limits
        slot, row = self._slot_for(name), state.row_of(name)
        if name == CHECKPOINTING:
            section: Section = CheckpointingSection(name, slot, row, state.beside)
        else:
            section = Section(name, slot, row)
        section.limit_ns = limits.limit_ns(name)
        if not state.has_used_section:
            self._note_first_report()
            if state.words[OUT_OF_SECTION] == CLOSED:  # since the first heartbeat; a close need not say it again
                state.words[OUT_OF_SECTION] = NO_LIMIT
            if not state.events_are_heartbeats:
                state.words[HEARTBEAT] = CLOSED
            state.has_used_section = True
        if section.limit_ns is not None:
            limits.tell_limit_of(section)
        section = state.sections.setdefault(name, section)
        while section.limit_ns != (limit_ns := limits.limit_ns(name)):
            section.limit_ns = limit_ns  # it has grown, or a handler has loaded another
        return section

    def _slot_for(self, name: str) -> int:
        slots = self._limits.slots
        if name in slots:
            return slots[name]
        return slots.setdefault(name, self._new_slot(name))

    def _new_slot(self, name: str) -> int:
        cell = self._state.cell
        if cell is None:  # a signal handler has shut down since the call began
            raise self._state.not_initialised("start_section()")
        try:
            return cell.add_section(name)
        except CellError:
            self._limits.share(name)
            return NOT_SHOWN


def _warn_once(message: str, *arguments: object) -> None:
    """Log a warning that this process has not logged before, through whichever client.

    Every rank finds the same, so one of each node warns, as with the names of plugins.
    """
    if message not in _warned:
        _warned.add(message)
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        logger.log(logging.WARNING if is_first else logging.DEBUG, message, *arguments)
