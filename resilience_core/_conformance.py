"""Scripted trainings, and the events that each must become, whatever the framework.

The scripts ask for what every framework can do: some updates of the weights, an evaluation and a save every so many,
gradients that accumulate, a run that resumes, one that finds nothing left to do, an exception, a SIGTERM. How
frameworks differ (does a step mean a batch or an update? is there a sanity check?) is said in :class:`Traits`; all
else must be equal. ``resilience_core.testing.check_adapter`` plays the scripts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, Literal

import attrs

__all__ = ["SCRIPTS", "Script", "ScriptedError", "Traits", "expected_trace"]


class ScriptedError(Exception):
    """The exception that a script asks for."""


@attrs.frozen(kw_only=True)
class Script:
    """One training.

    Args:
        name: For people.
        first: Updates of the weights that were done before; when not 0, resume from the checkpoint that an earlier
            script has saved in the same folder after so many.
        updates: Updates that are done at the end, those before included.
        accumulation: Batches to one update.
        every: Evaluate, then save, after each so many updates.
        eval_steps: Batches to one evaluation.
        ends: How: by itself, by an exception, by SIGTERM.
        at: The update in which it does so, from 0.
    """

    name: str
    first: int = 0
    updates: int = 4
    accumulation: int = 1
    every: int = 2
    eval_steps: int = 2
    ends: Literal["completed", "exception", "signal"] = "completed"
    at: int | None = None

    def act(self, update: int) -> None:
        """Raise the script's exception or signal if it is due; to be called within each step, as the forward pass is.

        Args:
            update: Updates completed so far.

        Raises:
            ScriptedError: As the script has it.
            AssertionError: It is time for SIGTERM, and the training has no handler for it: the process that runs the
                tests would die.
        """
        if update != self.at:
            return
        if self.ends == "exception":
            raise ScriptedError(f"scripted, in update {update}")
        if self.ends == "signal":
            if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
                raise AssertionError(
                    f"script '{self.name}' would send SIGTERM, and this training has no handler for it: the process "
                    "that runs the tests would die. Let the training handle it, or leave this script out (scripts=...)"
                )
            os.kill(os.getpid(), signal.SIGTERM)


SCRIPTS = (
    Script(name="from scratch"),
    Script(name="resumed", first=4, updates=6),
    Script(name="resumed with nothing left to do", first=6, updates=6),
    Script(name="accumulating", updates=2, accumulation=2),
    Script(name="exception in a step", ends="exception", at=2),
    Script(name="SIGTERM in a step", ends="signal", at=2),
)
"""In the order in which they are played; a resumed one finds its checkpoint in the folder of those before it."""

Item = tuple[str, Mapping[str, Any]]


@attrs.frozen(kw_only=True)
class Traits:
    """What a framework does in its own way.

    Args:
        steps_are: Whether a step is one batch, or one update with all the batches that accumulate to it.
        sanity_steps: Evaluation steps before the first training step of a run that was not resumed.
        after_exception: Names of the events between the step that fails and ``training_error``.
        after_signal: Names of the events between the step that is hit by SIGTERM and ``teardown``.
        signal_reason: The reason of ``teardown`` after SIGTERM.
    """

    steps_are: Literal["batches", "updates"] = "updates"
    sanity_steps: int = 0
    after_exception: tuple[str, ...] = ()
    after_signal: tuple[str, ...] = ("step_end", "training_error")
    signal_reason: str = "signal"


def expected_trace(script: Script, traits: Traits | None = None) -> list[Item]:
    """Return the events that a script must become, each with the arguments that matter.

    Args:
        script: The training.
        traits: The framework's own way; that of a raw loop when None.
    """
    traits = traits or Traits()
    per_update = script.accumulation if traits.steps_are == "batches" else 1
    trace: list[Item] = [("setup", {})]
    if script.first:
        trace.append(("checkpoint_loaded", {"iteration": script.first * per_update, "source": "persistent"}))
    elif traits.sanity_steps:
        trace += _evaluation(0, traits.sanity_steps)
    for iteration in range(script.first * per_update, script.updates * per_update):
        update = iteration // per_update
        trace.append(("step_start", {"iteration": iteration}))
        if update == script.at and script.ends == "exception":
            trace += [(name, {}) for name in traits.after_exception]
            return [*trace, ("training_error", {"iteration": iteration}), ("teardown", {"reason": "exception"})]
        if update == script.at and script.ends == "signal":
            trace += [(name, {}) for name in traits.after_signal]
            return [*trace, ("teardown", {"reason": traits.signal_reason})]
        trace.append(("step_end", {"iteration": iteration}))
        done = iteration + 1
        if done % (per_update * script.every) == 0:
            save = {"iteration": done, "kind": "save"}
            trace += _evaluation(done, script.eval_steps)
            trace += [("checkpoint_start", save), ("checkpoint_end", {**save, "error": None})]
    return [*trace, ("teardown", {"reason": "completed"})]


def _evaluation(iteration: int, steps: int) -> list[Item]:
    return [
        (f"eval_step_{edge}", {"iteration": iteration, "eval_index": index})
        for index in range(steps)
        for edge in ("start", "end")
    ]
