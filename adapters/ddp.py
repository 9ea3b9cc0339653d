"""A raw training loop, with or without DistributedDataParallel, as events on the bus.

The loop says where it is with ``with`` blocks; everything else is decided behind the events::

    ft = FaultTolerance(state_path="checkpoints/ft_state.json", calculate_timeouts=True)

    with ft.run():
        model, optimizer, first = build_or_resume()
        ft.checkpoint_loaded(first)  # when there was one
        for iteration in range(first, last):
            with ft.step(iteration):
                train(model, optimizer, iteration)
            if (iteration + 1) % 100 == 0:
                with ft.checkpoint(iteration + 1):
                    save(model, optimizer)

Under ``ft_launcher`` each block is a section with a limit; under ``torchrun`` or plain ``python`` the same script
runs unchanged and logs once that it is not monitored. No ``torch`` is imported here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

from resilience_core.errors import PluginError
from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.plugins.heartbeat_monitor import HeartbeatMonitor
from resilience_core.plugins.section_monitor import SETUP, STEP, SectionMonitor
from resilience_core.run_listeners import listeners, make_monitor
from resilience_core.translator import OpenSave, Translator

__all__ = ["FaultTolerance"]

logger = logging.getLogger(__name__)


class FaultTolerance:
    """Fires the events of a loop that no framework owns, and lets a rank monitor listen.

    Outside of :meth:`run` the other blocks fire nothing. A save inside another save is part of it. A save or a step of
    an evaluation inside a training step does not count for the limit of that step.

    Args:
        state_path: A file that keeps learned timeouts from job to job; read on every rank, written by rank 0.
        calculate_timeouts: Learn timeouts from what is observed. Learning is a collective, after saves and at the
            clean end, so every rank must run the same blocks.
        api: ``sections`` (setup, step and checkpointing each have a limit) or ``heartbeats`` (one at the end of
            every step).
        asynchronous_saves: Checkpoints are written in the background, so the time in ``checkpoint`` says little.
        autoresume: Make the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names when training is complete: when the
            block of :meth:`run` is left by itself after a step, or after a checkpoint was loaded. A loop that ends
            for another reason must say so: :meth:`end_by_signal`, or an exception. A further run in the same process
            takes the file away until it is complete as well.
        client: The rank's client; one of its own when None.
        bus: Where the events go; the process's default bus when None. Register there whatever else should listen.

    Raises:
        TypeError: ``client`` or ``bus`` is of another type.
        ConfigError: ``api`` is neither, or ``state_path`` or a switch is of another type. From :meth:`run`:
            ``autoresume`` is on and ``FAULT_TOL_FINISHED_FLAG_FILE`` is not set, or names a file that nobody can make.
    """

    def __init__(
        self,
        *,
        state_path: str | os.PathLike[str] | None = None,
        calculate_timeouts: bool = False,
        api: Literal["sections", "heartbeats"] = "sections",
        asynchronous_saves: bool = False,
        autoresume: bool = False,
        client: RankMonitorClient | None = None,
        bus: EventBus | None = None,
    ) -> None:
        _check("client", client, RankMonitorClient)
        _check("bus", bus, EventBus)
        self._translator = Translator("ddp", bus, client=client)
        self._monitor = make_monitor(
            api,
            self._translator.client,
            state_path=state_path,
            calculate_timeouts=calculate_timeouts,
            required=(SETUP, STEP),  # no section of a checkpoint: a loop need not save
        )
        self._asynchronous_saves = asynchronous_saves
        self._autoresume = autoresume

    @property
    def bus(self) -> EventBus:
        """The bus that the events go to."""
        return self._translator.bus

    @property
    def client(self) -> RankMonitorClient:
        """The rank's client; see its ``is_initialized`` for whether anybody watches."""
        return self._translator.client

    @contextlib.contextmanager
    def run(self, context: RunContext | None = None) -> Iterator[None]:
        """Frame one run of the loop: ``setup`` first, ``teardown`` last, ``training_error`` on an exception.

        Enter it before anything slow (data, model, process group), so that a hang there is seen, too. It may be
        entered again once it was left.

        Args:
            context: Who this rank is; by default what torchrun and ft_launcher export.

        Raises:
            PluginError: The bus has a monitor of its own already, or this run has been entered already.
            SectionError: The configuration names sections, but not ``setup`` and ``step``. Without ``checkpointing``
                the first :meth:`checkpoint` raises it.
            ConfigError: ``FT_SIMULATED_FAULTS`` cannot be used, or ``FAULT_TOL_FINISHED_FLAG_FILE`` with autoresume.
            TypeError: ``context`` or ``asynchronous_saves`` has the wrong type.
        """
        self._refuse_a_second_monitor()
        plugins = listeners(self._monitor, self._translator.client, autoresume=self._autoresume)
        _check("context", context, RunContext)
        if context is None:
            context = RunContext.from_environment(framework="ddp", asynchronous_saves=self._asynchronous_saves)
        try:
            self._translator.begin(context, plugins)
            yield
        except BaseException as error:
            self._translator.failed(error)
            raise
        finally:
            self._translator.end()

    def end_by_signal(self) -> None:
        """Say that the loop is about to end because a signal asked it to.

        Nothing is learned from such an end, and training does not count as complete.
        """
        self._translator.stopped("signal")

    def step(self, iteration: int) -> _Step:
        """Frame one whole training step: forward, backward, optimizer, collectives.

        One inside another ends that one.

        Args:
            iteration: Steps since training began, from 0; a resumed run continues the count, and so does each epoch.
                Where it begins again or stands still, the launcher cannot tell from it whether the job makes progress.
        """
        return _Step(self._translator, iteration)

    def eval_step(self, iteration: int, eval_index: int) -> _EvalStep:
        """Frame one evaluation step.

        Args:
            iteration: Training steps completed so far.
            eval_index: Steps since this evaluation began, from 0.
        """
        return _EvalStep(self._translator, iteration, eval_index)

    def checkpoint(self, iteration: int, kind: CheckpointKind = "save") -> _Checkpoint:
        """Frame everything that saving does on this rank, gather and barrier included. Enter it on every rank.

        Args:
            iteration: Training steps completed so far.
            kind: ``save``, ``finalize`` (of an asynchronous save) or ``remove`` (of an old checkpoint).
        """
        return _Checkpoint(self._translator, iteration, kind)

    def checkpoint_loaded(self, iteration: int, source: LoadSource = "persistent") -> None:
        """Say, on every rank, that a checkpoint was loaded.

        Args:
            iteration: The iteration that training resumes from.
            source: ``local`` (memory or node-local disk, fast) or ``persistent`` (shared storage).
        """
        self._translator.loaded(iteration, source)

    def _refuse_a_second_monitor(self) -> None:
        if self._translator.is_running:
            raise PluginError("run() was entered already; leave its with block before entering it again")
        for plugin in self._translator.bus.plugins():
            if isinstance(plugin, SectionMonitor | HeartbeatMonitor):
                raise PluginError(
                    f"the bus has a {type(plugin).__name__} already, and a rank has one monitor client. Unregister it, "
                    "or give FaultTolerance a bus of its own"
                )


def _check(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} is {given!r} ({type(given).__name__}); it must be a {kind.__name__}, or None")


# Classes, not generators: a block costs a quarter of what @contextmanager would.


class _Step:
    __slots__ = ("_iteration", "_number", "_translator")

    def __init__(self, translator: Translator, iteration: int) -> None:
        self._translator = translator
        self._iteration = iteration
        self._number: int | None  # set when the block is entered

    def __enter__(self) -> None:
        translator = self._translator
        if translator.open_step is not None or translator.open_eval is not None:
            _tell_open(translator, f"step {self._iteration}")
        translator.step_start(self._iteration)
        self._number = translator.open_step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # After an exception, too: whoever catches it and goes on must not be taken for a rank stuck in a step. A block
        # that is left when a later one has begun (one in a generator, say) must not end that.
        if self._number is not None and self._translator.open_step == self._number:
            self._translator.step_end(error)


class _EvalStep:
    __slots__ = ("_eval_index", "_iteration", "_number", "_translator")

    def __init__(self, translator: Translator, iteration: int, eval_index: int) -> None:
        self._translator = translator
        self._iteration = iteration
        self._eval_index = eval_index
        self._number: tuple[int, int] | None = None

    def __enter__(self) -> None:
        translator = self._translator
        if translator.open_eval is not None:
            _tell_open(translator, f"evaluation step {self._eval_index} at step {self._iteration}")
        translator.eval_step_start(self._iteration, self._eval_index)
        self._number = translator.open_eval

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._number is not None and self._translator.open_eval == self._number:
            self._translator.eval_step_end(error)


def _tell_open(translator: Translator, what: str) -> None:
    """Say once for each translator that a block was entered inside another one, which is over with that."""
    if translator not in _told_open:
        _told_open.add(translator)
        logger.warning(
            "%s begins inside a step that is still open (%s): that one is over from here on, and the rest of its block "
            "has no limit but that of out-of-section time (said once). Enter one step after the other, not one inside "
            "another",
            what,
            translator.open_step if translator.open_step is not None else translator.open_eval,
        )


_told_open: weakref.WeakSet[Translator] = weakref.WeakSet()


class _Checkpoint:
    __slots__ = ("_iteration", "_kind", "_save", "_translator")

    def __init__(self, translator: Translator, iteration: int, kind: CheckpointKind) -> None:
        self._translator = translator
        self._iteration = iteration
        self._kind: CheckpointKind = kind
        self._save: OpenSave | None = None

    def __enter__(self) -> None:
        self._translator.checkpoint_start(self._kind, self._iteration, may_have_left_a_step=False)
        self._save = self._translator.open_save()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # One that was entered before the run has nothing to end; one that is left late ends no other save.
        if self._save is not None:
            self._translator.checkpoint_end(error=error, save=self._save)
