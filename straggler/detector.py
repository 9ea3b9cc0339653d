"""Detector: the API of nvidia-resiliency-ext, as an instance; the class-level calls act on a default one.

``Detector.initialize(...)`` makes the process's default detector ready, ``Detector().initialize(...)`` one of your
own. Every method works on the class and on an instance, through one descriptor.

``generate_report_if_interval_elapsed`` waits for nobody: reports are made on a thread. ``generate_report`` is waited
for. It is collective in the sense that every rank has to call it the same number of times, and no collective operation:
no rank waits for another longer than ``report_bound_seconds``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from sys import _getframe
from typing import Any

from resilience_core.errors import ConfigError
from straggler.either import EitherFlag, on_either
from straggler.errors import DetectorError
from straggler.exchange.exchange import Exchange
from straggler.measurement.callables import CallableId, CallableWrapper
from straggler.measurement.section import Section, SectionKind
from straggler.measuring import Measuring
from straggler.probes.probe import Probe
from straggler.reporting.report import Report
from straggler.setting_checks import check_function, check_resources
from straggler.settings import DetectorSettings, RobustSettings, Scoring

__all__ = ["Detector"]


class Detector:
    """Measures sections and reports which rank is slow."""

    initialized = EitherFlag(lambda detector: detector._measuring is not None)
    _default: Detector | None = None

    def __init__(self) -> None:
        self._measuring: Measuring | None = None
        self._sections: dict[str, Section] = {}
        self._wrapper = CallableWrapper(self._finder_of)
        # Kept in the instance, so that the hot call does not go through the descriptor.
        self.__dict__["detection_section"] = self.detection_section

    @classmethod
    def default(cls) -> Detector:
        """Return the detector behind the class-level calls."""
        if cls._default is None:
            cls._default = cls()
        return cls._default

    @on_either
    def initialize(
        self,
        scores_to_compute: str | Sequence[str] = "all",
        gather_on_rank0: bool = True,
        profiling_interval: int = 1,
        report_time_interval: float = 60.0,
        node_name: str | None = None,
        *,
        scoring: Scoring = "robust",
        settings: RobustSettings | None = None,
        peer_group: object = None,
        top_k: int = 32,
        report_bound_seconds: float = 10.0,
        log_path: str | os.PathLike[str] | None = None,
        probes: Sequence[Probe] | None = None,
        store: Any = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Get ready to measure. Call it on every rank, with equal arguments.

        Ranks are compared from the first iteration after ``init_process_group`` on.

        Args:
            scores_to_compute: ``"all"``, or a list of ``relative_perf_scores``, ``individual_perf_scores``.
            gather_on_rank0: Rank 0's reports hold all ranks and the others get None; False: every rank gets a
                report of its own, which costs rank 0 one more message per rank.
            profiling_interval: Measure every n-th entry of each section.
            report_time_interval: Seconds between reports of :meth:`generate_report_if_interval_elapsed`.
            node_name: What to call this machine; by default its host name.
            scoring: ``"robust"`` or ``"minimum"``, see the two modules of scoring.
            settings: What SLOW means, for robust scoring.
            peer_group: Equal on ranks that do the same work, for example ``("stage", 3)``; it is compared as text.
            top_k: Rows of each kind that a rank sends, by time spent.
            report_bound_seconds: How long a report waits for ranks that do not answer.
            log_path: Rank 0 appends every report to this JSONL file, for ``python -m straggler plot``.
            probes: Instead of those the machine has.
            store: A ``torch.distributed`` store instead of the default group's.
            exchange: Instead of one made from the process group; for tests.

        Raises:
            DetectorError: It is initialised already.
            ConfigError: A setting is out of range; the message names it.
        """
        self.start(
            DetectorSettings(
                scores_to_compute=scores_to_compute,
                gather_on_rank0=gather_on_rank0,
                profiling_interval=profiling_interval,
                report_time_interval=report_time_interval,
                node_name=node_name,
                scoring=scoring,
                settings=settings,
                peer_group=peer_group,
                top_k=top_k,
                report_bound_seconds=report_bound_seconds,
                log_path=log_path,
            ),
            probes=probes,
            store=store,
            exchange=exchange,
        )

    @on_either
    def start(
        self,
        settings: DetectorSettings,
        *,
        probes: Sequence[Probe] | None = None,
        store: Any = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Get ready to measure as :meth:`initialize` does, with settings that are made already.

        Args:
            settings: What :meth:`initialize` takes otherwise.
            probes: As there.
            store: As there.
            exchange: As there.

        Raises:
            DetectorError: It is initialised already.
            ConfigError: One of the objects lacks what is called.
        """
        if self._measuring is not None:
            raise DetectorError("this detector is initialised already; call shutdown() first, or make a Detector()")
        check_resources(probes, store, exchange)
        self._measuring = Measuring(settings, probes=probes, store=store, exchange=exchange)
        self._sections = self._measuring.registry.now

    @on_either
    def detection_section(
        self, name: str | None = None, profile_cuda: bool = True, *, kind: SectionKind = "auto"
    ) -> Section:
        """Return a context manager that times what is inside.

        Args:
            name: Unique in the program: one name, one place. By default made from the place.
            profile_cuda: Time its CUDA work too, where a probe can.
            kind: ``"wait"``: it contains a collective, so its duration is a wait and its arrival counts;
                ``"work"``: it does not; ``"auto"``: found out by watching the default process group.

        Raises:
            DetectorError: The detector is not initialised.
            SectionNameError: The name is in use at another place.
        """
        frame = _getframe(1)
        try:
            section = self._sections.get(name) if name is not None else None
        except TypeError:  # a list, for example
            section = None
        if section is not None and section.lasti == frame.f_lasti and section.code is frame.f_code:
            return section
        return self._running("detection_section").registry.at_place(name, frame, profile_cuda, kind)

    @on_either
    def wrap_callables(self, callable_ids: Sequence[CallableId], profile_cuda: bool = True) -> None:
        """Time every call of these; see :class:`straggler.measurement.callables.CallableWrapper`."""
        self._running("wrap_callables")
        if not isinstance(profile_cuda, bool):
            raise ConfigError(f"wrap_callables(profile_cuda) is {profile_cuda!r}; expected True or False")
        self._wrapper.wrap(callable_ids, profile_cuda)

    @on_either
    def restore_original_callables(self) -> None:
        """Restore everything that :meth:`wrap_callables` wrapped."""
        self._wrapper.restore()

    @on_either
    def generate_report(self) -> Report | None:
        """Make a report of everything since the last one. Every rank calls it, equally often.

        Returns:
            The report; None on the other ranks when gathering on rank 0.

        Raises:
            DetectorError: The detector is not initialised.
        """
        return self._running("generate_report").make_now()

    @on_either
    def generate_report_if_interval_elapsed(self) -> Report | None:
        """Count an iteration and return a report that has been finished. Call it once per iteration, on every rank.

        The call waits for nobody: where it is time for a report it only ends the window. A later call returns the
        report, most often the next but one. Only at an iteration for which a decision is proposed, it waits for the
        final word.

        Returns:
            The report; None while there is none, and always on the other ranks when gathering on rank 0.

        Raises:
            DetectorError: The detector is not initialised.
        """
        return self._running("generate_report_if_interval_elapsed").tick()

    @on_either
    def is_interval_elapsed(self) -> bool:
        """Return whether the latest :meth:`generate_report_if_interval_elapsed` has ended the time of a report."""
        return self._running("is_interval_elapsed").reports.is_due

    @on_either
    def leave_out_iteration(self) -> None:
        """Leave this iteration out of the own work that is compared: it holds an evaluation or a checkpoint."""
        self._running("leave_out_iteration").leave_out_iteration()

    @on_either
    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context manager for an evaluation, which takes other times than training by nature.

        Sections and wrapped callables inside have rows of their own, ``<name> (evaluation)``, without the GPU's times.
        The iteration is left out of the own work that is compared.

        Raises:
            DetectorError: The detector is not initialised.
        """
        return self._evaluating(self._running("evaluation"))

    @contextmanager
    def _evaluating(self, measuring: Measuring) -> Iterator[None]:
        is_nested = measuring.is_evaluating
        self._sections = measuring.evaluate(True)
        try:
            yield
        finally:
            if not is_nested:
                sections = measuring.evaluate(False)
                if self._measuring is measuring:
                    self._sections = sections

    @on_either
    def set_decision_hook(self, decide: Callable[[Report], Mapping[str, Any]] | None) -> None:
        """Let rank 0 decide on each report; every rank learns of the decision at the same iteration.

        Args:
            decide: Called on rank 0 with the report, beside training on a thread of its own; returns a mapping of JSON
                values, empty where nothing is to be done. Given on every rank, though only rank 0's is called: the
                others ask for decisions where it is given. What it does wrong is logged once, and decides nothing. It
                is not asked on reports that come while it still works on an earlier one.
        """
        measuring = self._running("set_decision_hook")
        check_function("set_decision_hook(decide)", decide)
        measuring.decide_by(decide)

    @property
    def world_size(self) -> int:
        """Ranks that are compared with each other; 1 before ``initialize``."""
        return 1 if self._measuring is None else self._measuring.world_size

    @on_either
    def last_decision(self) -> dict[str, Any]:
        """Return what all ranks do now, by a decision of rank 0's; empty where nothing is to be done.

        After :meth:`generate_report_if_interval_elapsed` it is a decision to which all ranks have agreed for this
        iteration, some iterations after the report; after :meth:`generate_report` the one on that report.
        """
        return {} if self._measuring is None else dict(self._measuring.reports.decision)

    @on_either
    def shutdown(self) -> list[Report]:
        """Finish the report in the making, stop measuring and put wrapped callables back. Twice is no error.

        Returns:
            The reports that no call has returned.
        """
        self._wrapper.restore()
        measuring, self._measuring = self._measuring, None
        self._sections = {}
        return [] if measuring is None else measuring.close()

    def _running(self, call: str) -> Measuring:
        if self._measuring is None:
            raise _not_initialised(call)
        return self._measuring

    def _finder_of(self, name: str, profile_cuda: bool) -> Callable[[], Section]:
        return self._running("wrap_callables").registry.finder(name, profile_cuda)


def _not_initialised(call: str) -> DetectorError:
    return DetectorError(
        f"{call} was called before initialize() or after shutdown(); call Detector.initialize(...) first, on every rank"
    )
