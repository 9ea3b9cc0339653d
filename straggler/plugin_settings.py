"""The settings of the straggler plugin: the detector's, and what is done about a straggler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from resilience_core.errors import ConfigError
from straggler.settings import DEFAULT_THRESHOLD, SCORES, DetectorSettings, Thresholds

__all__ = ["DETECTOR_RESOURCES", "PluginSettings"]

DETECTOR_RESOURCES = ("probes", "store", "exchange")
"""Arguments of ``Detector.initialize`` that are objects to work with and no settings."""


@attrs.frozen(kw_only=True)
class PluginSettings:
    """What ``StragglerPlugin`` is told, less the objects and functions it is to work with.

    Args:
        detector: Settings of its detector.
        thresholds: Scores below which a rank is a straggler.
        scores_to_log: How many best and worst scores to log at each report.
        stop_if_detected: End training when a straggler persists.
        exclude_node: Before stopping, ask the launcher to leave the slow rank's node out.

    Raises:
        ConfigError: A setting is out of range, or two of them contradict each other.
    """

    detector: DetectorSettings
    thresholds: Thresholds = attrs.field(factory=Thresholds)
    scores_to_log: int = 0
    stop_if_detected: bool = False
    exclude_node: bool = False

    def __attrs_post_init__(self) -> None:
        count = self.scores_to_log
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"num_gpu_perf_scores_to_log is {count!r}; expected a whole number from 0")
        if self.exclude_node and not self.stop_if_detected:
            raise ConfigError("exclude_node=True needs stop_if_detected=True: a node is left out when its job ends")

    @classmethod
    def from_arguments(
        cls,
        *,
        report_time_interval: float,
        calc_relative_gpu_perf: bool,
        calc_individual_gpu_perf: bool,
        num_gpu_perf_scores_to_log: int,
        gpu_relative_perf_threshold: float | None,
        gpu_individual_perf_threshold: float | None,
        stop_if_detected: bool,
        section_relative_perf_threshold: float | None = None,
        section_individual_perf_threshold: float | None = None,
        exclude_node: bool = False,
        detector: Mapping[str, Any] | None = None,
    ) -> PluginSettings:
        """Make settings from the arguments of ``StragglerPlugin``, which explains them.

        Args:
            report_time_interval: As there, this and the others.
            calc_relative_gpu_perf: As there.
            calc_individual_gpu_perf: As there.
            num_gpu_perf_scores_to_log: As there.
            gpu_relative_perf_threshold: As there.
            gpu_individual_perf_threshold: As there.
            stop_if_detected: As there.
            section_relative_perf_threshold: As there.
            section_individual_perf_threshold: As there.
            exclude_node: As there.
            detector: Further settings of ``Detector.initialize``, by name.

        Raises:
            ConfigError: A setting is out of range or not known, or nothing is to be computed.
        """
        asked = (calc_relative_gpu_perf, calc_individual_gpu_perf)
        scores = [score for score, is_asked in zip(SCORES, asked, strict=True) if is_asked]
        if not scores:
            raise ConfigError(
                "calc_relative_gpu_perf and calc_individual_gpu_perf are both False: nothing would be computed; "
                "set one of them, or leave the plugin out"
            )
        of_detector = {
            "scores_to_compute": scores,
            "report_time_interval": report_time_interval,
            **(detector or {}),
        }
        return cls(
            detector=DetectorSettings.from_arguments(of_detector, also_known=DETECTOR_RESOURCES),
            thresholds=Thresholds(
                gpu_rel_threshold=_given(gpu_relative_perf_threshold),
                gpu_indiv_threshold=_given(gpu_individual_perf_threshold),
                section_rel_threshold=_given(section_relative_perf_threshold),
                section_indiv_threshold=_given(section_individual_perf_threshold),
            ),
            scores_to_log=num_gpu_perf_scores_to_log,
            stop_if_detected=stop_if_detected,
            exclude_node=exclude_node,
        )


def _given(threshold: float | None) -> float:
    return DEFAULT_THRESHOLD if threshold is None else threshold
