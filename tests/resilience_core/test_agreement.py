"""Every rank's word on every rank, whatever backend the group was made with, and without pickle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from resilience_core.agreement import gather_json, is_distributed

RANK = """
import json, pickle, sys
import torch.distributed as dist
from resilience_core.agreement import gather_json, is_distributed

def refuse(*_, **__):
    raise AssertionError("pickled")

path, rank, backends = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
for number, backend in enumerate(backends):
    dist.init_process_group(backend, init_method=f"file://{path}{number}", rank=rank, world_size=2)
    assert is_distributed()
    pickles, pickle.Pickler, pickle.Unpickler = (pickle.Pickler, pickle.Unpickler), refuse, refuse
    said = [gather_json({"rank": rank, "x": 0.1 + rank, "names": ["ü" * 300] * rank}), gather_json(None)]
    pickle.Pickler, pickle.Unpickler = pickles
    print(json.dumps([backend, said]))
    dist.destroy_process_group()
"""
BACKENDS = [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"]


def test_every_rank_gets_every_word_with_every_backend(tmp_path: Path) -> None:
    """Groups made without a backend's name, or with one per device, broke others' timeout calculation."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / "store"), str(rank), json.dumps(BACKENDS)],
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    expected = [
        [{"rank": 0, "x": 0.1, "names": []}, {"rank": 1, "x": 1.1, "names": ["ü" * 300]}],
        [None, None],
    ]

    for rank in ranks:
        said, _ = rank.communicate(timeout=60)
        assert rank.returncode == 0
        assert [json.loads(line) for line in said.splitlines()] == [[backend, expected] for backend in BACKENDS]


def test_one_process_alone_hears_itself() -> None:
    assert not is_distributed()
    assert gather_json({"a": [1, 2.5]}) == [{"a": [1, 2.5]}]


def test_asking_imports_no_torch() -> None:
    program = (
        "import sys; from resilience_core.agreement import gather_json; gather_json(1); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
