"""What the bus plugins write into the cell of how far training came, whichever of them listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience_core import EventBus, HeartbeatMonitor, RunContext, SectionMonitor


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
def test_the_cell_says_how_far_training_came(
    rank_environment: Callable[..., Any], recording_client: Any, monitor: Callable[..., Any]
) -> None:
    """A save that failed or was none, and a checkpoint that was removed, are no progress."""
    cell, bus = rank_environment(), EventBus()
    bus.register(monitor(recording_client))
    bus.setup(context=RunContext())
    bus.checkpoint_loaded(iteration=40, source="persistent")
    bus.checkpoint_end(iteration=900, kind="save", error=None)  # without a beginning
    for iteration, kind, error in ((60, "remove", None), (55, "save", OSError("full")), (50, "save", None)):
        bus.checkpoint_start(iteration=iteration, kind=kind)
        bus.checkpoint_end(iteration=iteration, kind=kind, error=error)
    assert cell.view()[-3:] == (0, 40, 50)
    bus.checkpoint_start(iteration=52, kind="save")
    bus.checkpoint_end(iteration=52, kind="finalize", error=None)
    bus.checkpoint_start(iteration=70, kind="save")
    bus.checkpoint_end(iteration=70, kind="finalize", error=OSError("full"))
    for iteration in (41, 42, 41):
        bus.step_start(iteration=iteration)
        bus.step_end(iteration=iteration)
    assert cell.view().iteration == 41
    assert cell.view()[-3:] == (1, 40, 52)
    bus.checkpoint_start(iteration=60, kind="save")
    bus.step_start(iteration=60)
    bus.step_end(iteration=60)
    bus.checkpoint_end(iteration=60, kind="save", error=None)  # it has gone on while a step did
    bus.checkpoint_end(iteration=900, kind="save", error=None)
    assert cell.view()[-3:] == (1, 40, 60)
    bus.teardown(reason="completed")
