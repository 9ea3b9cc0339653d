"""Scheduled reports: when one is made, who makes it, and how training gets it.

Training calls :meth:`ScheduledReports.tick` once in an iteration. That counts, ends a window where the plan says so,
and returns what has been finished meanwhile; it neither computes nor waits, except at an iteration at which all ranks
have agreed to do something. A thread sends, gathers, scores and asks for the next plan.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping
from typing import Any

from straggler.errors import WireError
from straggler.exchange.agreement import Agreement
from straggler.exchange.board import Board, Plan, Proposal
from straggler.exchange.schedule import ReportSchedule
from straggler.exchange.sequences import asked
from straggler.pacing import Pacer
from straggler.probes.ended_window import EndedWindow
from straggler.report_thread import ReportThread
from straggler.reporter import Reporter
from straggler.reporting.report import Report
from straggler.settings import DetectorSettings

__all__ = ["ScheduledReports"]

logger = logging.getLogger(__name__)

_MOST_WAITING = 4
"""Windows that wait to be reported; more come only where the store hangs, and are then part of the next one."""
_SHORTEST_POLL = 0.005
_LONGEST_WAIT = 0.25
"""Seconds for which training waits for the final word beside a report that waits for a rank."""
_NOTHING_TO_ASK = 60.0


class ScheduledReports:
    """Makes reports beside training.

    Attributes:
        is_due: Whether the iteration counted last has ended a window.
        decision: What all ranks do at the iteration counted last, or rank 0 has decided on the report just asked for.

    Args:
        reporter: Makes each.
        settings: Of the detector.
    """

    def __init__(self, reporter: Reporter, settings: DetectorSettings) -> None:
        self.is_due = False
        self.decision: Mapping[str, Any] = {}
        self.reporter = reporter
        self._exchange = exchange = reporter.exchange
        self._board = Board()
        self._asked = 0
        self._ticked = False
        self._finished: collections.deque[Report] = collections.deque()
        self._schedule = ReportSchedule(
            settings.report_time_interval,
            decides=exchange.rank == 0,
            announce=self._announce,
            heard_within=exchange.heard_within,
            least_steps=settings.robust.min_samples,  # with fewer samples a window says nothing
            alone=exchange.world_size == 1,
        )
        self._agreement = Agreement(
            rank=exchange.rank,
            others=exchange.world_size - 1,
            bound_seconds=settings.report_bound_seconds,
            put=lambda proposal: self._show(proposal=proposal),
            answer=exchange.answer,
            count=exchange.answers,
            iteration=lambda: self._schedule.iteration,
            steps_in=self._schedule.steps_in,
            heard_within=exchange.heard_within,
        )
        # Where training waits for the final word on a proposal, no step comes, and this thread is to hear that word.
        self._pacer = Pacer(lambda: self._thread.is_awaited or self._agreement.has_waited(0.0))
        self._thread = ReportThread(self._poll, at_exit=exchange.close)

    def tick(self) -> Report | None:
        """Count an iteration; return a report that was finished meanwhile, None where there is none."""
        self._pacer.step()
        number = self._schedule.tick()
        self._ticked = True
        self.is_due = number is not None and self._thread.waiting < _MOST_WAITING
        if number is not None and self.is_due:
            self._hand_over(number, self.reporter.cut())
        self.decision = self._agreement.due(self._schedule.iteration) or {}
        return self._finished.popleft() if self._finished else None

    def _hand_over(self, number: int, window: EndedWindow) -> None:
        self._thread.do(lambda: self._make(number, window))

    def _make(self, number: int, window: EndedWindow) -> None:
        with self._pacer.beside_training(self.reporter.paced_seconds):
            report, _ = self.reporter.make(number, window, self._is_hurried)
            if report is not None and self._exchange.rank == 0:
                self.reporter.hook.begin(self.reporter.decide, report, self._propose)
        if report is not None:
            self._finished.append(report)

    def _propose(self, decision: Mapping[str, Any]) -> None:
        self._thread.do_later(lambda: self._agreement.propose(decision))

    def _is_hurried(self) -> bool:
        return self._thread.is_hurried() or self._agreement.has_waited(_LONGEST_WAIT)

    def make_now(self) -> Report | None:
        """Make a report of the time since the last, and wait for it; every rank does so."""
        window, number = self.reporter.cut(), asked(self._asked)
        self._asked += 1
        report, self.decision = self._thread.do_and_wait(lambda: self.reporter.make(number, window, None))
        return report

    def follow(self, before: ScheduledReports) -> None:
        """Close the reports of the group before, without waiting for it; :meth:`tick` returns what these still bring.

        That may wait for a store and for files, so the thread does it, before anything else: the group before has
        then let go of the files to which this one writes. A second thread that only closes was rejected for that.
        """
        self._finished.extend(before.take_finished())

        def close() -> None:
            before.close()
            self._finished.extend(before.take_finished())

        self._thread.do(close)

    def take_finished(self) -> list[Report]:
        """Return the reports that no :meth:`tick` has returned."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def close(self) -> None:
        """Finish the report in the making, and end; nothing is sent after this."""
        self._thread.close()
        self.reporter.close()

    def _announce(self, plan: Plan) -> None:
        """Show the others a plan, from the thread that trains."""
        self._thread.do(lambda: self._show(plan=plan))

    def _show(self, *, plan: Plan | None = None, proposal: Proposal | None = None) -> None:
        self._board = Board(plan or self._board.plan, proposal or self._board.proposal)
        self._exchange.show(self._board.encode())

    def _poll(self) -> float:
        """Ask what rank 0 has planned, where training goes on; return the seconds until the next time."""
        if self._exchange.rank == 0:
            self._agreement.settle()
        elif self._agreement.is_open or (self._ticked and self._is_curious()):
            # Not once training has ended: rank 0, which may serve the store, may have ended too.
            self._ticked = False
            self._look()
        if self._agreement.is_open:
            return _SHORTEST_POLL
        return _NOTHING_TO_ASK if self._exchange.rank == 0 else self._exchange.heard_within

    def _is_curious(self) -> bool:
        return self._schedule.wants_plan or self.reporter.decide is not None

    def _look(self) -> None:
        text = self._exchange.look()
        if text is not None:
            try:
                self._board = Board.decode(text)
            except WireError as error:
                logger.warning("straggler: %s", error)
                return
        # A plan that came while this rank had not yet ended the window before is still there.
        if self._board.plan is not None:
            self._schedule.learn(self._board.plan)
        if self._board.proposal is not None:
            self._agreement.learn(self._board.proposal)
