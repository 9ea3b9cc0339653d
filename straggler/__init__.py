"""Straggler detection: find the slow ranks, and tell with which confidence.

Works as a plugin of the event bus, or alone::

    from straggler import Detector

    Detector.initialize(report_time_interval=60.0)
    for batch in loader:
        with Detector.detection_section("forward"):
            loss = model(batch)
        report = Detector.generate_report_if_interval_elapsed()
        if report is not None and report.has_stragglers():
            print(report.table())
    Detector.shutdown()

Folders, in the order of what happens: ``measurement`` and ``probes`` measure, ``exchange`` carries the samples to rank
0, ``scoring`` judges them, ``reporting`` says what was found; ``simulation`` tests the scores against known truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from straggler.detector import Detector as Detector
    from straggler.errors import DetectorError as DetectorError
    from straggler.errors import SectionNameError as SectionNameError
    from straggler.measurement.callables import CallableId as CallableId
    from straggler.measurement.summary import Statistic as Statistic
    from straggler.plugin import STRAGGLER_EXIT_CODE as STRAGGLER_EXIT_CODE
    from straggler.plugin import StragglerPlugin as StragglerPlugin
    from straggler.probes.probe import Probe as Probe
    from straggler.reporting.identification import StragglerId as StragglerId
    from straggler.reporting.report import Report as Report
    from straggler.reporting.verdict import State as State
    from straggler.reporting.verdict import Verdict as Verdict
    from straggler.settings import RobustSettings as RobustSettings

    __version__: str

__distribution__ = "torch-resilience"

_EXPORTS = {
    "CallableId": "measurement.callables",
    "Detector": "detector",
    "DetectorError": "errors",
    "Probe": "probes.probe",
    "Report": "reporting.report",
    "RobustSettings": "settings",
    "STRAGGLER_EXIT_CODE": "plugin",
    "SectionNameError": "errors",
    "State": "reporting.verdict",
    "Statistic": "measurement.summary",
    "StragglerId": "reporting.identification",
    "StragglerPlugin": "plugin",
    "Verdict": "reporting.verdict",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there
    __getattr__, __dir__ = attach(__name__, _EXPORTS)

__all__ = [
    "CallableId",
    "Detector",
    "DetectorError",
    "Probe",
    "Report",
    "RobustSettings",
    "STRAGGLER_EXIT_CODE",
    "SectionNameError",
    "State",
    "Statistic",
    "StragglerId",
    "StragglerPlugin",
    "Verdict",
]
