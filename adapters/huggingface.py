"""A callback for the Trainer of transformers, and with it for Accelerate.

One line protects a script that ``ft_launcher`` starts::

    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    protect(trainer, calculate_timeouts=True)
    trainer.train(resume_from_checkpoint=last)

Transformers has no callback around a save, before an evaluation step, or on an exception, and does not hand its
trainer to a callback, so :func:`protect` (or :meth:`FaultToleranceCallback.attach`) is given the trainer, and wraps
those methods of that one object while ``train()`` runs.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Literal

from adapters._optional import first_installed
from resilience_core.errors import PluginError
from resilience_core.faults import Fault, fault_from_params
from resilience_core.hookspecs import RunContext
from resilience_core.plugins.exception_policy import ExceptionHandling, check
from resilience_core.run_listeners import check_api, listeners, make_monitor
from resilience_core.translator import Translator, state_path_in

__all__ = ["FaultToleranceCallback", "protect"]

_TrainerCallback: type[Any] = first_installed(
    "transformers", adapter="adapters.huggingface", install="transformers accelerate"
).TrainerCallback


class FaultToleranceCallback(_TrainerCallback):  # type: ignore[misc, valid-type, unused-ignore]
    """Translates ``Trainer.train()`` into events, and lets a rank monitor listen.

    A step is one optimizer step, all its micro-batches included; ``checkpointing`` covers every save on every rank,
    the rotation of old checkpoints included. ``Trainer.evaluate()`` and ``predict()`` outside of ``train()`` are
    left alone. Where there is no rank monitor (plain ``torchrun`` or ``python``) that is said once.

    Args:
        calculate_timeouts: Learn timeouts from what is observed; they are kept in ``exp_dir``.
        autoresume: Make the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names when training is complete.
        exp_dir: Folder of ``ft_state.json``; it must exist. By default ``<args.output_dir>/ft_state``.
        api: ``sections`` (setup, step and checkpointing each have a limit) or ``heartbeats``.
        exc_handling_policy: What to ask of the launcher when an exception ends training: a function of the
            exception, or a mapping of exception types, to a ``WorkloadControlRequest``, a ``WorkloadAction`` or None.
        simulated_fault_params: For tests: a mapping or an object with ``fault_type``, ``base_delay`` and
            ``rand_delay`` (seconds), ``rank_to_fail``.

    Raises:
        ConfigError: An argument cannot be used. From ``train()``, before training starts: ``exp_dir`` does not
            exist, or ``autoresume`` is on and ``FAULT_TOL_FINISHED_FLAG_FILE`` is not set.
    """

    def __init__(
        self,
        *,
        calculate_timeouts: bool = False,
        autoresume: bool = False,
        exp_dir: str | os.PathLike[str] | None = None,
        api: Literal["sections", "heartbeats"] = "sections",
        exc_handling_policy: ExceptionHandling | None = None,
        simulated_fault_params: Any | None = None,
    ) -> None:
        check_api(api)
        self.calculate_timeouts = calculate_timeouts
        self.autoresume = autoresume
        self.exp_dir = exp_dir
        self.api = api
        self._policy = None if exc_handling_policy is None else check(exc_handling_policy)
        self._simulated: tuple[Fault, ...] = ()
        if simulated_fault_params is not None:
            self._simulated = (fault_from_params(simulated_fault_params),)
        self._is_attached = False
        self._translator: Translator | None = None  # of the leading callback, during train()

    def attach(self, trainer: Any) -> FaultToleranceCallback:
        """Protect this trainer's ``train()``; the callback is added to it, if it was not yet.

        Of several callbacks of ours on one trainer, the first translates for all.

        Args:
            trainer: A ``transformers.Trainer``.

        Raises:
            TypeError: It is none.
        """
        if not hasattr(trainer, "callback_handler"):
            raise TypeError(f"trainer is {trainer!r} ({type(trainer).__name__}); it must be a transformers.Trainer")
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        if not any(callback._is_attached for callback in _ours(trainer)):
            original = trainer.train

            @functools.wraps(original)
            def train(*arguments: Any, **named: Any) -> Any:
                return _train(trainer, original, *arguments, **named)

            trainer.train = train
        self._is_attached = True
        return self

    def _plugins(self, trainer: Any, translator: Translator) -> list[object]:
        state_path = state_path_in(self.exp_dir, os.path.join(trainer.args.output_dir, "ft_state"))
        monitor = make_monitor(
            self.api, translator.client, state_path=state_path, calculate_timeouts=self.calculate_timeouts
        )
        return listeners(monitor, translator.client, autoresume=self.autoresume, exception_policy=self._policy)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell which step a resumed run begins at."""
        if not self._is_attached:
            raise PluginError(
                "FaultToleranceCallback was given to the Trainer but does not know it; call callback.attach(trainer), "
                "or protect(trainer) instead of passing the callback"
            )
        if self._translator is not None and state.global_step > 0:
            self._translator.loaded(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a step."""
        if self._translator is not None:
            self._translator.step_start(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step."""
        if self._translator is not None:
            self._translator.step_end()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step that the Trainer has not ended."""
        if self._translator is not None:
            self._translator.end_open_steps()


def protect(
    trainer: Any,
    *,
    calculate_timeouts: bool = False,
    autoresume: bool = False,
    exp_dir: str | os.PathLike[str] | None = None,
    api: Literal["sections", "heartbeats"] = "sections",
    exc_handling_policy: ExceptionHandling | None = None,
    simulated_fault_params: Any | None = None,
) -> FaultToleranceCallback:
    """Make a callback and attach it.

    Args:
        trainer: A ``transformers.Trainer``.
        calculate_timeouts: As :class:`FaultToleranceCallback` takes them, this and the others.
        autoresume: As there.
        exp_dir: As there.
        api: As there.
        exc_handling_policy: As there.
        simulated_fault_params: As there.

    Raises:
        TypeError: ``trainer`` is none.
    """
    return FaultToleranceCallback(
        calculate_timeouts=calculate_timeouts,
        autoresume=autoresume,
        exp_dir=exp_dir,
        api=api,
        exc_handling_policy=exc_handling_policy,
        simulated_fault_params=simulated_fault_params,
    ).attach(trainer)


def _ours(trainer: Any) -> list[FaultToleranceCallback]:
    return [c for c in trainer.callback_handler.callbacks if isinstance(c, FaultToleranceCallback)]


def _train(trainer: Any, original: Any, *arguments: Any, **named: Any) -> Any:
    """Run ``train()`` once, framed by setup and teardown."""
    ours = [callback for callback in _ours(trainer) if callback._is_attached]
    if not ours:  # all of them were removed from the trainer again
        return original(*arguments, **named)
    translator = Translator.of(trainer, "huggingface")
    plugins = [plugin for callback in ours for plugin in callback._plugins(trainer, translator)]
    faults = [fault for callback in ours for fault in callback._simulated]
    translator.end("interrupted")
    _wrap(trainer, translator)
    ours[0]._translator = translator
    try:
        translator.begin(_context(trainer), plugins, faults)
        return original(*arguments, **named)
    except BaseException as error:
        translator.failed(error)
        raise
    finally:
        ours[0]._translator = None
        translator.end()


def _context(trainer: Any) -> RunContext:
    return RunContext.from_environment(
        rank=trainer.args.process_index,
        local_rank=trainer.args.local_process_index,
        world_size=trainer.args.world_size,
        framework="huggingface",
        trainer=trainer,
    )


def _wrap(trainer: Any, translator: Translator) -> None:
    """Wrap what the Trainer has no callback around; all of it is undone when the run ends."""
    translator.wrap_saving(trainer, "_save_checkpoint")
    translator.wrap_saving(trainer, "save_model")

    def evaluation_loop(original: Any, *arguments: Any, **named: Any) -> Any:
        translator.evaluation_start()
        return original(*arguments, **named)

    def prediction_step(original: Any, *arguments: Any, **named: Any) -> Any:
        translator.eval_step_start()
        try:
            answer = original(*arguments, **named)
        except BaseException as error:  # a script may catch it around evaluate() and go on
            translator.eval_step_end(error)
            raise
        translator.eval_step_end()
        return answer

    def last_minute_save(original: Any, *arguments: Any, **named: Any) -> Any:
        # Transformers ends the loop as if it were complete, and perhaps on this rank only.
        translator.failed(SystemExit("SIGTERM: a last checkpoint, then the end"), "signal")
        return original(*arguments, **named)

    translator.wrap(trainer, "evaluation_loop", evaluation_loop)
    translator.wrap(trainer, "prediction_step", prediction_step)
    for callback in trainer.callback_handler.callbacks:
        manager = getattr(callback, "jit_manager", None)  # of args.enable_jit_checkpoint
        if manager is not None:
            translator.wrap(manager, "execute_jit_checkpoint", last_minute_save)
