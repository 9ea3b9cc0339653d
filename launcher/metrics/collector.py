"""Turn what is known of a node into metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from launcher.agent.durations import Histogram
from launcher.agent.history import Told
from launcher.metrics import families
from launcher.metrics.durations import of_bits
from launcher.metrics.families import COMMON_LABELS, COUNTER, FAMILIES, GAUGE, HISTOGRAM, Family
from launcher.metrics.node import Node, NodeNow, RankNow
from launcher.records.figures_log import FIGURES
from resilience_core._version import installed_version
from resilience_core.protocol.limit_kinds import section_name
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Collector"]

DAMAGED = ("cell", "figures", "event", "figures_line", "straggler_report")


class Collector:
    """What ``prometheus_client`` calls a collector: :meth:`collect` is called at each scrape.

    Args:
        node: Looked at each time.
        run: The label of that name.
        name: The label ``node``.
    """

    def __init__(self, node: Node, run: str, name: str) -> None:
        self._node = node
        self._common = (run, name)
        self._version = installed_version()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, also one that has no sample now."""
        now = self._node.look()
        page = _Page(self._common)
        _add_ranks(page, now)
        _add_totals(page, now)
        _add_node(page, now)
        page.add_info(families.RUN, self._version)
        yield from page.metrics()


class _Page:
    """Metrics that are being filled."""

    def __init__(self, common: tuple[str, ...]) -> None:
        self._common = common
        self._metrics = {family: _empty(family) for family in FAMILIES}

    def metrics(self) -> Iterator[Metric]:
        """Yield all."""
        yield from self._metrics.values()

    def add(self, family: Family, value: float | None, *labels: object) -> None:
        """Add a sample of a counter or a gauge; none where the value is unknown."""
        metric = self._metrics[family]
        assert isinstance(metric, (CounterMetricFamily, GaugeMetricFamily))
        if value is not None:
            metric.add_metric(self._labels(labels), value)

    def add_histogram(self, family: Family, histogram: Histogram, *labels: object) -> None:
        """Add the samples of a histogram."""
        metric = self._metrics[family]
        assert isinstance(metric, HistogramMetricFamily)
        buckets = [(floatToGoString(bound), float(count)) for bound, count in histogram.buckets]
        metric.add_metric(self._labels(labels), [*buckets, ("+Inf", histogram.total)], histogram.sum_seconds)

    def add_info(self, family: Family, *labels: object) -> None:
        """Add a sample that says all by its labels."""
        metric = self._metrics[family]
        assert isinstance(metric, InfoMetricFamily)
        names = (*COMMON_LABELS, *family.labels)
        metric.add_metric([], dict(zip(names, self._labels(labels), strict=True)))

    def _labels(self, labels: Sequence[object]) -> list[str]:
        # A folder's name need not be text, and a page cannot be encoded with what is none.
        return [str(label).encode("utf-8", errors="replace").decode() for label in (*self._common, *labels)]


def _empty(family: Family) -> Metric:
    labels = (*COMMON_LABELS, *family.labels)
    if family.kind == COUNTER:
        return CounterMetricFamily(family.name, family.meaning, labels=labels, unit=family.unit)
    if family.kind == GAUGE:
        return GaugeMetricFamily(family.name, family.meaning, labels=labels, unit=family.unit)
    if family.kind == HISTOGRAM:
        return HistogramMetricFamily(family.name, family.meaning, labels=labels, unit=family.unit)
    return InfoMetricFamily(family.name.removesuffix("_info"), family.meaning)


def _add_ranks(page: _Page, now: NodeNow) -> None:
    for rank in now.ranks:
        look, who = rank.look, (rank.look.rank, rank.look.local_rank)
        page.add(families.HEARTBEAT_AGE, look.age_seconds, *who)
        page.add(families.SLACK, look.seconds_left, *who)
        page.add(families.ITERATION, look.iteration, *who)
        page.add(families.MEMORY, None if look.process is None else look.process.resident_bytes, *who)
        _add_open_sections(page, rank)
        for limit in rank.limits:
            section = section_name(limit.kind)
            kind = limit.kind.replace(" ", "_") if section is None else "section"
            page.add(families.LIMIT, limit.seconds, *who, kind, section or "", limit.source)


def _add_open_sections(page: _Page, rank: RankNow) -> None:
    view = rank.look.view
    assert view is not None
    opened: dict[str, int] = {}
    for section in view.sections:  # names are cut, so two may have one
        opened[section.name] = min(section.opened_ns, opened.get(section.name, section.opened_ns))
    for name, opened_ns in opened.items():
        seconds = max(0, rank.look.seen_ns - opened_ns) / NS_PER_SECOND
        page.add(families.SECTION_OPEN, seconds, rank.look.rank, rank.look.local_rank, name)


def _add_totals(page: _Page, now: NodeNow) -> None:
    for rank, local_rank, totals in now.totals:
        if totals.steps or not now.lost.get(FIGURES):  # else there may have been some in generations before
            page.add(families.STEPS, totals.steps, rank, local_rank)
        for name, section in totals.sections.items():
            page.add(families.CLOSE_CALLS, section.close_calls, rank, local_rank, name)
            histogram = of_bits(section.durations, section.took_ns)
            page.add_histogram(families.SECTION_DURATION, histogram, rank, local_rank, name)


def _add_node(page: _Page, now: NodeNow) -> None:
    page.add(families.RANKS, len(now.ranks))
    if now.told is not None:  # else all that is unknown, and a zero would say that nothing has happened
        _add_told(page, now.told)
    for rank, slowdown in now.slowdowns.items():
        page.add(families.SLOWDOWN, slowdown, rank)
    page.add(families.STRAGGLER_REPORTS, now.straggler_reports)
    for what in DAMAGED:
        page.add(families.DAMAGED, now.damaged.get(what, 0), what)
    for log, lines in now.lost.items():
        page.add(families.LOG_LINES_LOST, lines, log)
    page.add(families.LOG_AGE, now.log_age_seconds)


def _add_told(page: _Page, told: Told) -> None:
    page.add(families.GENERATION, told.generation)
    for cause, count in told.restarts.items():
        page.add(families.RESTARTS, count, cause)
    page.add_histogram(families.DETECTION, told.detections)
    page.add_histogram(families.RESTART, told.restart_times)
    page.add_histogram(families.RECOVERY, told.recoveries)
    page.add(families.NEAR_MISSES, told.near_misses)
    page.add(families.FENCED, told.fenced)
    page.add(families.MONITOR_UP, int(told.is_monitored))
    page.add(families.MONITORS_REPLACED, told.monitors_replaced)
