"""What all ranks agree on: maxima and names, by all-reduces of fixed size, whatever backend the group was made with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience_core.monitoring import collectives as agreement
from resilience_core.monitoring.collectives import is_distributed, maxima, union_of_names

RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from resilience_core.monitoring.collectives import is_distributed, maxima, union_of_names

path, world, backends = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
rank = int(os.environ["RANK"])
moved = []
all_reduce = dist.all_reduce
def counting(tensor, *arguments, **named):
    moved.append(tensor.numel() * tensor.element_size())
    return all_reduce(tensor, *arguments, **named)
def refuse(*_, **__):
    raise AssertionError("a collective whose size grows with the ranks")
for name in ("all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "broadcast_object_list"):
    setattr(dist, name, refuse)
dist.all_reduce = counting
for number, backend in enumerate(backends):
    dist.init_process_group(backend, init_method=f"file://{path}{number}", rank=rank, world_size=world)
    assert is_distributed()
    said = [maxima([rank, -rank, 2**62 + rank, 7]), maxima([])]
    moved.clear()
    said.append(union_of_names(["step", "checkpointing"]))
    said.append(sum(moved))
    moved.clear()
    said.append(union_of_names(["step", "é" * 30 * rank] + [f"only {rank}"]))
    said.append(sum(moved))
    print(json.dumps([backend, said]))
    dist.destroy_process_group()
"""
BACKENDS = [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"]


def test_every_rank_agrees_with_every_backend(run_ranks: Callable[..., list[str]], tmp_path: Path) -> None:
    """Groups made without a backend's name, or with one per device, broke others' timeout calculation."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environments = [{"RANK": str(rank)} for rank in range(2)]
    said = run_ranks(script, tmp_path / "store", 2, json.dumps(BACKENDS), environments=environments)
    first, second = ([json.loads(line) for line in lines.splitlines()] for lines in said)

    assert first == second
    for backend, (largest, nothing, agreed, moved, union, moved_by_union) in first:
        assert backend in BACKENDS
        assert largest == [1, 0, 2**62 + 1, 7]
        assert nothing == []
        assert agreed == ["checkpointing", "step"]
        assert moved == 24  # three words, with any number of ranks
        assert union == sorted(["step", "é" * 30, "", "only 0", "only 1"])
        assert moved_by_union < 10_000


def test_one_process_alone_hears_itself() -> None:
    assert not is_distributed()
    assert maxima([3, -1]) == [3, -1]
    assert union_of_names(["b", "a", "b"]) == ["a", "b"]


class Group:
    """Ranks in lock step in one process: a recorded group, for any number of ranks and any names."""

    def __init__(self, names: list[list[str]]) -> None:
        self.names = names

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        import threading

        world = len(self.names)
        barrier = threading.Barrier(world)
        offered: list[list[int]] = [[] for _ in range(world)]
        answers: list[list[str]] = [[] for _ in range(world)]
        me = threading.local()

        def recorded_maxima(values: Any) -> list[int]:
            offered[me.rank] = list(values)
            barrier.wait(60)
            assert len({len(each) for each in offered}) == 1, "the ranks disagree about the size"
            largest = [max(column) for column in zip(*offered, strict=True)]
            barrier.wait(60)
            return largest

        def run(rank: int) -> None:
            me.rank = rank
            try:
                answers[rank] = union_of_names(self.names[rank])
            except BaseException:
                barrier.abort()
                raise

        monkeypatch.setattr(agreement, "maxima", recorded_maxima)
        monkeypatch.setattr(agreement, "is_distributed", lambda: True)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


@settings(max_examples=30)
@given(names=st.lists(st.lists(st.text(alphabet="aé\u20ac b\udc80", max_size=5), max_size=4), min_size=1, max_size=4))
def test_whatever_the_names_all_ranks_come_to_the_same_union(names: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        answers = Group(names).run(monkeypatch)

    assert answers == [sorted({name for each in names for name in each})] * len(names)


def test_asking_imports_no_torch() -> None:
    program = (
        "import sys; from resilience_core.monitoring.collectives import maxima, union_of_names; "
        "maxima([1]); union_of_names(['a']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
