"""The straggler detector's probes on a real GPU: what they see of known work, and what a section costs with them."""

from __future__ import annotations

import statistics
import time
from typing import Any

from straggler import Detector, Statistic
from straggler.probes.cuda_events import CudaEventsProbe
from straggler.probes.cupti import CuptiProbe
from straggler.probes.nvml import NvmlProbe
from straggler.probes.probe import Probe

__all__ = ["run"]

REPORTS = 6
ENTRIES = 64
COST_ENTRIES = 2_000


def run() -> tuple[dict[str, Any], bool]:
    """Run known work under each probe and print what it has seen; False when a probe has seen nothing or wrong."""
    import torch

    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(10):
        matrix @ matrix
    torch.cuda.synchronize()
    truth = _truth(torch, matrix)
    found: dict[str, Any] = {"truth_ms": truth}
    events = _rows([CudaEventsProbe()], torch, matrix)
    kernels = _rows([CuptiProbe(sample_every=2)], torch, matrix)
    found |= {"events": events, "kernels": kernels, "device": _state()}
    after = _after_profiler(torch, matrix)
    found |= {"kernels_after_torch_profiler": after}
    print(f"one product takes {truth:.4f} ms by events of its own")
    print(f"CUDA events, {REPORTS} reports: {events}\nCUPTI kernels, {REPORTS} reports: {kernels}")
    print(f"CUPTI kernels around a torch.profiler session: {after}\nNVML: {found['device']}")
    found["cost_us"] = {name: _cost(probes) for name, probes in _costs().items()}
    print(f"a section of nothing, in us: {found['cost_us']}", flush=True)
    # No kernels are seen while torch.profiler runs, nor in the window in which the loss of the callbacks is noticed.
    around = [report for index, report in enumerate(after[:-1]) if index not in (1, 4)]
    is_right = all(_is_near(report, truth) for report in (*events, *kernels, *around))
    (counts,) = after[-1].values() if len(after) > 1 else ([],)
    is_right &= all(count >= ENTRIES for count in counts)
    return found, is_right


def _truth(torch: Any, matrix: Any) -> float:
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(50)]
    for begin, end in pairs:
        begin.record()
        matrix @ matrix
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs)


def _is_near(report: dict[str, Any], truth_ms: float) -> bool:
    longest = max(report["ms"].values(), default=0.0)
    return 0.7 * truth_ms < longest < 1.5 * truth_ms


def _rows(probes: list[Probe], torch: Any, matrix: Any) -> list[dict[str, Any]]:
    """Return the medians by name, in milliseconds, and the notes of each report of a detector with these probes."""
    detector = Detector()
    reasons = [probe.unavailable_because() for probe in probes]
    if any(reasons):
        return [{"ms": {}, "notes": reasons}]
    detector.initialize(probes=probes)
    reports = [_window(detector, torch, matrix) for _ in range(REPORTS)]
    detector.shutdown()
    return reports


def _window(detector: Detector, torch: Any, matrix: Any) -> dict[str, Any]:
    for _ in range(ENTRIES):
        with detector.detection_section("product"):
            matrix @ matrix
    torch.cuda.synchronize()
    report = detector.generate_report()
    if report is None:
        return {"ms": {}, "notes": ["no report"]}
    rows = report.local_kernel_summaries
    medians = {name[:60]: round(float(row[Statistic.MED]) * 1e-3, 4) for name, row in rows.items()}
    return {"ms": medians, "notes": list(report.notes)}


def _after_profiler(torch: Any, matrix: Any) -> list[dict[str, Any]]:
    """Return the reports around sessions of torch.profiler, and how many CUDA events each session counts."""
    probe = CuptiProbe(sample_every=2)
    if reason := probe.unavailable_because():
        return [{"ms": {}, "notes": [reason]}]
    detector = Detector()
    detector.initialize(probes=[probe])
    reports = [_window(detector, torch, matrix)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        reports.append(_window(detector, torch, matrix))
    reports += [_window(detector, torch, matrix) for _ in range(2)]
    counts = [_events_of(seen)]
    # A session that begins and ends between two windows, which the probe cannot see.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as between:
        for _ in range(ENTRIES):
            matrix @ matrix
        torch.cuda.synchronize()
    reports += [_window(detector, torch, matrix) for _ in range(3)]
    # And one that begins inside a sampled section.
    section = detector.detection_section("outer")
    section.__enter__()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as inside:
        section.__exit__(None, None, None)
        for _ in range(ENTRIES):
            matrix @ matrix
        torch.cuda.synchronize()
    reports += [_window(detector, torch, matrix) for _ in range(3)]
    detector.shutdown()
    return [
        *reports,
        {"CUDA events of each session of torch.profiler": [*counts, _events_of(between), _events_of(inside)]},
    ]


def _events_of(session: Any) -> int:
    return sum(event.count for event in session.key_averages() if event.device_type.name == "CUDA")


def _state() -> dict[str, float] | str:
    from straggler.measurement.measured import STATE_FIELDS

    probe = NvmlProbe()
    if reason := probe.unavailable_because():
        return reason
    probe.start()
    device = probe.collect().device
    probe.stop()
    assert device is not None
    return {field: float(value) for field, value in zip(STATE_FIELDS, device, strict=True)}


def _costs() -> dict[str, list[Probe]]:
    return {
        "no probe": [],
        "CUDA events": [CudaEventsProbe()],
        "CUPTI, one in 8": [CuptiProbe()],
        "both": [CudaEventsProbe(), CuptiProbe()],
    }


def _cost(probes: list[Probe]) -> float | str:
    """Return the mean microseconds of an entry of an empty section, the median of five batches."""
    for probe in probes:
        if reason := probe.unavailable_because():
            return reason
    detector = Detector()
    detector.initialize(probes=probes)
    batches = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(COST_ENTRIES):
            with detector.detection_section("nothing"):
                pass
        batches.append((time.perf_counter() - start) / COST_ENTRIES * 1e6)
        detector.generate_report()
    detector.shutdown()
    return round(statistics.median(batches), 2)
