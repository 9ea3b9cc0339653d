"""A rank that raises under Lightning is named with its exception, also where a save then waits for its peers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents.incident import Incident

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

LIMIT = 240
SCRIPT = "../scripts_adapters/raises_lightning.py"
PLACES = {
    "sections": ("step", "validation", "sanity", "step, and a callback waits", "step by kill"),
    "heartbeats": ("step", "step by interrupt"),
}


def check(place: str, incident: Incident) -> None:
    told = f"{place}\n" + "\n".join(incident.report())
    assert [rank.rank for rank in incident.culprits] == [1], told
    if place.endswith("kill"):  # its peer loses the connection and saves while it handles that
        assert (incident.kind, incident.why) == ("failure", "killed by SIGKILL"), told
        return
    kind = "KeyboardInterrupt" if place.endswith("interrupt") else "ValueError"
    assert incident.why.startswith(f"raised {kind} before any other failure was seen"), told
    if place != "sanity":  # nothing is saved then
        assert (incident.kind, "has not ended yet" in incident.why) == ("hang", True), told
    (line,) = (line for line in incident.summary() if line.startswith("  error   "))
    assert line.startswith(f"  error   {kind}"), told
    assert "; at reach (" in line, told


@pytest.mark.parametrize("api", PLACES)
def test_a_rank_that_raises_is_named_where_its_callbacks_then_wait_for_its_peers(
    launch: Callable[..., Any], tmp_path: Path, api: str
) -> None:
    places = PLACES[api]
    job = launch(
        *(SCRIPT, ".", api, *places),
        options=["--max-restarts", len(places), "--ft-max-no-progress-cycles", 0],
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},  # torch leaves one in the temporary folder otherwise
        rank_section_timeouts=f"setup:{LIMIT},step:8,checkpointing:{LIMIT}",
        rank_out_of_section_timeout=12,
        initial_rank_heartbeat_timeout=LIMIT,
        rank_heartbeat_timeout=8,
        stack_capture_timeout=60,  # on a busy machine half a second is too short for a stack
        preload="torch,lightning.pytorch",
    )

    assert job.wait(LIMIT) == 0, job.stderr

    incidents = job.incidents()
    assert len(incidents) == len(places), job.stderr
    for place, incident in zip(places, incidents, strict=True):
        check(place, incident)
    assert job.stdout.count(f"is done in generation {len(places)}") == 2
