"""The straggler detector, alone and as a plugin."""

from collections.abc import Mapping
from typing import Any

from resilience_core import bus
from straggler import (
    CallableId,
    Detector,
    DetectorError,
    Report,
    RobustSettings,
    State,
    StragglerId,
    StragglerPlugin,
    Verdict,
)


class Model:
    def forward(self) -> None: ...


def decide(report: Report) -> Mapping[str, Any]:
    return {"stop": report.has_stragglers()}


def train() -> None:
    Detector.initialize(report_time_interval=60.0, scoring="robust", settings=RobustSettings())
    Detector.wrap_callables([CallableId(Model, "forward")])
    with Detector.detection_section("forward", profile_cuda=False, kind="work"):
        pass
    report: Report | None = Detector.generate_report_if_interval_elapsed()
    if report is not None and report.has_stragglers():
        print(report.table())
        slow: set[StragglerId] = report.identify_stragglers(gpu_rel_threshold=0.7)["straggler_gpus_relative"]
        verdict: Verdict = report.verdict(0)
        print(slow, verdict.state is State.SLOW, report.gpu_relative_perf_scores)
    Detector.set_decision_hook(decide)
    Detector.shutdown()

    own = Detector()
    own.initialize(scores_to_compute=["relative_perf_scores"], gather_on_rank0=False)
    if own.is_interval_elapsed():
        own.generate_report()
    own.shutdown()
    try:
        initialized: bool = Detector.initialized
    except DetectorError:
        initialized = False
    print(initialized)
    bus().register(StragglerPlugin(report_time_interval=60, stop_if_detected=True, on_report=print))
