"""Limits in force, by name, and whether they have changed enough to be told again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience_core.monitoring.client import RankMonitorClient

__all__ = ["differ", "in_force"]


def in_force(client: RankMonitorClient) -> dict[str, float | None]:
    """Return every limit in force in seconds, by a name that is the same from one calculation to the next."""
    sections, heartbeats = client.section_timeouts, client.hb_timeouts
    found: dict[str, float | None] = {}
    if sections is not None:
        found |= {f"section {name}": limit for name, limit in sections.section.items()}
        found["out of section"] = sections.out_of_section
    if heartbeats is not None:
        found |= {"first heartbeat": heartbeats.initial, "heartbeat": heartbeats.subsequent}
    return found


def differ(one: dict[str, float | None], other: dict[str, float | None]) -> bool:
    """Return whether a limit has come, gone or changed by more than a tenth."""
    if one.keys() != other.keys():
        return True
    pairs = [(limit, other[name]) for name, limit in one.items() if limit != other[name]]
    return any(a is None or b is None or abs(a - b) > 0.1 * max(a, b) for a, b in pairs)
