"""What a detector has while it is initialised: sections, probes, the waits it watches, and its reports.

The process group may be made after the detector, destroyed, and made anew. Without one the rank is compared with
nobody; from the first iteration after one was made it is compared with the others of that group. Sections stay. What
was learned of ranks begins anew with each group: rank 3 of another group may be another machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from resilience_core.hookspecs import RunContext
from straggler.exchange.exchange import Exchange, connect
from straggler.exchange.presence import same_group
from straggler.first_calls import import_ahead
from straggler.measurement.section import Section
from straggler.probes.own_work import OwnWorkProbe, WatchedWaits, has_group
from straggler.probes.probe import Probe
from straggler.probes.standard_probes import choose, standard_probes
from straggler.reporter import Reporter
from straggler.reporting.report import Report
from straggler.scheduled_reports import ScheduledReports
from straggler.section_registry import SectionRegistry
from straggler.settings import DetectorSettings

__all__ = ["Measuring"]

logger = logging.getLogger(__name__)


class Measuring:
    """Measures, and makes reports.

    Attributes:
        registry: The sections.
        reports: Makes the reports.

    Args:
        settings: Of the detector.
        probes: What measures; None: what this machine has.
        store: Carries what the ranks measured; None: the store of the default group.
        exchange: In place of one that is made from the store.
    """

    def __init__(
        self,
        settings: DetectorSettings,
        *,
        probes: Sequence[Probe] | None = None,
        store: Any = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._context = RunContext.from_environment()
        self._measures_own_work = probes is None
        self._is_same_group = same_group() if exchange is None else lambda: True
        exchange = self._connected() if exchange is None else exchange
        self._rank, self._ranks = self._context.rank, self._context.world_size
        self._is_early = exchange.world_size == 1 < self._ranks and not has_group()
        self._is_said = self._had_group = False
        self._waits = WatchedWaits(exchange.world_size)
        self._probes = choose(
            [*standard_probes(settings.profiling_interval), *self._own_work()] if probes is None else probes
        )
        self.registry = SectionRegistry(
            self._waits.collectives,
            profiling_interval=settings.profiling_interval,
            probes=self._probes,
            waits=self._waits.clock,
        )
        self.reports = self._reports(exchange)
        import_ahead()

    def _reports(self, exchange: Exchange) -> ScheduledReports:
        settings = self._settings
        if exchange.world_size > 1:
            self._had_group, self._rank, self._ranks = True, exchange.rank, exchange.world_size
        if self._is_early and self._rank != 0:  # each rank is a rank 0 of its own now; one of them writes
            settings = attrs.evolve(settings, log_path=None)
        reporter = Reporter(exchange, self._probes, settings, keeps_past=not self._is_early)
        return ScheduledReports(reporter, settings)

    def _connected(self) -> Exchange:
        return connect(
            self._settings.report_bound_seconds,
            interval_seconds=self._settings.report_time_interval,
            store=self._store,
            generation=self._context.restart_count,
        )

    def _own_work(self) -> list[Probe]:
        return [] if self._waits.own_work is None or not self._measures_own_work else [self._waits.own_work]

    @property
    def world_size(self) -> int:
        """Ranks that are compared with each other."""
        return self.reports.reporter.exchange.world_size

    def tick(self) -> Report | None:
        """Count an iteration; return a report that was finished meanwhile, None where there is none."""
        if not self._is_same_group():
            self._follow_group()
        self._waits.tick()
        report = self.reports.tick()
        if self._is_early and self.reports.is_due:
            self._say_early()
        return report

    def leave_out_iteration(self) -> None:
        """Leave the iteration out that is going on, and the time from the last release to the next arrival."""
        self._waits.leave_out()
        self.registry.forget_release()

    @property
    def is_evaluating(self) -> bool:
        """Return whether an evaluation is going on."""
        return self.registry.is_evaluating

    def evaluate(self, is_evaluation: bool) -> dict[str, Section]:
        """Begin an evaluation, or end it; return the sections that are in use then, by name."""
        self._waits.leave_out()
        return self.registry.evaluate(is_evaluation)

    def make_now(self) -> Report | None:
        """Make a report of the time since the last, and wait for it; every rank does so."""
        if not self._is_same_group():
            self._follow_group()
        if self._is_early:
            self._say_early()
        report = self.reports.make_now()
        self.registry.forget_release()
        return report

    def decide_by(self, decide: Callable[[Report], Mapping[str, Any]] | None) -> None:
        """Let rank 0 decide on each report."""
        self.reports.reporter.decide = decide

    def close(self) -> list[Report]:
        """Finish the report in the making and end; return the reports that nobody has got."""
        self.reports.close()
        self._waits.stop()
        for probe in self._probes:
            probe.stop()
        return self.reports.take_finished()

    def _follow_group(self) -> None:
        """Join the ranks of a new process group, or go on alone where it was destroyed."""
        self._is_same_group = same_group()
        self._is_early = self._ranks > 1 and not has_group()
        before, exchange = self.reports, self._connected()
        if exchange.world_size == before.reporter.exchange.world_size == 1:
            return
        self._waits.stop()
        for probe in self._probes:
            if probe.name == OwnWorkProbe.name and self._measures_own_work:
                probe.stop()
                self._probes.remove(probe)
                break
        self._waits = WatchedWaits(exchange.world_size)
        self._probes += choose(self._own_work())
        self.registry.watch(self._waits.collectives, self._waits.clock)
        self.registry.forget_release()
        self.reports = self._reports(exchange)
        self.reports.follow(before)
        self.decide_by(before.reporter.decide)

    def _say_early(self) -> None:
        if not self._is_said:
            self._is_said = True
            logger.warning(
                "this is one of %d ranks (WORLD_SIZE), but there is no process group %s: it is compared with nobody "
                "until init_process_group() was called",
                self._ranks,
                "any more" if self._had_group else "yet",
            )
