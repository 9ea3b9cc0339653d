"""What an incident tells of a rank that hangs on a GPU: NVML, numbers of collectives, native frames, times.

python -m benchmarks.gpu.evidence

Ends with 2 where there is no GPU, and with 1 when something is not as promised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import NoGpuError, machine
from launcher.incidents.gpus import GpuEvidence
from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incidents

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[2]
LOOKS = 20
HOLDS_MEMORY = """
import sys, torch
held = torch.ones(1 << 28, device="cuda")  # 1 GiB
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""
HANGS = """
import json, threading, time
import torch, torch.distributed as dist
from resilience_core import RankMonitorClient

torch.cuda.set_device(0)
dist.init_process_group("nccl")
client = RankMonitorClient()
client.init_workload_monitoring()
values = torch.ones(1024, device="cuda")

def tell():
    time.sleep(1.5)
    c10d = torch._C._distributed_c10d
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            began = time.perf_counter()
            text = dump(True, True)
            took = (time.perf_counter() - began) * 1e3
            print(f"{name}(True, True), {took:.1f} ms:", text.decode()[:3000], flush=True)

for number in range(12):
    with client.section("step"):
        if number == 11:
            threading.Thread(target=tell, daemon=True).start()
            torch.cuda._sleep(1 << 40)  # minutes: what follows on this stream waits for it
        dist.all_reduce(values)
        values.sum().item()
"""


def run() -> tuple[dict[str, Any], bool]:
    """Look at a process that holds memory of a GPU, then let a rank hang behind a kernel; print what came."""
    nvml, nvml_is_right = _nvml_lines()
    incident, output, seconds = _hang()
    print(output, flush=True)
    if incident is None:
        print("no incident was written", flush=True)
        return {"nvml": nvml, "incident": None}, False
    print("\n".join(incident.report()), flush=True)
    (rank,) = incident.ranks
    evidence = rank.evidence
    group = evidence.groups[0] if evidence is not None and evidence.groups else None
    print(f"groups: {evidence.groups if evidence is not None else None}, idle: {evidence and evidence.is_idle}")
    print(
        f"from the verdict to the incident's file: {seconds:.3f} s; why no native frames: {rank.no_native}", flush=True
    )
    checks = {
        "NVML told of the process": nvml_is_right,
        "the incident has a line for the GPU": any(line.startswith("GPU 0") for line in incident.machine),
        "the number of the collective": group is not None and group.first_undone == 12,
        "its name": group is not None and "all_reduce" in group.operation.lower(),
        "native frames": bool(rank.native),
    }
    for name, is_right in checks.items():
        print(f"{name}: {'yes' if is_right else 'NO'}", flush=True)
    return {"nvml": nvml, "incident": incident.to_json(), "checks": checks}, all(checks.values())


def _nvml_lines() -> tuple[dict[str, Any], bool]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        times, lines = [], []
        evidence = GpuEvidence()
        for _ in range(LOOKS):
            began = time.monotonic()
            lines = evidence.begin({holder.pid: "rank 0"}, 10.0, were_used=False).told()
            times.append(time.monotonic() - began)
    finally:
        holder.kill()
        holder.communicate()
    print("\n".join(lines))
    if not any("(rank 0)" in line for line in lines):
        print("NVML knows the process by another number, as in a container: every GPU is told")
    print(f"{LOOKS} looks: first {times[0] * 1e3:.1f} ms, then at most {max(times[1:]) * 1e3:.1f} ms", flush=True)
    return {"lines": lines, "seconds": times}, any("MHz" in line and "MiB used" in line for line in lines)


def _hang() -> tuple[Incident | None, str, float]:
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(HANGS)
        options = ["--nproc-per-node=1", "--max-restarts=0", f"--log-dir={name}/logs"]
        options += ["--ft-rank-section-timeouts=step:6", "--ft-stack-capture-timeout=15"]
        job = subprocess.run(
            [sys.executable, "-m", "launcher", *options, str(script)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        found = list(read_incidents(f"{name}/logs/latest"))
        if not found:
            return None, job.stdout, 0.0
        assert found[0].folder is not None
        written = os.stat(os.path.join(found[0].folder, "incident.json")).st_mtime
        seconds = written - (time.time() - (time.monotonic_ns() - found[0].seen_ns) / 1e9)
        return found[0], job.stdout, seconds


def main() -> int:
    """Run on a machine with a GPU."""
    try:
        print(machine(), flush=True)
    except NoGpuError as error:
        needs = "it needs a GPU, a CUDA build of torch and nvidia-ml-py"
        print(f"benchmarks.gpu.evidence: {error}; {needs}", file=sys.stderr)
        return 2
    return 0 if run()[1] else 1


if __name__ == "__main__":
    sys.exit(main())
