"""StragglerPlugin: the detector as a plugin of the event bus, with all policy.

When to report, what to log, when to stop and with which exit code is decided here. In a Lightning callback::

    bus().register(plugin := StragglerPlugin(report_time_interval=300.0, stop_if_detected=True, save_checkpoint=save))
    plugin.time_callables([CallableId(pl_module, "training_step")])   # a rank's own work, seen from outside

**What it measures by itself**: the training step, from ``step_start`` to ``step_end``, and what lies between two
steps. With more than one rank the step is synchronous: it contains collectives, all ranks leave it together, and
its duration is not scored; the time from there to the next ``step_start`` is each rank's own. User-defined
sections, wrapped callables and GPU probes add to that.

**Stopping** acts on persistent verdicts only. Rank 0 decides, all ranks agree on a step some steps ahead (so that all
stop at the same one), ``save_checkpoint`` is called on every rank, and ``StopTraining`` with
:data:`STRAGGLER_EXIT_CODE` leaves ``step_end``. With ``exclude_node`` the slow rank first asks its launcher to
leave its node out.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from resilience_core.environment import CONTROL_VARIABLE
from resilience_core.errors import ConfigError, RankMonitorClientError, StopTraining
from resilience_core.hookspecs import RunContext, hookimpl
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest, send
from straggler.detector import Detector
from straggler.errors import DetectorError, WireError
from straggler.measurement.callables import CallableId, checked_ids
from straggler.measurement.section import Section, SectionKind
from straggler.plugin_settings import PluginSettings, take_resources
from straggler.reporting.identification import StragglerId
from straggler.reporting.report import Report
from straggler.reporting.stop_decision import StopDecision
from straggler.reporting.verdict import MATERIAL_SHARE, State

__all__ = ["STRAGGLER_EXIT_CODE", "StragglerPlugin"]

STRAGGLER_EXIT_CODE = 79
"""The exit code of a process that was stopped for a straggler; no shell, signal or other part uses it."""

_PERSIST = 3


class StragglerPlugin:
    """Detects stragglers in any training loop that fires the bus's events.

    Args:
        report_time_interval: Seconds between reports.
        calc_relative_gpu_perf: Compare ranks with their peers.
        calc_individual_gpu_perf: Compare ranks with their own past.
        num_gpu_perf_scores_to_log: How many best and worst scores to log at each report; 0: only what is wrong.
        gpu_relative_perf_threshold: A score below it is slow; None: the robust verdict, which finds 10 %.
        gpu_individual_perf_threshold: The same for individual scores.
        section_relative_perf_threshold: The same for sections; None: as for the GPU.
        section_individual_perf_threshold: The same for sections; None: as for the GPU.
        stop_if_detected: End training when a straggler persists.
        exclude_node: Before stopping, ask the launcher to leave the slow rank's node out.
        save_checkpoint: Called on every rank before training is stopped; what it returns, unless None, is told as the
            place of what was saved.
        on_report: Called on rank 0 with each report, for a framework's own loggers.
        logger_name: Where to log.
        detector: To be used instead of one of its own; it is initialised here, and shut down here.
        **settings: Further arguments of ``Detector.initialize``.

    Raises:
        ConfigError: A setting is out of range, or nothing is to be computed.
    """

    def __init__(
        self,
        report_time_interval: float = 300.0,
        calc_relative_gpu_perf: bool = True,
        calc_individual_gpu_perf: bool = True,
        num_gpu_perf_scores_to_log: int = 0,
        gpu_relative_perf_threshold: float | None = None,
        gpu_individual_perf_threshold: float | None = None,
        stop_if_detected: bool = False,
        logger_name: str | None = None,
        *,
        section_relative_perf_threshold: float | None = None,
        section_individual_perf_threshold: float | None = None,
        exclude_node: bool = False,
        save_checkpoint: Callable[[], object] | None = None,
        on_report: Callable[[Report], object] | None = None,
        detector: Detector | None = None,
        **settings: Any,
    ) -> None:
        resources = take_resources(settings, logger_name, save_checkpoint, on_report)
        if detector is not None and not isinstance(detector, Detector):
            raise ConfigError(f"detector is {detector!r}; expected a Detector(), or None")
        self._settings = PluginSettings.from_arguments(
            report_time_interval=report_time_interval,
            calc_relative_gpu_perf=calc_relative_gpu_perf,
            calc_individual_gpu_perf=calc_individual_gpu_perf,
            num_gpu_perf_scores_to_log=num_gpu_perf_scores_to_log,
            gpu_relative_perf_threshold=gpu_relative_perf_threshold,
            gpu_individual_perf_threshold=gpu_individual_perf_threshold,
            stop_if_detected=stop_if_detected,
            section_relative_perf_threshold=section_relative_perf_threshold,
            section_individual_perf_threshold=section_individual_perf_threshold,
            exclude_node=exclude_node,
            detector=settings,
        )
        self._resources = resources
        self.detector = detector if detector is not None else Detector()
        self._save = save_checkpoint
        self._on_report = on_report
        self._logger = logging.getLogger(logger_name or "straggler")
        self._callables: list[CallableId] = []
        self._step: Section | None = None
        self._evaluation: AbstractContextManager[None] | None = None
        self._context = RunContext()
        self._flagged: collections.Counter[StragglerId] = collections.Counter()
        self._said = ""

    def time_callables(self, callables: Sequence[CallableId]) -> None:
        """Time these callables, too; before or after ``setup``, and again after each."""
        listed = checked_ids("time_callables", callables)
        self._callables += [c for c in listed if c not in self._callables]
        if self.detector.initialized:
            self.detector.wrap_callables(self._callables)

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Begin to measure; a second run after a teardown begins anew."""
        self._context = context
        if self.detector.initialized:
            raise DetectorError("the straggler plugin's detector is initialised already; give the plugin its own")
        self.detector.start(self._settings.detector, **self._resources)
        if self._callables:
            self.detector.wrap_callables(self._callables)
        if self._settings.stop_if_detected:
            self.detector.set_decision_hook(self._decide)
        kind: SectionKind = "wait" if context.world_size > 1 else "work"
        self._step = self.detector.detection_section("training step", kind=kind)
        self._flagged.clear()

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Open the section of the step."""
        self._end_evaluation()
        if self._step is not None and not self._step.is_open:
            self._step.__enter__()

    @hookimpl
    def step_end(self, iteration: int) -> None:
        """Close the section of the step, and report if it is time.

        Raises:
            StopTraining: A straggler persists and ``stop_if_detected`` is set.
        """
        if self._step is None:
            return
        if self._step.is_open:
            self._step.__exit__(None, None, None)
        report = self.detector.generate_report_if_interval_elapsed()
        if report is not None:
            self._tell(report)
        if self._settings.stop_if_detected:
            self._stop_if_decided()

    @hookimpl
    def checkpoint_start(self) -> None:
        """Leave the iteration out in which a checkpoint is saved: on some ranks it is more than a step."""
        self.detector.leave_out_iteration()

    @hookimpl
    def eval_step_start(self) -> None:
        """Begin an evaluation, in which sections have rows of their own; it ends with the next training step."""
        if self._evaluation is None and self.detector.initialized:
            self._evaluation = self.detector.evaluation()
            self._evaluation.__enter__()

    @hookimpl
    def training_error(self, error: BaseException, iteration: int) -> None:
        """Stop measuring; an open section will not be closed."""
        self._end()

    @hookimpl
    def teardown(self, reason: str) -> None:
        """Stop measuring."""
        self._end()

    def _end(self) -> None:
        self._step = None
        self._end_evaluation()
        for report in self.detector.shutdown():
            self._tell(report)

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            evaluation, self._evaluation = self._evaluation, None
            evaluation.__exit__(None, None, None)

    def identify(self, report: Report) -> set[StragglerId]:
        """Return all ranks that any of the thresholds calls slow in this report.

        A slow section counts where the verdict on the rank is SLOW, since it loses ``MATERIAL_SHARE`` of its time:
        nobody's training is to be stopped for a line that rank 0 logs between two steps.
        """
        slow = report.find_stragglers(self._settings.thresholds)
        found = slow["straggler_gpus_relative"] | slow["straggler_gpus_individual"]
        for sections in (slow["straggler_sections_relative"], slow["straggler_sections_individual"]):
            of_sections: set[StragglerId] = set().union(*sections.values())
            found |= {known for known in of_sections if _matters(report, known.rank)}
        return found

    def persistent(self, report: Report) -> set[StragglerId]:
        """Return the ranks that are slow persistently.

        Robust verdicts are persistent by themselves. With ``scoring="minimum"`` a rank has to be below its
        threshold in three reports running.
        """
        found = self.identify(report)
        if report.scores.against_peers is not None:
            return found
        for known in list(self._flagged):
            if known not in found:
                del self._flagged[known]
        self._flagged.update(found)
        return {known for known, count in self._flagged.items() if count >= _PERSIST}

    def _decide(self, report: Report) -> Mapping[str, Any]:
        """Decide, on rank 0, whether to stop, and for whom."""
        slow = sorted(self.persistent(report))
        if not slow or 2 * len(slow) > report.world_size > 2:
            # Where most ranks are slow, the job itself is slow; stopping it would not help.
            return {}
        verdicts = "; ".join(str(report.verdict(s.rank)) for s in slow[:4])
        return StopDecision(verdicts, tuple(s.rank for s in slow)).as_json()

    def _stop_if_decided(self) -> None:
        try:
            decision = StopDecision.from_json(self.detector.last_decision(), self.detector.world_size)
        except WireError as error:
            self._logger.warning("straggler: %s; this rank does not stop", error)
            return
        if decision is None:
            return
        reason = f"stopped for a persistent straggler: {decision.verdicts}"
        if self._settings.exclude_node and self._context.rank in decision.ranks:
            self._ask_to_leave_node_out(reason)
        if self._save is not None:
            saved = self._save()
            reason += "; the state was saved" if saved is None else f"; the state was saved as {saved}"
        else:
            reason += "; nothing was saved: no save_checkpoint was given"
        # Where the slow rank's node is left out, the others go on in the next generation.
        raise StopTraining(reason, exit_code=STRAGGLER_EXIT_CODE, is_final=not self._settings.exclude_node)

    def _ask_to_leave_node_out(self, reason: str) -> None:
        path = os.environ.get(CONTROL_VARIABLE, "")
        if not path:
            self._logger.warning("no launcher to ask to leave this node out (%s is not set)", CONTROL_VARIABLE)
            return
        try:
            send(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, reason), path, self._context.rank)
        except RankMonitorClientError as error:
            self._logger.warning("the launcher was not asked to leave this node out: %s", error)

    def _tell(self, report: Report) -> None:
        table = report.table()
        # What is slow is logged at every report; a table without it only when it has changed.
        said = table.partition("\n")[2]
        if table and (report.has_stragglers() or said != self._said):
            self._logger.warning("%s", table)
        self._said = said
        if self._settings.scores_to_log:
            for line in _best_and_worst(report, self._settings.scores_to_log):
                self._logger.info("%s", line)
        if self._on_report is not None:
            self._on_report(report)


def _matters(report: Report, rank: int) -> bool:
    if report.scores.against_peers is None:
        return report.lost_share(rank) >= MATERIAL_SHARE
    return report.verdict(rank).state is State.SLOW


def _best_and_worst(report: Report, count: int) -> Iterable[str]:
    kinds = {
        "GPU relative": report.gpu_relative_perf_scores,
        "GPU individual": report.gpu_individual_perf_scores,
        **{f"{s!r} relative": scores for s, scores in report.section_relative_perf_scores.items()},
        **{f"{s!r} individual": scores for s, scores in report.section_individual_perf_scores.items()},
    }
    for kind, scores in kinds.items():
        if scores:
            ordered = sorted(scores.items(), key=lambda item: item[1])
            worst = ", ".join(f"{rank}: {score:.3f}" for rank, score in ordered[:count])
            best = ", ".join(f"{rank}: {score:.3f}" for rank, score in ordered[::-1][:count])
            yield f"{kind} perf scores: worst {worst}; best {best}"
