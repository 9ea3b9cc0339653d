"""Lightning's callbacks as calls of the Translator.

Whatever number of our callbacks a trainer has, the first in its list translates for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adapters._lightning_signals import defer_sigterm
from adapters._optional import first_installed
from resilience_core.faults import Fault
from resilience_core.hookspecs import RunContext
from resilience_core.translator import Translator

__all__ = ["EventCallback"]

_Callback: type[Any] = first_installed(
    "lightning.pytorch", "pytorch_lightning", adapter="adapters.lightning", install="lightning"
).Callback


class EventCallback(_Callback):  # type: ignore[misc, valid-type, unused-ignore]
    """A callback that brings plugins to the bus for the length of ``fit``; ``validate`` and ``test`` are left alone."""

    _translator: Translator | None = None  # of the leading callback, during fit

    def _plugins(self, trainer: Any, translator: Translator) -> list[object]:
        """Return what is to listen during this fit. Raises when the callback's arguments cannot be used."""
        raise NotImplementedError

    def _faults(self) -> tuple[Fault, ...]:
        return ()

    # ---- one fit ----------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        ours = [callback for callback in trainer.callbacks if isinstance(callback, EventCallback)]
        if ours[0] is not self:
            return
        translator = Translator.of(trainer, "lightning")
        plugins = [plugin for callback in ours for plugin in callback._plugins(trainer, translator)]
        faults = [fault for callback in ours for fault in callback._faults()]
        translator.end("interrupted")
        self._translator = translator
        _wrap(trainer, translator)
        for callback in ours:
            _disable_no_op_hooks(callback, translator, is_leading=callback is self)
        translator.begin(_context(trainer), plugins, faults)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._translator is not None:
            self._translator.loaded(_batches_begun(checkpoint))

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._translator is not None:
            defer_sigterm(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._translator is not None:
            defer_sigterm(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._translator is not None:
            _tell_failed(self._translator, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._translator is not None:
            self._translator.end()
            self._translator = None

    # ---- steps ------------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._translator is not None:
            # Not global_step: it stands still while gradients accumulate.
            self._translator.step_start(trainer.fit_loop.total_batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._translator is not None:
            self._translator.step_end()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._translator is not None:
            self._translator.end_open_steps()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._translator is not None:
            self._translator.evaluation_start()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._translator is not None:
            self._translator.eval_step_start()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._translator is not None:
            self._translator.eval_step_end()


_IN_EVERY_STEP = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


def _disable_no_op_hooks(callback: EventCallback, translator: Translator, *, is_leading: bool) -> None:
    """Disable our no-op per-step hooks to save Lightning's call overhead.

    A hook costs Lightning some microseconds even when it is empty, and it passes over one that is not callable.
    What a subclass has overridden is left alone.
    """
    disabled = []
    attributes: dict[str, Any] = callback.__dict__
    for name in _IN_EVERY_STEP:
        hook = getattr(type(callback), name, None)
        is_empty = hook is getattr(_Callback, name, None)
        if is_empty or (not is_leading and hook is getattr(EventCallback, name)):
            attributes[name] = None
            disabled.append(name)

    def undo() -> None:
        for name in disabled:
            attributes.pop(name, None)

    translator.add_cleanup(undo)


def _context(trainer: Any) -> RunContext:
    return RunContext.from_environment(
        rank=trainer.global_rank,
        local_rank=trainer.local_rank,
        world_size=trainer.world_size,
        framework="lightning",
        asynchronous_saves=any(_is_asynchronous(io) for io in _checkpoint_ios(trainer)),
        trainer=trainer,
    )


def _wrap(trainer: Any, translator: Translator) -> None:
    """Wrap what Lightning has no hook around; all of it is undone when the run ends."""
    strategy = trainer.strategy
    # Every built-in caller saves through this, on every rank; gather, write and barrier lie inside.
    translator.wrap_saving(trainer, "save_checkpoint")
    translator.wrap_saving(strategy, "remove_checkpoint", "remove")
    for io in _checkpoint_ios(trainer):
        translator.wrap_saving(io, "maybe_finalize_save_checkpoint", "finalize")
        if _is_asynchronous(io):
            translator.wrap_saving(io, "teardown", "finalize")  # waits for the writes that are under way

    def tear_down(original: Any) -> None:
        try:
            original()
        finally:
            # After an exception this is the last of our hooks that Lightning calls; its own saves are over.
            if translator.has_failed:
                translator.end()

    translator.wrap(strategy, "teardown", tear_down)

    def run_stage(original: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        except BaseException as error:
            # Before any callback's on_exception: one that comes before ours may wait there for peers, or raise.
            if not _is_named(error, "_TunerExitException"):  # the training has not failed, and goes on another time
                _tell_failed(translator, error)
            raise

    translator.wrap(trainer, "_run_stage", run_stage)


def _checkpoint_ios(trainer: Any) -> Iterator[Any]:
    try:
        io = trainer.strategy.checkpoint_io
    except NotImplementedError:  # a strategy that writes its checkpoints itself
        return
    while io is not None:
        yield io
        io = getattr(io, "checkpoint_io", None)


def _is_asynchronous(checkpoint_io: Any) -> bool:
    # By name: lightning and pytorch_lightning each have a class of their own.
    names = {kind.__name__ for kind in type(checkpoint_io).__mro__}
    return "AsyncCheckpointIO" in names or hasattr(checkpoint_io, "maybe_finalize_save_checkpoint")


def _tell_failed(translator: Translator, exception: BaseException) -> None:
    translator.failed(exception, "signal" if _is_named(exception, "SIGTERMException") else None)


def _is_named(exception: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(exception).__mro__)


def _batches_begun(checkpoint: dict[str, Any]) -> int:
    """Return the number of batches that training had begun when the checkpoint was made."""
    try:
        return int(checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"])
    except KeyError:
        return int(checkpoint.get("global_step", 0))
