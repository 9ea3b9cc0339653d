"""Settings for when a rank is overdue: the limits, and how they are learned."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from resilience_core.config import converters as values
from resilience_core.config.setting import described

__all__ = ["LimitSettings"]


def _no_sections() -> Mapping[str, float | None]:
    return MappingProxyType({})


@attrs.frozen(kw_only=True, slots=False)
class LimitSettings:
    """When a rank is overdue."""

    initial_rank_heartbeat_timeout: float | None = attrs.field(
        default=3600.0,
        converter=values.timeout,
        metadata=described("SECONDS", "Longest time from init_workload_monitoring to the first heartbeat."),
    )
    rank_heartbeat_timeout: float | None = attrs.field(
        default=2700.0,
        converter=values.timeout,
        metadata=described(
            "SECONDS",
            "Longest time between two heartbeats. None is sent while the loop loads or saves a checkpoint, so the "
            "longest save must fit in.",
        ),
    )
    rank_section_timeouts: Mapping[str, float | None] = attrs.field(
        factory=_no_sections,
        converter=values.sections,
        hash=False,  # a mapping has none; equal configurations have equal hashes without it
        metadata=described(
            "NAME:SECONDS,...",
            "Longest time that each section may stay open, as setup:600,step:180,checkpointing:420. Once any is "
            "named, a section that is used but not named is an error. On the command line each named section replaces "
            "the one of the file.",
        ),
    )
    rank_out_of_section_timeout: float | None = attrs.field(
        default=None,
        converter=values.timeout,
        metadata=described("SECONDS", "Longest time that a rank may be in no section at all."),
    )
    rank_startup_timeout: float | None = attrs.field(
        default=None,
        converter=values.timeout,
        metadata=described(
            "SECONDS",
            "Longest time from the start of a worker process to init_workload_monitoring: imports, data, process "
            "group. It counts once a rank on the node has called that, or if the script, or a module beside it that it "
            "imports, imports resilience_core or adapters; installed packages are not searched. Otherwise the rank is "
            "spared, with a message, since the job may not use monitoring at all.",
        ),
    )
    rank_exit_timeout: float | None = attrs.field(
        default=None,
        converter=values.timeout,
        metadata=described(
            "SECONDS",
            "Longest time that a worker may live on after shutdown_workload_monitoring(); it is killed then, and has "
            "failed. Must be long enough for a last upload. null: no limit.",
        ),
    )
    num_warmup_iterations: int = attrs.field(
        default=1,
        converter=values.count,
        metadata=described(
            "COUNT",
            "First training steps of a process, and first steps of each evaluation, that open no 'step' section.",
        ),
    )
    safety_factor: float = attrs.field(
        default=5.0,
        converter=values.factor,
        metadata=described(
            "FACTOR",
            "A learned timeout is this many times the longest interval observed since the last calculation, averaged "
            "with the one before where that was learned; with learned_limits relax never less than this many times "
            "the longest of the last 24 hours of observation.",
        ),
    )
    learned_timeout_floor: float = attrs.field(
        default=1.0,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "Minimum for learned timeouts, including those from a state file, except where one lengthens a shorter "
            "configured timeout; 0 switches it off.",
        ),
    )
    learned_limits: str = attrs.field(
        default="relax",
        converter=values.learning,
        metadata=described(
            "off|relax|replace",
            "What a learned timeout may do: nothing (off); apply where none is configured and lengthen, but never "
            "undercut, one that is (relax); or replace it (replace).",
        ),
    )
    thin_evidence_floor: float = attrs.field(
        default=60.0,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "With learned_limits relax: minimum for learned timeouts that rest on fewer than 300 intervals, less than "
            "an hour, or only another run, and for those of heartbeats and out-of-section time; 60 times as long if "
            "no restart is left. 0 switches it off.",
        ),
    )
