"""New limits meet intervals that are running already, while other threads begin and end such intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from resilience_core.monitoring.client_state import ClientState, deadline_after
from resilience_core.monitoring.section_state import Section
from resilience_core.protocol.cell_layout import (
    CLOSED,
    HEARTBEAT,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    NO_LIMIT,
    NOT_SHOWN,
    OUT_OF_SECTION,
)

__all__ = ["limit_what_has_none", "limit_what_is_running"]


def limit_what_has_none(state: ClientState) -> None:
    """Let new limits apply to the intervals that run without any, from now on, as if these began now."""
    now = time.monotonic_ns()
    words = state.words
    if words[OUT_OF_SECTION] == NO_LIMIT:
        words[OUT_OF_SECTION] = deadline_after(now, state.gap_limit_ns)
    if words[HEARTBEAT] == NO_LIMIT and state.heartbeats:
        words[HEARTBEAT] = deadline_after(now, state.heartbeat_limit_ns)


def limit_what_is_running(state: ClientState, initial_heartbeat_ns: int | None) -> None:
    """Apply loaded limits to running intervals: longer ones from their beginning, shorter ones from now on.

    So loading expires no interval, and loading again does not postpone the deadline of one that hangs.

    Args:
        state: The client's, with the new limits.
        initial_heartbeat_ns: The limit of a first heartbeat, nanoseconds.
    """
    now = time.monotonic_ns()
    words = state.words

    def due(present: int, began_ns: int, limit_ns: int | None) -> int:
        # An open section whose word is CLOSED is just being opened by another thread.
        present = NO_LIMIT if present == CLOSED else present
        return max(deadline_after(began_ns, limit_ns), min(present, deadline_after(now, limit_ns)))

    def heartbeat() -> int:
        if words[HEARTBEAT] == CLOSED:
            return CLOSED
        # With a section used, it runs only where section events are heartbeats, too.
        is_first = not state.heartbeats and not state.has_used_section
        limit = initial_heartbeat_ns if is_first else state.heartbeat_limit_ns
        return due(words[HEARTBEAT], max(state.last_heartbeat_ns, words[LAST_HEARTBEAT]), limit)

    def out_of_section() -> int:
        if words[OUT_OF_SECTION] == CLOSED:
            return CLOSED
        return due(words[OUT_OF_SECTION], words[LEFT_SECTION], state.gap_limit_ns)

    _store_until_true(state, HEARTBEAT, heartbeat)
    _store_until_true(state, OUT_OF_SECTION, out_of_section)
    for section in list(state.open.values()):
        _limit_open_section(state, section, due)
    if state.shares:
        state.share_deadline()


def _limit_open_section(state: ClientState, section: Section, due: Callable[[int, int, int | None], int]) -> None:
    if section.deadline_word == NOT_SHOWN:  # which means nothing: it is one word for all of them
        while section.due != (wanted := (section.opened_ns, due(section.due[1], section.opened_ns, section.limit_ns))):
            section.due = wanted
        return

    def deadline() -> int:
        if state.open.get(section.name) is not section:
            return CLOSED
        return due(state.words[section.deadline_word], section.opened_ns, section.limit_ns)

    _store_until_true(state, section.deadline_word, deadline)


def _store_until_true(state: ClientState, word: int, value: Callable[[], int]) -> None:
    """Look again after each store: another thread may have begun or ended the interval meanwhile."""
    while state.words[word] != (wanted := value()):
        state.words[word] = wanted
