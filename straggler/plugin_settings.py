"""The settings of the straggler plugin: the detector's, and what is done about a straggler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from resilience_core.errors import ConfigError
from straggler.setting_checks import check_flag, check_function, check_resources, check_type, check_whole
from straggler.settings import DEFAULT_THRESHOLD, SCORES, DetectorSettings, Thresholds, check_threshold

__all__ = ["DETECTOR_RESOURCES", "PluginSettings", "take_resources"]

DETECTOR_RESOURCES = ("probes", "store", "exchange")
"""Arguments of ``Detector.initialize`` that are objects to work with and no settings."""


def take_resources(
    settings: dict[str, Any], logger_name: object, save_checkpoint: object, on_report: object
) -> dict[str, Any]:
    """Take the objects that the plugin's detector works with out of its settings; check them, and these arguments.

    Args:
        settings: Further arguments of ``Detector.initialize``.
        logger_name: As for ``StragglerPlugin``, this and the others.
        save_checkpoint: As there.
        on_report: As there.

    Raises:
        ConfigError: One of them is of another type.
    """
    resources = {name: settings.pop(name) for name in DETECTOR_RESOURCES if name in settings}
    check_resources(**resources)
    check_function("save_checkpoint", save_checkpoint)
    check_function("on_report", on_report)
    if logger_name is not None and not isinstance(logger_name, str):
        raise ConfigError(f"logger_name is {logger_name!r}; expected the name of a logger, or None")
    return resources


def _check_exclude_node(instance: PluginSettings, _: attrs.Attribute[bool], value: bool) -> None:
    if value and not instance.stop_if_detected:
        raise ConfigError("exclude_node=True needs stop_if_detected=True: a node is left out when its job ends")


@attrs.frozen(kw_only=True)
class PluginSettings:
    """The arguments of ``StragglerPlugin``, except the objects and functions that it works with.

    Args:
        detector: Settings of its detector.
        thresholds: Scores below which a rank is a straggler.
        num_gpu_perf_scores_to_log: Kept as ``scores_to_log``: how many best and worst scores to log at each report.
        stop_if_detected: End training when a straggler persists.
        exclude_node: Before stopping, ask the launcher to leave the slow rank's node out.

    Raises:
        ConfigError: A setting is out of range, or two of them contradict each other.
    """

    detector: DetectorSettings = attrs.field(validator=check_type(DetectorSettings))
    thresholds: Thresholds = attrs.field(factory=Thresholds, validator=check_type(Thresholds))
    scores_to_log: int = attrs.field(default=0, alias="num_gpu_perf_scores_to_log", validator=check_whole(0))
    stop_if_detected: bool = attrs.field(default=False, validator=check_flag)
    exclude_node: bool = attrs.field(default=False, validator=[check_flag, _check_exclude_node])

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
        flags = {"calc_relative_gpu_perf": calc_relative_gpu_perf, "calc_individual_gpu_perf": calc_individual_gpu_perf}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise ConfigError(f"{name} is {flag!r}; expected True or False")
        scores = [score for score, is_asked in zip(SCORES, flags.values(), strict=True) if is_asked]
        if not scores:
            raise ConfigError(
                "calc_relative_gpu_perf and calc_individual_gpu_perf are both False: nothing would be computed; "
                "set one of them, or leave the plugin out"
            )
        thresholds = {
            "gpu_relative_perf_threshold": gpu_relative_perf_threshold,
            "gpu_individual_perf_threshold": gpu_individual_perf_threshold,
            "section_relative_perf_threshold": section_relative_perf_threshold,
            "section_individual_perf_threshold": section_individual_perf_threshold,
        }
        for name, threshold in thresholds.items():
            if threshold is not None:
                check_threshold(name, threshold)
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
                # Who asks for 0.7 of a GPU does not want training stopped for a section that is 7 % slower.
                section_rel_threshold=_given(section_relative_perf_threshold, gpu_relative_perf_threshold),
                section_indiv_threshold=_given(section_individual_perf_threshold, gpu_individual_perf_threshold),
            ),
            num_gpu_perf_scores_to_log=num_gpu_perf_scores_to_log,
            stop_if_detected=stop_if_detected,
            exclude_node=exclude_node,
        )


def _given(*thresholds: float | None) -> float:
    return next((threshold for threshold in thresholds if threshold is not None), DEFAULT_THRESHOLD)
