"""The contract: the events of a training run.

Argument names are the public API: adding one is safe, renaming one breaks every plugin. A plugin is any
object whose methods carry ``@resilience_core.hookimpl``; each method may take any subset of the documented
arguments, by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, SupportsIndex

import attrs
import pluggy

from resilience_core.environment import RESTART_COUNT_VARIABLE

__all__ = [
    "PROJECT_NAME",
    "CheckpointKind",
    "LoadSource",
    "RunContext",
    "TrainingEvents",
    "hookimpl",
    "hookspec",
]

PROJECT_NAME = "resilience"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)

CheckpointKind = Literal["save", "finalize", "remove"]
LoadSource = Literal["local", "persistent"]


def _check_whole(context: object, field: attrs.Attribute[int], value: object) -> None:
    if not isinstance(value, SupportsIndex):
        raise TypeError(f"{field.name} is {value!r} ({type(value).__name__}); it must be a whole number")


@attrs.frozen(kw_only=True)
class RunContext:
    """What a rank knows about itself when its training loop begins.

    Args:
        rank: Global rank, from 0.
        local_rank: Rank within the node, from 0.
        world_size: Number of ranks in the group.
        restart_count: Generations before this one; 0 in the first. Agreed by all nodes.
        framework: Who translates the events: ``ddp``, ``lightning``, ``megatron``, ``huggingface`` or your own.
        asynchronous_saves: Checkpoints are written in the background, so that the time a save takes in the
            loop says little about the time it needs.
        trainer: The framework's own trainer object, for plugins written for that framework.
        extra: Whatever an adapter wants to hand on.

    Raises:
        TypeError: A field has the wrong type.
    """

    rank: int = attrs.field(default=0, validator=_check_whole)
    local_rank: int = attrs.field(default=0, validator=_check_whole)
    world_size: int = attrs.field(default=1, validator=_check_whole)
    restart_count: int = attrs.field(default=0, validator=_check_whole)
    framework: str = attrs.field(default="", validator=attrs.validators.instance_of(str))
    asynchronous_saves: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    trainer: Any = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def from_environment(cls, **known: Any) -> RunContext:
        """Read ranks from the variables that torchrun and ft_launcher export.

        Args:
            **known: Fields that the caller knows better than the environment.
        """
        environment = {
            "rank": _integer("RANK", 0),
            "local_rank": _integer("LOCAL_RANK", 0),
            "world_size": _integer("WORLD_SIZE", 1),
            "restart_count": _integer(RESTART_COUNT_VARIABLE, _integer("TORCHELASTIC_RESTART_COUNT", 0)),
        }
        return cls(**{**environment, **known})


def _integer(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        return default


class TrainingEvents:
    """Events that a training loop emits.

    In firing order::

        setup
        [checkpoint_loaded]
        for iteration, batch in loop:
            step_start; forward, backward, optimizer, collectives; step_end
            [checkpoint_start; gather, write, barrier; checkpoint_end]
            [for each evaluation batch: eval_step_start; forward; eval_step_end]
        [training_error]
        teardown

    ``setup`` and ``teardown`` frame one run of the loop: a second ``fit()`` fires a second pair.
    """

    @hookspec
    def setup(self, context: RunContext) -> None:
        """A run of the training loop begins on this rank; fires before anything slow.

        Args:
            context: Who this rank is.
        """

    @hookspec
    def step_start(self, iteration: int) -> None:
        """One training step is about to begin.

        Args:
            iteration: Steps since training began, from 0. A resumed run continues the count, and so does each epoch.
        """

    @hookspec
    def step_end(self, iteration: int) -> None:
        """The training step is complete: forward, backward, optimizer and collectives.

        Args:
            iteration: The number given to the matching ``step_start``.
        """

    @hookspec
    def eval_step_start(self, iteration: int, eval_index: int) -> None:
        """One evaluation step is about to begin.

        Args:
            iteration: Training steps completed so far.
            eval_index: Steps since this evaluation began, from 0.
        """

    @hookspec
    def eval_step_end(self, iteration: int, eval_index: int) -> None:
        """The evaluation step is complete.

        Args:
            iteration: Training steps completed so far.
            eval_index: The number given to the matching ``eval_step_start``.
        """

    @hookspec
    def checkpoint_start(self, iteration: int, kind: CheckpointKind) -> None:
        """Saving is about to begin: gather, write and barrier follow this event.

        Args:
            iteration: Training steps completed so far.
            kind: ``save``, ``finalize`` (an asynchronous save is being completed) or ``remove`` (an old
                checkpoint is being deleted).
        """

    @hookspec
    def checkpoint_end(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> None:
        """Saving is over. Always fires after ``checkpoint_start``, whatever happened between.

        Args:
            iteration: As in ``checkpoint_start``.
            kind: As in ``checkpoint_start``; ``finalize`` after a start as ``save`` where a framework says only
                afterwards which of them it was.
            error: What went wrong, or None.
        """

    @hookspec
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """A checkpoint was loaded.

        Args:
            iteration: The iteration that training resumes from.
            source: ``local`` (memory or node-local disk, fast) or ``persistent`` (shared storage).
        """

    @hookspec
    def training_error(self, error: BaseException, iteration: int) -> None:
        """An exception is leaving the loop. No collective may be started by a listener.

        Args:
            error: The exception.
            iteration: Training steps completed so far.
        """

    @hookspec
    def teardown(self, reason: str) -> None:
        """The run of the loop is over; fires once, last.

        Args:
            reason: ``completed`` when the loop ended by itself, else ``exception``, ``signal`` or a
                framework's own word.
        """
