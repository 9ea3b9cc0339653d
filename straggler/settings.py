"""The settings of straggler detection, checked when they are made."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest
from straggler.setting_checks import check_flag, check_number, check_seconds, check_type, check_whole

__all__ = [
    "DEFAULT_THRESHOLD",
    "SCORES",
    "SCORINGS",
    "DetectorSettings",
    "RobustSettings",
    "Scoring",
    "Thresholds",
    "check_threshold",
]

SCORES = ("relative_perf_scores", "individual_perf_scores")

Scoring = Literal["robust", "minimum"]
SCORINGS: tuple[Scoring, ...] = ("robust", "minimum")

_MOST_ROWS = 4096


class _Default(float):
    """A threshold that the user has not given; the type tells it from one that is equal and was given."""

    def __repr__(self) -> str:
        return f"{float(self):g}"


DEFAULT_THRESHOLD: float = _Default(0.75)


def _check_m_holds_k(instance: RobustSettings, _: attrs.Attribute[int], value: int) -> None:
    if instance.k > value:
        raise ConfigError(
            f"RobustSettings.k is {instance.k}, of the last m = {value} windows; expected k to be at most m"
        )


@attrs.frozen(kw_only=True)
class RobustSettings:
    """What SLOW means. The defaults were evaluated on the simulator.

    Args:
        ratio_floor: Slower than the peers by less than this is never SLOW (0.07: 7 %).
        change_floor: A change by less than this, against one's own past, is never SLOW.
        k: Windows over half the bar, out of the last ``m``, before SLOW.
        m: See ``k``; at most 8.
        pool: Windows averaged at the shortest scale.
        learning_windows: Windows of a rank's own past before the change test.
        release_windows: Windows under half the bar before SLOW ends.
        min_samples: Samples in a window below which it says nothing.
        implausible: Share of the peers' time below which a measurement is not believed.
        false_alarms: Chance that a healthy rank is named in the first windows of a job, were the spread normal.
        false_alarms_per_day: The same for each later day of a report a minute.

    Raises:
        ConfigError: One is out of range; the message names it.
    """

    ratio_floor: float = attrs.field(default=0.07, validator=check_number(0.001, 100.0))
    change_floor: float = attrs.field(default=0.042, validator=check_number(0.001, 100.0))
    k: int = attrs.field(default=3, validator=check_whole(1, 8))
    m: int = attrs.field(default=4, validator=[check_whole(1, 8), _check_m_holds_k])
    pool: int = attrs.field(default=3, validator=check_whole(1, 8))
    learning_windows: int = attrs.field(default=8, validator=check_whole(2, 1000))
    release_windows: int = attrs.field(default=2, validator=check_whole(1, 1000))
    min_samples: int = attrs.field(default=3, validator=check_whole(1, 10**6))
    implausible: float = attrs.field(default=0.65, validator=check_number(0.0, 1.0))
    false_alarms: float = attrs.field(default=0.01, validator=check_number(1e-12, 0.5))
    false_alarms_per_day: float = attrs.field(default=0.001, validator=check_number(1e-12, 0.5))


def check_threshold(name: str, value: object) -> None:
    """Check that an argument is a score below which a rank is slow.

    Args:
        name: Of the argument.
        value: What was given.

    Raises:
        ConfigError: It is no number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value!r}; a score is between 0 (slowest) and 1, for example 0.75")


def _check_threshold(_: Thresholds, attribute: attrs.Attribute[float], value: float) -> None:
    check_threshold(attribute.name, value)


@attrs.frozen(kw_only=True)
class Thresholds:
    """Scores below which a rank is a straggler, each from 0 to 1.

    With robust scores :data:`DEFAULT_THRESHOLD` stands for the robust state, which finds 10 %.

    Args:
        gpu_rel_threshold: For GPU scores against the peers.
        section_rel_threshold: For section scores against the peers.
        gpu_indiv_threshold: For GPU scores against the rank's own past.
        section_indiv_threshold: For section scores against the rank's own past.

    Raises:
        ConfigError: One is not a number from 0 to 1.
    """

    gpu_rel_threshold: float = attrs.field(default=DEFAULT_THRESHOLD, validator=_check_threshold)
    section_rel_threshold: float = attrs.field(default=DEFAULT_THRESHOLD, validator=_check_threshold)
    gpu_indiv_threshold: float = attrs.field(default=DEFAULT_THRESHOLD, validator=_check_threshold)
    section_indiv_threshold: float = attrs.field(default=DEFAULT_THRESHOLD, validator=_check_threshold)

    @staticmethod
    def is_default(threshold: float) -> bool:
        """Return whether the user has not given this threshold."""
        return isinstance(threshold, _Default)


def _to_scores(given: str | Sequence[str]) -> tuple[str, ...]:
    if given == "all":
        return SCORES
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f'scores_to_compute is {given!r}; give "all" or a list of {", ".join(SCORES)}')
    listed = tuple(given)
    if not listed:
        raise ConfigError(
            f'scores_to_compute is empty: no score is selected; give "all" or some of {", ".join(SCORES)}'
        )
    for score in listed:
        if score not in SCORES:
            raise ConfigError(f"scores_to_compute has {score!r}{nearest(str(score), SCORES)}")
    return listed


def _to_node_name(given: str | None) -> str:
    if given is None:
        return socket.gethostname()
    if not isinstance(given, str):
        raise ConfigError(f'DetectorSettings.node_name is {given!r}; expected text, such as "node-1", or None')
    if not given or not given.isprintable():
        raise ConfigError(
            f'DetectorSettings.node_name is {given!r}; expected printable text, such as "node-1", or None'
        )
    return given


def _to_peer_group(given: object) -> str:
    if " at 0x" in str(given):  # an address, as the text of an object has it that defines none of its own
        raise ConfigError(
            f"DetectorSettings.peer_group is {given!r}, whose text is another on each rank; expected a value with "
            'equal text on ranks that do the same work, such as ("stage", 3), or None'
        )
    return "" if given is None else str(given)


def _to_robust(given: RobustSettings | None) -> RobustSettings:
    return RobustSettings() if given is None else given


def _check_robust(instance: DetectorSettings, _: attrs.Attribute[RobustSettings], value: RobustSettings) -> None:
    if instance.scoring != "robust" and value != RobustSettings():
        raise ConfigError(
            f'settings are for scoring="robust", and scoring is {instance.scoring!r}, which has none; leave one out'
        )


def _to_path(given: object) -> Path | None:
    if given is None:
        return given
    path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if isinstance(path, str) and path and "\0" not in path:
        return Path(path)
    raise ConfigError(f'DetectorSettings.log_path is {given!r}; expected a path, for example "reports.jsonl", or None')


def _check_scoring(_: Any, attribute: attrs.Attribute[Scoring], value: Scoring) -> None:
    if value not in SCORINGS:
        raise ConfigError(f"{attribute.name} is {value!r}{nearest(str(value), SCORINGS)}")


@attrs.frozen(kw_only=True)
class DetectorSettings:
    """The arguments of ``Detector.initialize``, except the objects that it works with.

    Args:
        scores_to_compute: ``"all"`` or a list of :data:`SCORES`; kept as a tuple.
        gather_on_rank0: Rank 0's reports hold all ranks and the others get None.
        profiling_interval: Measure every n-th entry of each section.
        report_time_interval: Seconds between reports.
        node_name: Name of this machine; None: its host name.
        scoring: ``"robust"`` or ``"minimum"``.
        settings: What SLOW means to robust scoring, kept as ``robust``; None: the defaults.
        peer_group: Equal on ranks that do the same work; kept as text, ``""`` for None.
        top_k: Rows of each kind that a rank sends, at most 4096.
        report_bound_seconds: How long a report waits for ranks that do not answer.
        log_path: JSONL file that rank 0 appends every report to.

    Raises:
        ConfigError: A setting is out of range; the message names it.
    """

    scores_to_compute: tuple[str, ...] = attrs.field(default=SCORES, converter=_to_scores)
    gather_on_rank0: bool = attrs.field(default=True, validator=check_flag)
    profiling_interval: int = attrs.field(default=1, validator=check_whole(1))
    report_time_interval: float = attrs.field(default=60.0, validator=check_seconds)
    node_name: str = attrs.field(default=None, converter=_to_node_name)
    scoring: Scoring = attrs.field(default="robust", validator=_check_scoring)
    robust: RobustSettings = attrs.field(
        default=None, alias="settings", converter=_to_robust, validator=[check_type(RobustSettings), _check_robust]
    )
    peer_group: str = attrs.field(default=None, converter=_to_peer_group)
    top_k: int = attrs.field(default=32, validator=check_whole(1, _MOST_ROWS))
    report_bound_seconds: float = attrs.field(default=10.0, validator=check_seconds)
    log_path: Path | None = attrs.field(default=None, converter=_to_path)

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any], also_known: Sequence[str] = ()) -> DetectorSettings:
        """Make settings from arguments whose names nobody has checked yet.

        Args:
            given: Settings by name.
            also_known: Names that the caller takes itself, to suggest for a misspelt one.

        Raises:
            ConfigError: A name is not known, or a value is out of range.
        """
        known = [field.alias for field in attrs.fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown straggler setting {name!r}{nearest(name, [*known, *also_known])}")
        return cls(**given)

    @property
    def has_relative_scores(self) -> bool:
        """Return whether ranks are compared with their peers."""
        return SCORES[0] in self.scores_to_compute

    @property
    def has_individual_scores(self) -> bool:
        """Return whether ranks are compared with their own past."""
        return SCORES[1] in self.scores_to_compute
