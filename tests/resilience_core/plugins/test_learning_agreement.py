"""Whether all ranks learn: real ranks, a real store, and every way in which one of them does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

RANKS = """
import datetime, json, os, signal, sys, time
import torch.distributed as dist
from resilience_core.plugins import learning_agreement


def run(rank, what, path, said):
    world = len(what)
    store = dist.FileStore(path, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    agreement = learning_agreement.LearningAgreement()
    for plan in what[rank]:
        if plan == "refuse":
            agreement.refuse()
        elif plan in ("exit", "error"):

            class Stop(BaseException if plan == "exit" else Exception):
                pass

            def stop(*_):
                raise Stop

            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            try:
                agreement.all_will("1", ["a"], 120.0)
            except Stop:
                said.append("stopped")
            store.set("torch_resilience/stopped", "1")
        elif plan == "late":
            while not store.check(["torch_resilience/stopped"]):
                time.sleep(0.01)
        elif plan != "absent":
            occasion, _, names = plan.partition(":")
            is_alone = "absent" in what[rank - 1] and not any(other.startswith(occasion) for other in what[rank - 1])
            said.append(agreement.all_will(occasion, names.split(), 0.5 if is_alone else 120.0))
    dist.barrier()


# Ranks are forked from a process that has imported torch: importing it takes longer than all of them.
scenarios = json.loads(sys.argv[1])
ranks = {}
for name, what in scenarios.items():
    for rank in range(len(what)):
        place = os.path.join(sys.argv[2], name)
        pid = os.fork()
        if pid == 0:
            try:
                said = []
                run(rank, what, f"{place}.store", said)
                with open(f"{place}.{rank}", "w") as file:
                    json.dump(said, file)
                os._exit(0)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        ranks[pid] = name
while ranks:
    pid, status = os.wait()
    name = ranks.pop(pid)
    assert status == 0, (name, status)
"""

Told = list[bool | str]

SCENARIOS: dict[str, tuple[list[list[str]], list[Told]]] = {
    "alike": ([["1:a", "1:a b"], ["1:a", "1:b a"]], [[True, True]] * 2),
    "nothing": ([["1:a", "2:"], ["1:a", "2:"]], [[True, True]] * 2),
    "unlike": ([["1:a", "2:b", "3:a"], ["1:a", "2:a", "3:a"]], [[True, False, True]] * 2),
    "no": ([["1:a", "refuse", "2:b"], ["1:a", "2:a", "3:a"]], [[True, False], [True, False, False]]),
    "at once": ([["refuse"], ["1:a"]], [[], [False]]),
    "absent": ([["absent"], ["1:a", "2:a"]], [[], [False, False]]),
    "exit": ([["exit", "2:a"], ["late", "1:a", "2:a"]], [["stopped", False], [False, False]]),
    "error": ([["error", "2:a"], ["late", "1:a", "2:a"]], [["stopped", False], [False, False]]),
    "one alone, then all": ([["absent", "2:a"], ["1:a", "2:a"]], [[True], [False, True]]),
}
"""What each rank plans, and what it is told for each of its plans."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Told]]:
    folder = tmp_path_factory.mktemp("ranks")
    plans = {name: what for name, (what, _) in SCENARIOS.items()}
    command = [sys.executable, "-c", RANKS, json.dumps(plans), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return {
        name: [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(len(what))]
        for name, what in plans.items()
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_ranks_are_told_the_same(told: dict[str, list[Told]], scenario: str) -> None:
    assert told[scenario] == SCENARIOS[scenario][1]


def test_without_a_group_there_is_nobody_to_ask() -> None:
    from resilience_core.plugins.learning_agreement import LearningAgreement

    agreement = LearningAgreement()
    agreement.refuse()
    assert agreement.all_will("save 1", ["step"], 0.0)


def test_a_rank_that_is_alone_at_each_save_waits_less_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that saved on rank 0 alone was held up for two minutes by each of its saves."""
    import torch.distributed as dist

    from resilience_core.plugins import learning_agreement

    store, now = dist.HashStore(), [0.0]  # of this process alone: no other rank ever comes
    monkeypatch.setattr(learning_agreement, "is_distributed", lambda: True)
    monkeypatch.setattr(learning_agreement, "_store", lambda: store)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(learning_agreement, "time", clock)
    agreement, waited = learning_agreement.LearningAgreement(), []
    for number in range(4):
        begun = now[0]
        assert not agreement.all_will(f"save {number}", ["step"], 120.0)
        waited.append(now[0] - begun)
    assert waited == pytest.approx([120.0, 12.0, 1.2, 1.0])


TRAINING = """
import os, torch, torch.distributed as dist
from adapters.ddp import FaultTolerance
rank = int(os.environ["RANK"])
ft = FaultTolerance(state_path="ft_state.json", calculate_timeouts=True)
with ft.run():
    dist.init_process_group("gloo")
    for i in range(12):
        with ft.step(i):
            t = torch.full((1,), float(rank + i), dtype=torch.float64)
            dist.all_reduce(t)
            assert t.item() == 2 * i + 1, (i, t.item())
        if i % 3 == 2:
            try:
                with ft.checkpoint(i + 1):
                    if rank == 0 and i == 5:
                        raise OSError("disk full")
            except OSError:
                pass
print("rank", rank, "is done", flush=True)
os._exit(0)
"""


@pytest.mark.e2e
@pytest.mark.launches
def test_a_save_that_fails_on_one_rank_mixes_up_no_collective(launch: Any, tmp_path: Path) -> None:
    """The rank that learns nothing left the others alone in a collective, with which its next one was paired."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    job = launch(script, nproc=2)
    assert job.wait() == 0
    assert job.stdout.count("is done") == 2
    assert "timeouts are not learned any more in this run, since one rank cannot" in job.stderr + job.stdout
