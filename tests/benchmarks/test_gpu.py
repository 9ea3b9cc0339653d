"""What of the GPU benchmark runs without a GPU: that it says so, and what it reads from what a job has left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.restarts import Case, _line, _told

ROOT = Path(__file__).resolve().parents[2]
SECOND = 10**9


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch sees no CUDA device" in done.stderr


def test_an_unknown_fault_is_named() -> None:
    done = command("--faults", "sigkill,flood")
    assert done.returncode == 2
    assert "--faults flood: unknown" in done.stderr


def leave(folder: Path, name: str, *lines: dict[str, object]) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_times_are_from_the_fault_to_the_last_rank_and_memory_is_what_was_left(tmp_path: Path) -> None:
    second = {"generation": 1}
    for rank in range(2):
        struck = [{"what": "struck", "generation": 0, "t_ns": 5 * SECOND}] if rank else []
        leave(
            tmp_path,
            f"rank{rank}.jsonl",
            {"what": "began", "generation": 0, "t_ns": 0, "used": 0, "processes": 0},
            *struck,
            {"what": "began", **second, "t_ns": 6 * SECOND, "used": 2 * 2**30 + rank, "processes": rank},
            {"what": "all_reduce", **second, "t_ns": (8 + rank) * SECOND},
            {"what": "trained", **second, "t_ns": 10 * SECOND, "used": 9 * 2**30},
        )
        (tmp_path / f"digest{rank}").write_text("same")
    leave(tmp_path, "run/events.jsonl", {"event": "seen", "generation": 0, "t_ns": int(5.5 * SECOND)})

    told = _told(tmp_path, before=2**30)

    assert told == {
        "digest": "same",
        "seen": 0.5,
        "gone": None,
        "began": 1.0,
        "imported": None,
        "on device": None,
        "all_reduce": 4.0,
        "left": 1.0,
        "processes": 0,
        "peak": 8.0,
    }
    line = _line(Case("sigkill", "warm", 2, "gloo"), [{**told, "is_equal": True, "left_at_end": 0.0}])
    assert "1 of 1 equal" in line
    assert "all_reduce after 4.000 (max 4.000) s" in line


def test_ranks_with_different_weights_have_no_digest(tmp_path: Path) -> None:
    (tmp_path / "digest0").write_text("one")
    (tmp_path / "digest1").write_text("other")
    assert _told(tmp_path, before=0)["digest"] == ""
