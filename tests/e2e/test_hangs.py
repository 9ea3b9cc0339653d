"""A rank that goes silent is seen, explained and killed, whatever it hangs in, and its neighbour is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

LIMITS = {
    "sections": {"rank_section_timeouts": "setup:20,step:0.5,checkpointing:20"},
    "heartbeats": {"initial_rank_heartbeat_timeout": 20, "rank_heartbeat_timeout": 0.5},
}
HANGING = ("sigstop", "deadlock", "gil", "busy_loop")


@pytest.mark.parametrize("api", LIMITS)
@pytest.mark.parametrize("fault", HANGING)
def test_a_hung_rank_is_condemned_and_its_neighbour_is_not(launch: Callable[..., Any], api: str, fault: str) -> None:
    job = launch(
        "loop.py",
        "--api",
        api,
        "--until-stopped",
        options=["--max-restarts", 1],
        faults=f"{fault}:rank=1,step=3",
        **LIMITS[api],
    )

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert incident.kind == "hang"
    assert [rank.rank for rank in incident.condemned] == [1]
    assert incident.culprit is not None
    assert incident.culprit.rank == 1
    assert incident.culprit.iteration == 3
    assert incident.culprit.section == ("step" if api == "sections" else None)
    assert incident.culprit.cause == ("section" if api == "sections" else "heartbeat")
    assert incident.culprit.limit_seconds == 0.5
    assert incident.culprit.stack
    assert job.stdout.count("is done in generation 1") == 2
