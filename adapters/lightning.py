"""Callbacks for Lightning, under either of its names (``lightning`` and ``pytorch_lightning``), from 2.4 on.

One line protects a script that ``ft_launcher`` starts::

    trainer = pl.Trainer(callbacks=[FaultToleranceSectionsCallback(autoresume=False, calculate_timeouts=True)])

:class:`FaultToleranceCallback` watches heartbeats, :class:`FaultToleranceSectionsCallback` watches sections (it
also says *where* a rank hangs), :class:`StragglerDetectionCallback` finds ranks that are slow. They are active in
``fit`` only, and may be used together.
"""

from __future__ import annotations

import logging
import os
import pathlib
from functools import partial
from typing import Any

from adapters._lightning_hooks import EventCallback
from adapters._lightning_stragglers import give_to_loggers, save_last
from resilience_core.errors import ConfigError
from resilience_core.faults import Fault, fault_from_params
from resilience_core.plugins.exception_policy import ExceptionHandling, check
from resilience_core.run_listeners import listeners, make_monitor
from resilience_core.translator import Translator, state_path_in
from straggler.measurement.callables import CallableId
from straggler.plugin import StragglerPlugin

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "StragglerDetectionCallback"]


class _FaultTolerance(EventCallback):
    _api: str
    _exc_handling_policy: ExceptionHandling | None = None

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None,
        exp_dir: str | pathlib.Path | None,
        logger_name: str | None,
    ) -> None:
        super().__init__()
        self.autoresume = autoresume
        self.calculate_timeouts = calculate_timeouts
        self.exp_dir = exp_dir
        self.logger = logging.getLogger(logger_name)
        self._simulated: tuple[Fault, ...] = ()
        if simulated_fault_params is not None:
            self._simulated = (fault_from_params(simulated_fault_params),)

    def _plugins(self, trainer: Any, translator: Translator) -> list[object]:
        default = "" if self.exp_dir is not None else os.path.join(trainer.log_dir or os.curdir, "ft_state")
        state_path = state_path_in(self.exp_dir, default)
        self.logger.info("timeouts %s in %s", "are learned and kept" if self.calculate_timeouts else "kept", state_path)
        monitor = make_monitor(
            self._api, translator.client, state_path=state_path, calculate_timeouts=self.calculate_timeouts
        )
        return listeners(
            monitor, translator.client, autoresume=self.autoresume, exception_policy=self._exc_handling_policy
        )

    def _faults(self) -> tuple[Fault, ...]:
        return self._simulated


class FaultToleranceCallback(_FaultTolerance):
    """Sends a heartbeat at the end of every training and evaluation step of ``fit``.

    Where there is no rank monitor (plain ``torchrun`` or ``python``) that is said once, and training goes on.

    Args:
        autoresume: Make the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names when training is complete:
            ``max_steps``, ``max_epochs`` or ``max_time`` was reached, a callback stopped training early, or there
            was nothing left to do in a resumed run. Not after an exception or a signal.
        calculate_timeouts: Learn heartbeat timeouts at the end of a run that loaded and saved a checkpoint. They
            are kept in ``exp_dir`` and apply in every later run, whether it learns or not; ``learned_limits`` says
            how they go with configured ones.
        simulated_fault_params: For tests: a mapping or an object with ``fault_type`` (``random``, ``rank_hung``,
            ``rank_killed`` or any kind of ``resilience_core.faults``), ``base_delay`` and ``rand_delay`` (seconds),
            ``rank_to_fail``.
        exp_dir: Folder of ``ft_state.json``; it must exist, and be the same in every job. By default
            ``<trainer.log_dir>/ft_state``: mind that some loggers begin a new ``log_dir`` with every job.
        logger_name: Logger of this callback's messages.

    Raises:
        ConfigError: ``simulated_fault_params`` cannot be used. From ``fit``, before training starts: ``exp_dir``
            does not exist, or ``autoresume`` is on and ``FAULT_TOL_FINISHED_FLAG_FILE`` is not set.
    """

    _api = "heartbeats"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | pathlib.Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)


class FaultToleranceSectionsCallback(_FaultTolerance):
    """Opens the sections ``setup``, ``step`` and ``checkpointing`` around what ``fit`` does.

    ``setup`` lasts from Lightning's ``setup`` hook to the first training or evaluation step; ``step`` covers one
    whole batch, backward, optimizer and collectives included; ``checkpointing`` covers every save from the gather
    to the barrier on every rank, the removal of old checkpoints, and waiting for asynchronous writes. The
    dataloader, hooks at epoch ends and warm-up steps are out of section.

    Args:
        autoresume: As in :class:`FaultToleranceCallback`.
        calculate_timeouts: Learn section timeouts after each save and at the clean end. Kept as there.
        simulated_fault_params: As there.
        exp_dir: As there.
        logger_name: As there.
        exc_handling_policy: What to ask of the launcher when an exception ends training: a function of the
            exception, or a mapping of exception types, to a ``WorkloadControlRequest``, a ``WorkloadAction`` or
            None (nothing). Without it a failed rank is restarted as the launcher's options say.

    Raises:
        ConfigError: As there; and ``exc_handling_policy`` is neither a function nor such a mapping.
        SectionError: From ``fit``, before training starts: the configuration names sections, but not these three.
    """

    _api = "sections"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any | None = None,
        exp_dir: str | pathlib.Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceSectionsCallback",
        exc_handling_policy: ExceptionHandling | None = None,
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        self._exc_handling_policy = None if exc_handling_policy is None else check(exc_handling_policy)


class StragglerDetectionCallback(EventCallback):
    """Measures every rank's steps during ``fit`` and says which ranks are slow.

    Args:
        report_time_interval: Seconds between reports.
        calc_relative_gpu_perf: Compare each rank with its peers.
        calc_individual_gpu_perf: Compare each rank with its own past.
        num_gpu_perf_scores_to_log: How many best and worst scores to log at each report; 0: only stragglers.
        gpu_relative_perf_threshold: A relative score below it is slow; between 0 and 1.
        gpu_individual_perf_threshold: The same for individual scores.
        stop_if_detected: End training, by the exception ``StopTraining``, when a straggler persists. Before that the
            state is saved beside the checkpoints of the trainer's ``ModelCheckpoint``, where it has one, under a name
            that ``ckpt_path="last"`` finds.
        logger_name: Where to log.
        enable_ptl_logging: Give the least, middle and largest scores of each report to the trainer's loggers.
        profiling_interval: Measure every n-th entry of each section.
        exclude_node: With ``stop_if_detected``, ask the launcher to go on without the slow rank's node.
        log_path: Rank 0 appends every report to this file, for ``python -m straggler plot``.

    Raises:
        ValueError: A setting is out of range, or nothing is to be computed.
    """

    def __init__(
        self,
        report_time_interval: float = 300.0,
        calc_relative_gpu_perf: bool = True,
        calc_individual_gpu_perf: bool = True,
        num_gpu_perf_scores_to_log: int = 5,
        gpu_relative_perf_threshold: float = 0.7,
        gpu_individual_perf_threshold: float = 0.7,
        stop_if_detected: bool = False,
        logger_name: str | None = "nemo_logger.StragglerDetectionCallback",
        *,
        enable_ptl_logging: bool = False,
        profiling_interval: int = 1,
        exclude_node: bool = False,
        log_path: str | pathlib.Path | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(enable_ptl_logging, bool):
            raise ConfigError(f"enable_ptl_logging is {enable_ptl_logging!r}; expected True or False")
        self._gives_to_loggers = enable_ptl_logging
        self._make_plugin = partial(
            StragglerPlugin,
            report_time_interval=report_time_interval,
            calc_relative_gpu_perf=calc_relative_gpu_perf,
            calc_individual_gpu_perf=calc_individual_gpu_perf,
            num_gpu_perf_scores_to_log=num_gpu_perf_scores_to_log,
            gpu_relative_perf_threshold=gpu_relative_perf_threshold,
            gpu_individual_perf_threshold=gpu_individual_perf_threshold,
            stop_if_detected=stop_if_detected,
            exclude_node=exclude_node,
            profiling_interval=profiling_interval,
            log_path=log_path,
            logger_name=logger_name,
        )
        self._make_plugin()  # raises here, and not from fit, where a setting cannot be used

    def _plugins(self, trainer: Any, translator: Translator) -> list[object]:
        plugin = self._make_plugin(
            save_checkpoint=None if trainer.checkpoint_callback is None else partial(save_last, trainer),
            on_report=partial(give_to_loggers, trainer) if self._gives_to_loggers else None,
        )
        plugin.time_callables([CallableId(trainer.lightning_module, "training_step")])
        return [plugin]
