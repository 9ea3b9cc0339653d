"""A job over four nodes (network namespaces, two ranks each) whose launchers agree by themselves loses parts of itself.

Three nodes train and one is a spare. Whatever is lost, the training ends with the weights of an undisturbed one, and at
no time do two groups work.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.nodes.job import Job
from benchmarks.nodes.journal import overlaps
from benchmarks.nodes.namespaces import Machines, why_impossible
from benchmarks.nodes.training import undisturbed_digest
from benchmarks.nodes.tries import Order, Result, run_try

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_impossible()), reason=str(why_impossible()))]

STEPS = 700
FIXED = ("--nnodes", "3:4", "--ft-membership", "fixed", "--rdzv-conf", "last_call_timeout=1")
ELASTIC = ("--nnodes", "2:4", "--ft-membership", "elastic", "--rdzv-conf", "last_call_timeout=1")

FAULTS = (
    "kill-rank",
    "kill-launcher",
    "kill-store-launcher",
    "term-launcher",
    "stop-launcher:10",
    "power-off",
    "power-off-and-back",
    "cut:10",
    "cut-store:10",
    "kill-rank-then-power-off",
)
# With a fixed number of nodes the spare has to come in, or the lost node back.
FAULTS_OF_THE_SPARE = ("kill-store-launcher", "stop-launcher:10", "power-off", "power-off-and-back", "cut:10")


@pytest.fixture(scope="module")
def expected() -> str:
    return undisturbed_digest(STEPS)


def lose(fault: str, folder: Path, expected: str, options: tuple[str, ...]) -> Result:
    order = Order("ft", fault, options=options, steps=STEPS, bound_seconds=90.0)
    result = run_try(order, folder / "try", expected)
    assert result.is_completed, result
    assert result.is_equal, result
    assert result.overlaps == (), result
    return result


def generations(folder: Path) -> dict[str, list[int]]:
    """The generations that each node has started, by its event files."""
    found: dict[str, list[int]] = {}
    for node in sorted((folder / "try").glob("node*")):
        files = node.glob("logs/nodes/events*.jsonl")
        events = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        found[node.name] = sorted({each["generation"] for each in events if each["event"] == "started"})
    return found


@pytest.mark.long
def test_the_leader_loses_power(tmp_path: Path, expected: str) -> None:
    result = lose("power-off-store", tmp_path, expected, FIXED)

    assert result.exit_codes == {"node0": None, "node1": 0, "node2": 0, "node3": 0}
    assert generations(tmp_path) == {"node0": [0], "node1": [0, 1], "node2": [0, 1], "node3": [1]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        *(pytest.param(fault, ELASTIC, id=f"{fault}-elastic") for fault in FAULTS),
        *(pytest.param(fault, FIXED, id=f"{fault}-fixed") for fault in FAULTS_OF_THE_SPARE),
    ],
)
def test_the_training_is_completed_without(fault: str, options: tuple[str, ...], tmp_path: Path, expected: str) -> None:
    result = lose(fault, tmp_path, expected, options)

    assert result.groups >= 2


@pytest.mark.long
@pytest.mark.parametrize("fault", ["cut:2", "cut-store:2", "stop-launcher:2"])
def test_nothing_happens_in_a_short_silence(fault: str, tmp_path: Path, expected: str) -> None:
    result = lose(fault, tmp_path, expected, FIXED)

    assert result.groups == 1
    assert set(result.exit_codes.values()) == {0}


@pytest.mark.long
def test_a_node_that_was_cut_off_has_stopped_its_ranks_and_waits_as_a_spare(tmp_path: Path) -> None:
    with Machines(4, tmp_path / "machines") as machines:
        job = Job(
            machines, tmp_path / "shared", launcher="ft", members=3, options=FIXED, training=["--steps", "1500"]
        )  # fmt: skip
        job.begin()
        cut = job.victims()[0]
        job.cut(cut, 10.0)
        job.wait_for(lambda: len(job.groups()) > 1 or None, 60, "the next group")
        steps = [note.t for note in job.notes() if note.node == f"node{cut}" and note.event == "step"]
        job.wait_for(job.is_completed, 90, "the end of the training")
        ended = time.monotonic()
        while job.running() and time.monotonic() < ended + 20:
            time.sleep(0.05)  # processes of other namespaces: there is no event to wait for

        assert max(steps) < job.groups()[1].formed_ns
        assert overlaps(job.notes()) == []
        assert [launches[-1].exit_code for launches in job.launches.values()] == [0, 0, 0, 0]
        assert "this node was cut off" in job.launches[cut][-1].text()
