"""Stragglers: find the slow rank, and say how sure.

One subscriber of the event bus among others, and usable alone::

    from straggler import Detector

    Detector.initialize(report_time_interval=60.0)
    for batch in loader:
        with Detector.detection_section("forward"):
            loss = model(batch)
        report = Detector.generate_report_if_interval_elapsed()
        if report is not None and report.has_stragglers():
            print(report.table())
    Detector.shutdown()

Rooms: ``sections`` and the ``probe_*`` files measure, ``window`` and ``exchange`` carry, ``matrix`` lines the
ranks up, ``scoring_minimum`` and ``scoring_robust`` judge, ``verdicts`` and ``report`` tell, ``report_log`` and
``plots`` draw, ``simulator`` and ``exam`` test the judgement against known truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from straggler.callables import CallableId as CallableId
    from straggler.detector import Detector as Detector
    from straggler.errors import DetectorError as DetectorError
    from straggler.errors import SectionNameError as SectionNameError
    from straggler.plugin import STRAGGLER_EXIT_CODE as STRAGGLER_EXIT_CODE
    from straggler.plugin import StragglerPlugin as StragglerPlugin
    from straggler.probe import Probe as Probe
    from straggler.report import Report as Report
    from straggler.report import StragglerId as StragglerId
    from straggler.scoring_robust import RobustSettings as RobustSettings
    from straggler.statistics import Statistic as Statistic
    from straggler.verdicts import State as State
    from straggler.verdicts import Verdict as Verdict

__distribution__ = "torch-resilience"

_EXPORTS = {
    "CallableId": "callables",
    "Detector": "detector",
    "DetectorError": "errors",
    "Probe": "probe",
    "Report": "report",
    "RobustSettings": "scoring_robust",
    "STRAGGLER_EXIT_CODE": "plugin",
    "SectionNameError": "errors",
    "State": "verdicts",
    "Statistic": "statistics",
    "StragglerId": "report",
    "StragglerPlugin": "plugin",
    "Verdict": "verdicts",
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
