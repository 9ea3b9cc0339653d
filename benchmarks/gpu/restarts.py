"""Faults in a training on CUDA: are its weights right in the end, how soon does it go on, what stays behind."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.device import Device

__all__ = ["FAULTS", "Case", "run"]

TRAINING = Path(__file__).with_name("training.py")
ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("sigkill", "sigkill-in-kernel", "hang", "kernel-hang", "assert", "oom")
# Without the third, most restarts of torchrun fail or hang (pytorch#135712).
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
STEPS = 40
LONGEST = 180.0
STEP_LIMIT = 2.0


class Case(NamedTuple):
    """One job: what is done to it, and how its ranks are started."""

    fault: str
    start: str
    ranks: int
    backend: str


def cases(faults: list[str]) -> list[Case]:
    """Return two ranks on one GPU over gloo, warm and spawned, one rank over NCCL, and torchrun beside them."""
    warm = [Case(fault, "warm", 2, "gloo") for fault in faults]
    nccl = [Case(fault, "warm", 1, "nccl") for fault in faults if fault in ("sigkill", "kernel-hang")]
    others = ("spawn", "torchrun") if "sigkill" in faults else ()
    return [*warm, *nccl, *(Case("sigkill", start, 2, "gloo") for start in others)]


def run(faults: list[str], tries: int, gigabytes: float) -> tuple[list[dict[str, Any]], bool]:
    """Run each case, print a line for each, and return the raw figures and whether every job was as it must be."""
    rows: list[dict[str, Any]] = []
    undisturbed: dict[int, str] = {}
    for case in cases(faults):
        if case.ranks not in undisturbed:
            undisturbed[case.ranks] = _job(case._replace(fault="none"), gigabytes)["digest"]
        done = [_job(case, gigabytes) for _ in range(tries)]
        for one in done:
            one["is_equal"] = one["exit"] == 0 and one["digest"] == undisturbed[case.ranks]
        rows += [{**case._asdict(), **one} for one in done]
        print(_line(case, done), flush=True)
    return rows, all(row["is_equal"] for row in rows if row["start"] != "torchrun")


def _line(case: Case, done: list[dict[str, Any]]) -> str:
    equal = sum(one["is_equal"] for one in done)
    name = f"{case.fault}, {case.ranks} x {case.backend}, {case.start}"

    def middle(key: str) -> str:
        values = [one[key] for one in done if one[key] is not None]
        return f"{statistics.median(values):.3f} (max {max(values):.3f})" if values else "-"

    return (
        f"{name:38} {equal} of {len(done)} equal; seen after {middle('seen')} s, gone after {middle('gone')} s, "
        f"first line after {middle('began')} s, imported {middle('imported')} s, on device {middle('on device')} s, "
        f"all_reduce after {middle('all_reduce')} s; "
        f"memory of the dead left at the next start: {middle('left')} GiB, "
        f"after the job: {middle('left_at_end')} GiB, of {middle('peak')} in use"
    )


def _job(case: Case, gigabytes: float) -> dict[str, Any]:
    """Run one job and return what it told."""
    device = Device()
    before = device.used()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [str(TRAINING), name, case.fault, str(STEPS), case.backend, str(gigabytes)]
        try:
            ended = subprocess.run(
                [sys.executable, *_launcher(case, folder), *script],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
            code, said = ended.returncode, ended.stderr
        except subprocess.TimeoutExpired as late:
            code, said = -1, (late.stderr or b"").decode(errors="replace")
        if code != 0:
            print(said[-3000:], flush=True)
        told = _told(folder, before)
    time.sleep(0.2)
    return {"exit": code, "left_at_end": (device.used() - before) / 2**30, **told}


def _launcher(case: Case, folder: Path) -> list[str]:
    """Return the module that launches, and its options."""
    group = [f"--nproc-per-node={case.ranks}", "--max-restarts=3", f"--log-dir={folder}"]
    if case.start == "torchrun":
        return ["-m", "torch.distributed.run", "--standalone", *group]
    limits = f"--ft-rank-section-timeouts=setup:90,step:{STEP_LIMIT},checkpointing:60"
    ours = [f"--ft-worker-start={case.start}", limits, "--ft-rank-out-of-section-timeout=60"]
    return ["-m", "launcher", *group, *ours]


def _told(folder: Path, before: int) -> dict[str, Any]:
    notes = [json.loads(line) for path in folder.glob("rank*.jsonl") for line in path.read_text().splitlines()]
    events = [json.loads(line) for path in folder.glob("*/events*.jsonl") for line in path.read_text().splitlines()]
    digests = {path.read_text() for path in folder.glob("digest*")}

    def last(what: str, generation: int) -> int | None:
        return max((n["t_ns"] for n in notes if n["what"] == what and n["generation"] == generation), default=None)

    struck = last("struck", 0)

    def after(at: int | None) -> float | None:
        return None if at is None or struck is None else (at - struck) / 1e9

    def event(kind: str) -> int | None:
        return min((e["t_ns"] for e in events if e["event"] == kind and e.get("generation") == 0), default=None)

    began = [n for n in notes if n["what"] == "began" and n["generation"] == 1]
    trained = [n["used"] - before for n in notes if n["what"] == "trained"]
    return {
        "digest": digests.pop() if len(digests) == 1 else "",
        "seen": after(event("seen")),
        "gone": after(event("stopped")),
        "began": after(last("began", 1)),
        "imported": after(last("imported", 1)),
        "on device": after(last("on device", 1)),
        "all_reduce": after(last("all_reduce", 1)),
        "left": min(n["used"] - before for n in began) / 2**30 if began else None,
        "processes": min(n["processes"] for n in began) if began else None,
        "peak": max(trained) / 2**30 if trained else None,
    }
