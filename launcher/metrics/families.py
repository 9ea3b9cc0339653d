"""Every metric that a node serves: its name, type, labels and meaning. The documentation has the same table.

Names follow Prometheus' conventions: one prefix, base units, ``_total`` for what only grows, ``_info`` for what is told
by labels alone.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CLOSE_CALLS",
    "COMMON_LABELS",
    "COUNTER",
    "DAMAGED",
    "DETECTION",
    "FAMILIES",
    "FENCED",
    "GAUGE",
    "GENERATION",
    "HEARTBEAT_AGE",
    "HISTOGRAM",
    "INFO",
    "ITERATION",
    "LIMIT",
    "LOG_AGE",
    "LOG_LINES_LOST",
    "MEMORY",
    "MONITORS_REPLACED",
    "MONITOR_UP",
    "NEAR_MISSES",
    "RANKS",
    "RECOVERY",
    "RESTART",
    "RESTARTS",
    "RUN",
    "SECTION_DURATION",
    "SECTION_OPEN",
    "SLACK",
    "SLOWDOWN",
    "STEPS",
    "STRAGGLER_REPORTS",
    "Family",
    "sample_names",
]

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"

COMMON_LABELS = ("run", "node")
"""Of every sample: which run, since runs follow each other at one port, and on which node."""

_RANK = ("rank", "local_rank")


class Family(NamedTuple):
    """One metric."""

    name: str
    """As it is written in a query; of a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    kind: str
    labels: tuple[str, ...]
    """Besides ``COMMON_LABELS``, and ``le`` of a histogram."""
    meaning: str

    @property
    def unit(self) -> str:
        """The unit that ends its name; empty where there is none."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes", "ratio") if stem.endswith(f"_{unit}")), "")


HEARTBEAT_AGE = Family(
    "ft_heartbeat_age_seconds",
    GAUGE,
    _RANK,
    "Time since the rank last sent a heartbeat, opened a section or left one.",
)
SLACK = Family(
    "ft_slack_seconds",
    GAUGE,
    _RANK,
    "Time left to the nearest deadline of the rank; negative once it has passed, missing while no limit runs.",
)
ITERATION = Family("ft_iteration", GAUGE, _RANK, "The iteration that the rank is in.")
STEPS = Family(
    "ft_steps_total",
    COUNTER,
    _RANK,
    "Training steps that the rank has passed, from the first to the last one that has ended, in all generations on "
    "this node: one that an exception has left counts once a later one has ended; steps that are repeated after a "
    "restart count again. Of a rank that never calls note_step_done(), closed sections step count. Missing instead of "
    "0 once lines of the figures are lost.",
)
SECTION_OPEN = Family(
    "ft_section_open_seconds",
    GAUGE,
    (*_RANK, "section"),
    "For how long a section has been open; one series for each open section.",
)
SECTION_DURATION = Family(
    "ft_section_duration_seconds",
    HISTOGRAM,
    (*_RANK, "section"),
    "How long sections were open, in all generations on this node, without those that an exception has left; a bucket "
    "is twice as wide as the one before.",
)
CLOSE_CALLS = Family(
    "ft_close_calls_total",
    COUNTER,
    (*_RANK, "section"),
    "Sections that were closed after 80 % of their limit or later.",
)
LIMIT = Family(
    "ft_limit_seconds",
    GAUGE,
    (*_RANK, "limit", "section", "source"),
    "A limit in force: its kind (section, heartbeat, ...), the section's name where it is one's, and where it comes "
    "from (configured, learned, default).",
)
MEMORY = Family("ft_resident_memory_bytes", GAUGE, _RANK, "Resident memory of the rank's process.")
SLOWDOWN = Family(
    "ft_straggler_slowdown_ratio",
    GAUGE,
    ("rank",),
    "How slow the rank is beside its peers, by the newest straggler report: 1 is as fast, 1.2 takes a fifth longer. On "
    "the node of rank 0, with --ft-metrics-straggler-log.",
)
STRAGGLER_REPORTS = Family(
    "ft_straggler_reports_total",
    COUNTER,
    (),
    "Straggler reports that were read so far; missing while there is no log of them.",
)
RUN = Family("ft_run_info", INFO, ("version",), "The run, and the version of torch-resilience that serves it.")
GENERATION = Family("ft_generation", GAUGE, (), "The generation of ranks that was started last, from 0.")
RANKS = Family("ft_local_ranks", GAUGE, (), "Ranks of this node whose cells can be read now.")
RESTARTS = Family(
    "ft_restarts_total",
    COUNTER,
    ("cause",),
    "Generations that were started on this node after another one, by why that was over: hang, failure, lost_node, "
    "cut_off (this node had lost the others), request (of a rank), membership (nodes came or went), unknown.",
)
DETECTION = Family(
    "ft_hang_detection_seconds", HISTOGRAM, (), "From when a rank had passed its limit to the verdict on this node."
)
RESTART = Family(
    "ft_restart_seconds",
    HISTOGRAM,
    (),
    "From when a failure was seen on this node to the start of its next ranks.",
)
RECOVERY = Family(
    "ft_recovery_seconds",
    HISTOGRAM,
    (),
    "From when a failure was seen on this node to when each of its next ranks had shown its first sign of life.",
)
NEAR_MISSES = Family(
    "ft_near_misses_total", COUNTER, (), "Verdicts that were taken back, since the rank had come back in time."
)
FENCED = Family(
    "ft_fenced_total", COUNTER, (), "How often the lease has run out, so that the monitor has killed the ranks."
)
MONITOR_UP = Family("ft_monitor_up", GAUGE, (), "1 while a monitor watches the ranks, 0 while none stays alive.")
MONITORS_REPLACED = Family("ft_monitor_replacements_total", COUNTER, (), "Monitors that have ended and were replaced.")
DAMAGED = Family(
    "ft_exporter_damaged_total",
    COUNTER,
    ("what",),
    "What could not be read since the exporter was started: a cell, its figures, a line of the figures or of the "
    "straggler reports; event: what the launcher has counted of its events, and each event that it could not count.",
)
LOG_LINES_LOST = Family(
    "ft_log_lines_lost_total",
    COUNTER,
    ("log",),
    "Lines that this launcher's file of events, or of figures, lacks: the disk was full or did not answer, or the file "
    "was removed or cut off. Metrics of what events tell do not need these lines; where figures lack some, "
    "ft_steps_total and the metrics of sections may be too low.",
)
LOG_AGE = Family(
    "ft_exporter_log_age_seconds",
    GAUGE,
    (),
    "Time since the exporter has read the log folder to its end; grows while a file system does not answer.",
)

FAMILIES = (
    *(HEARTBEAT_AGE, SLACK, ITERATION, STEPS, SECTION_OPEN, SECTION_DURATION, CLOSE_CALLS, LIMIT, MEMORY),
    *(SLOWDOWN, STRAGGLER_REPORTS),
    *(RUN, GENERATION, RANKS, RESTARTS, DETECTION, RESTART, RECOVERY, NEAR_MISSES, FENCED),
    *(MONITOR_UP, MONITORS_REPLACED, DAMAGED, LOG_LINES_LOST, LOG_AGE),
)


def sample_names(family: Family) -> tuple[str, ...]:
    """Return the names of a metric's samples, as queries use them."""
    if family.kind == HISTOGRAM:
        return tuple(f"{family.name}_{part}" for part in ("bucket", "sum", "count"))
    return (family.name,)
