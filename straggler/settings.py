"""The detector's settings, checked in one place, each error with the value and the fix."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest
from straggler.scoring.scorer import SCORINGS

__all__ = ["SCORES", "check_settings", "scores"]

SCORES = ("relative_perf_scores", "individual_perf_scores")


def scores(given: str | Sequence[str]) -> tuple[bool, bool]:
    """Which scores are asked for: relative, individual.

    Raises:
        ConfigError: None is, or one is not known.
    """
    if given == "all":
        return True, True
    if isinstance(given, str):
        raise ConfigError(f'scores_to_compute is {given!r}; give "all" or a list of {", ".join(SCORES)}')
    listed = list(given)
    if not listed:
        raise ConfigError(
            f'scores_to_compute is empty: no score is selected; give "all" or some of {", ".join(SCORES)}'
        )
    for score in listed:
        if score not in SCORES:
            raise ConfigError(f"scores_to_compute has {score!r}{nearest(str(score), SCORES)}")
    return SCORES[0] in listed, SCORES[1] in listed


def check_settings(
    *,
    scores_to_compute: str | Sequence[str],
    gather_on_rank0: bool,
    profiling_interval: int,
    report_time_interval: float,
    scoring: str,
    top_k: int,
    report_bound_seconds: float,
) -> tuple[bool, bool]:
    """Check everything that ``Detector.initialize`` takes; what the scores are, as :func:`scores`.

    Raises:
        ConfigError: A setting is out of range.
    """
    if not isinstance(gather_on_rank0, bool):
        raise ConfigError(f"gather_on_rank0 is {gather_on_rank0!r}; expected True or False")
    _whole("profiling_interval", profiling_interval)
    _whole("top_k", top_k)
    if top_k > 4096:
        raise ConfigError(f"top_k is {top_k}; at most 4096 rows of each kind are sent")
    _seconds("report_time_interval", report_time_interval)
    _seconds("report_bound_seconds", report_bound_seconds)
    if scoring not in SCORINGS:
        raise ConfigError(f"scoring is {scoring!r}{nearest(str(scoring), SCORINGS)}")
    return scores(scores_to_compute)


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1")


def _seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; expected seconds above 0")


def check_detector_settings(given: Mapping[str, object], initialize: Callable[..., object]) -> None:
    """Check arguments for ``Detector.initialize`` before there is a detector: names first, then values.

    Args:
        given: The arguments by name.
        initialize: The method itself, whose signature has the names and the defaults.

    Raises:
        ConfigError: A name is not known, or a value is out of range.
    """
    known = inspect.signature(initialize).parameters
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown straggler setting {name!r}{nearest(name, known)}")
    checked = inspect.signature(check_settings).parameters
    values = {name: given.get(name, known[name].default) for name in checked}
    check_settings(**values)  # type: ignore[arg-type]
