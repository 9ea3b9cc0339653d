"""What a rank says, invented."""

from __future__ import annotations

from typing import Any

from resilience_core.protocol.cell_layout import CLOSED, WATCHED
from resilience_core.protocol.cell_view import CellView


def view(**facts: Any) -> CellView:
    """A rank that is watched and owes nothing."""
    usual = {
        "pid": 4711, "start_time": 1, "state": WATCHED, "smallest_limit_ns": 0, "iteration": 3,
        "heartbeat_ns": CLOSED, "out_of_section_ns": CLOSED, "last_heartbeat_ns": 0, "left_section_ns": 0,
        "rank": 0, "sections": (),
    }  # fmt: skip
    return CellView(**{**usual, **facts})
