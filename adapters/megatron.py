"""Functions for Megatron-style training loops: one call at each point of the loop.

Call :func:`setup` once the process group is there, the ``on_*`` functions where their names say, and
:func:`shutdown` at the end (:func:`abort` after an exception). Until ``setup`` was called, and after the end, every
function does nothing. The objects passed in are duck-typed:

``config``
    ``checkpoint.save`` (a folder), ``checkpoint.async_save``, ``ft.calc_ft_timeouts``, and where there is one
    ``ft.autoresume``: make the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names when training is complete.
``global_state``
    ``cfg`` (the config), ``rank_monitor_client`` (None at first), ``fault_tolerance_state`` (any object that takes
    attributes), and where there is one ``train_state.step``, the number of training steps completed.

The ``setup`` section is open from :func:`setup` to the first training or evaluation step; steps after the warm-up
are the section ``step``, saves and their asynchronous finalization the section ``checkpointing``. When timeouts are
calculated they are learned after each save and at the end, and kept in ``<checkpoint.save>/ft_state.json``.

The counters in ``fault_tolerance_state`` are mirrors for whoever reads them: nothing is decided from them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from adapters._megatron_run import MegatronRun, add_run, all_runs, find_run, remove_run
from adapters._megatron_state import (
    MegatronSettings,
    completed_steps,
    count,
    ft_config,
    has_iterations_left,
    mirror,
    mirror_start,
)
from resilience_core.faults import FaultInjector, fault_from_params
from resilience_core.hookspecs import RunContext
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.plugins.timeout_learning import MIN_STEPS_FOR_STEP_TIMEOUT, NUM_WARMUP_ITERATIONS
from resilience_core.run_listeners import listeners
from resilience_core.translator import Translator

__all__ = [
    "abort",
    "maybe_setup_simulated_fault",
    "on_checkpoint_loaded",
    "on_checkpointing_end",
    "on_checkpointing_start",
    "on_eval_step_end",
    "on_eval_step_start",
    "on_training_interrupted",
    "on_training_step_end",
    "on_training_step_start",
    "setup",
    "shutdown",
]

_NUM_WARMUP_ITERS: int = NUM_WARMUP_ITERATIONS
_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE: int = MIN_STEPS_FOR_STEP_TIMEOUT


def setup(config: Any, global_state: Any) -> None:
    """Connect to the rank monitor, load learned timeouts and open the ``setup`` section.

    A second call first shuts the run before it down. Where there is no rank monitor that is said once.

    Args:
        config: The configuration container. A folder ``checkpoint.save`` that does not exist is made by rank 0.
        global_state: The global training state; ``rank_monitor_client`` is set.

    Raises:
        ConfigError: ``config.checkpoint.save`` (None, or an empty name) or ``config.ft`` is not set, or an attribute is
            missing; on every rank. Or ``config.ft.autoresume`` is on, and the finished flag cannot be made.
        SectionError: The configured sections are not those of this module.
    """
    settings = MegatronSettings.read(config, global_state)
    translator = Translator("megatron")
    monitor = SectionMonitor(
        translator.client, state_path=settings.state_path, calculate_timeouts=settings.calculate_timeouts
    )
    plugins = listeners(monitor, translator.client, autoresume=settings.autoresume)
    if global_state.rank_monitor_client is not None:
        shutdown(global_state)
    context = RunContext.from_environment(
        framework="megatron", asynchronous_saves=settings.asynchronous_saves, trainer=global_state
    )
    if context.rank == 0:
        os.makedirs(settings.folder, exist_ok=True)
    mirror_start(global_state, settings)
    try:
        translator.begin(context, plugins)
    except BaseException:
        translator.end("exception")
        raise
    add_run(global_state, MegatronRun(translator, monitor, settings.autoresume))


def on_training_step_start(global_state: Any) -> None:
    """Begin a training step; the ``setup`` section ends with the first one.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None and ft_config(global_state) is None:
        run.translator.end_open_steps()  # nothing begins any more, and what is open ends
    elif run is not None:
        step = completed_steps(global_state)
        run.translator.step_start(run.translator.completed_steps if step is None else step)
        mirror(global_state, is_setup_section_open=False, curr_eval_iter_idx=0)


def on_training_step_end(global_state: Any) -> None:
    """End the training step.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None:
        run.translator.step_end()
        if ft_config(global_state) is not None:
            count(global_state, "seen_tr_iters_cnt")


def on_eval_step_start(global_state: Any) -> None:
    """Begin an evaluation step; an evaluation lasts until the next training step.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is None:
        return
    if getattr(global_state.fault_tolerance_state, "is_setup_section_open", False):
        mirror(global_state, is_setup_section_open=False)
    run.translator.eval_step_start()


def on_eval_step_end(global_state: Any) -> None:
    """End the evaluation step.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None:
        run.translator.eval_step_end()
        count(global_state, "curr_eval_iter_idx")


def on_checkpointing_start(global_state: Any) -> None:
    """Begin a save, or the finalization of an asynchronous save. Call it on every rank.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None and ft_config(global_state) is not None:
        run.translator.checkpoint_start()


def on_checkpointing_end(is_async_finalization: bool, global_state: Any) -> None:
    """End saving on this rank. Timeouts are learned after a save: a collective.

    Args:
        is_async_finalization: This was the finalization of an asynchronous save.
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is None:
        return
    run.translator.checkpoint_end("finalize" if is_async_finalization else "save")
    if not is_async_finalization and ft_config(global_state) is not None:
        count(global_state, "seen_checkpoints_cnt")


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: Any) -> None:
    """Note that a checkpoint was loaded.

    Args:
        is_local_chkpt: It came from memory or a disk of this node, so that loading it says nothing about how long
            a load from shared storage takes.
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is None:
        return
    run.translator.loaded(completed_steps(global_state) or 0, "local" if is_local_chkpt else "persistent")
    if not is_local_chkpt:
        mirror(global_state, is_persistent_chkpt_loaded=True)


def on_training_interrupted(global_state: Any) -> None:
    """Say that the loop is about to end before its last iteration; nothing is learned from such an end.

    Without this call a loop that reaches :func:`shutdown` counts as complete, unless the configuration has
    ``train.train_iters`` and ``train_state.step`` is below it.

    Args:
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None:
        run.translator.stopped("interrupted")


def shutdown(global_state: Any) -> None:
    """End cleanly: learn what may be learned (a collective) and disconnect from the rank monitor.

    Args:
        global_state: The global training state; ``rank_monitor_client`` becomes None.
    """
    run = remove_run(global_state)
    if run is None:
        return
    if run.autoresume and has_iterations_left(global_state):
        run.translator.stopped("interrupted")
    run.translator.end()


def abort(global_state: Any) -> None:
    """End after an exception: disconnect without any collective.

    Called while an exception is handled it also tells every listener which.

    Args:
        global_state: The global training state; ``rank_monitor_client`` becomes None.
    """
    run = remove_run(global_state)
    if run is None:
        return
    error = sys.exc_info()[1]
    if error is not None:
        run.translator.failed(error)
    run.translator.stopped("aborted")
    run.translator.end()


def maybe_setup_simulated_fault(config: Any) -> None:
    """Hang or kill a rank after a while, if the configuration asks for it; for tests.

    After :func:`setup` the fault belongs to the run that began last, and its end disarms it.

    Args:
        config: The fault tolerance configuration: ``simulate_fault``, ``simulated_fault_type`` (``random``,
            ``rank_hung`` or ``rank_killed``), ``simulated_fault_rank`` (None: any) and
            ``simulated_fault_base_delay`` (seconds; up to a fifth more passes).

    Raises:
        ConfigError: The fault is not known, or the delay cannot be used.
    """
    if not config.simulate_fault:
        return
    delay = config.simulated_fault_base_delay
    fault = fault_from_params(
        {
            "fault_type": config.simulated_fault_type,
            "base_delay": delay,
            "rand_delay": 0.2 * delay if isinstance(delay, int | float) else delay,
            "rank_to_fail": config.simulated_fault_rank,
        }
    )
    if runs := all_runs():
        runs[-1].translator.simulate([fault])
    else:  # no run, no events: a fault that is due by the clock strikes all the same
        FaultInjector(fault).setup(context=RunContext.from_environment(framework="megatron"))


def _load_state_if_exists(global_state: Any) -> None:
    """Load learned timeouts once more, where there are any; :func:`setup` has done so."""
    run = find_run(global_state)
    if run is not None:
        run.monitor.load_timeouts()


def _update_timeouts(selected_sections: list[str], calc_out_of_section: bool, global_state: Any) -> None:
    """Learn these timeouts from what was observed and keep them. A collective.

    Args:
        selected_sections: Sections to learn.
        calc_out_of_section: Learn the out-of-section timeout as well.
        global_state: The global training state.
    """
    run = find_run(global_state)
    if run is not None:
        run.monitor.learn(selected_sections, out_of_section=calc_out_of_section)


def _maybe_update_timeouts(global_state: Any, is_closing_ft: bool = False) -> None:
    """Learn what the rules allow now. A collective.

    Args:
        global_state: The global training state.
        is_closing_ft: The run is at its clean end, where out-of-section time may be learned.
    """
    run = find_run(global_state)
    if run is not None:
        run.monitor.learn_what_may_be(at_the_end=is_closing_ft)
