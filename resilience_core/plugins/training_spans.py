"""TrainingSpans: what a rank does, as spans of OpenTelemetry. Opt-in; needs the extra ``telemetry``.

A rank that hangs is killed, and a span that is open then is never exported. So there is none that lasts as long as the
training: its root, ``training``, ends as soon as it has begun, and the others refer to it. They follow one another
without nesting, as the sections of the rank monitor do.
"""

from __future__ import annotations

import os
import time
from threading import get_ident
from typing import TYPE_CHECKING

from resilience_core.errors import ConfigError
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, hookimpl

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["STEPS_VARIABLE", "TrainingSpans"]

STEPS_VARIABLE = "FT_SPAN_STEPS"
"""Every how many training steps there is a span of one; 0, the default, for none."""

_RUN_VARIABLE = "TORCHELASTIC_RUN_ID"
_UNNAMED_RUN = "none"
"""What torchrun and ``ft_launcher`` call a run for which no ``--rdzv-id`` was given."""


class TrainingSpans:
    """A bus plugin: spans for ``setup``, ``checkpoint``, ``evaluation`` and, where wanted, for some steps.

    Args:
        provider: Where spans go; the process's own when None, or one that OpenTelemetry's environment variables
            describe.
        steps_every: A span for each step whose iteration is a multiple of this; 0 for none. The environment variable
            ``FT_SPAN_STEPS`` when None.

    Raises:
        ConfigError: The number of steps, or the exporter that the environment names, cannot be used.
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None, steps_every: int | None = None) -> None:
        # Here: whoever only imports this module needs no OpenTelemetry.
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        from resilience_core.span_export import context_of, shared_provider

        self._every = _steps_every(os.environ.get(STEPS_VARIABLE, "")) if steps_every is None else steps_every
        if self._every < 0:
            raise ConfigError(f"steps_every is {steps_every}: must be 0 or more")
        self._tracer = (provider or shared_provider()).get_tracer("torch-resilience")
        self._in_context = set_span_in_context
        self._failed = Status(StatusCode.ERROR)
        self._outer = context_of(os.environ)
        self._root: Context = self._outer
        self._setup: Span | None = None
        self._step: Span | None = None
        self._evaluation: Span | None = None
        self._evaluated_ns = 0
        self._evaluations = 0
        self._saves: list[tuple[int, Span]] = []
        """Open ones, with the thread that has begun each."""

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Begin a trace, or go on in the one that ``TRACEPARENT`` names."""
        about: dict[str, str | int] = {
            "ft.rank": context.rank,
            "ft.local_rank": context.local_rank,
            "ft.world_size": context.world_size,
            "ft.generation": context.restart_count,
            "ft.framework": context.framework,
        }
        if (run := _run(os.environ.get(_RUN_VARIABLE, ""))) is not None:
            about["ft.run"] = run
        training = self._tracer.start_span("training", self._outer, attributes=about)
        self._root = self._in_context(training, self._outer)
        training.end()
        self._setup = self._tracer.start_span("setup", self._root, attributes={"ft.rank": context.rank})

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """End the setup or the evaluation before it, and begin a span where this step is to have one."""
        if self._setup is not None or self._evaluation is not None:
            self._end_phases()
        if self._every and iteration % self._every == 0:
            self._step = self._tracer.start_span("step", self._root, attributes={"ft.iteration": iteration})

    @hookimpl
    def step_end(self) -> None:
        """End the step's span."""
        if self._step is not None:
            self._step.end()
            self._step = None

    @hookimpl
    def eval_step_start(self, iteration: int, eval_index: int) -> None:
        """Begin an evaluation with its first step."""
        if eval_index == 0 or self._evaluation is None:
            self._end_phases()
            self._evaluations = 0
            self._evaluation = self._tracer.start_span("evaluation", self._root, attributes={"ft.iteration": iteration})
            self._evaluated_ns = 0

    @hookimpl
    def eval_step_end(self) -> None:
        """Note the end of an evaluation step: it may be the last one."""
        self._evaluated_ns = time.time_ns()
        self._evaluations += 1

    @hookimpl
    def checkpoint_start(self, iteration: int, kind: CheckpointKind) -> None:
        """Begin a save."""
        if kind == "save":
            self._end_phases()
        about = {"ft.iteration": iteration, "ft.kind": kind}
        self._saves.append((get_ident(), self._tracer.start_span("checkpoint", self._root, attributes=about)))

    @hookimpl
    def checkpoint_end(self, error: BaseException | None) -> None:
        """End the save that this thread has begun last, or, where another thread has, the oldest."""
        saves = list(self._saves)
        if not saves:
            return
        mine = [save for save in saves if save[0] == get_ident()]
        save = mine[-1] if mine else saves[0]
        try:
            self._saves.remove(save)
        except ValueError:  # another thread has ended it meanwhile
            return
        span = save[1]
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(self._failed)
        span.end()

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """Note in the setup where training resumes from."""
        if self._setup is not None:
            self._setup.set_attributes({"ft.resumed_from": iteration, "ft.source": source})

    @hookimpl
    def training_error(self, error: BaseException, iteration: int) -> None:
        """Note what has ended the training."""
        about: dict[str, str | int] = {"ft.iteration": iteration, "error.type": type(error).__name__}
        span = self._tracer.start_span("training_error", self._root, attributes=about)
        span.set_status(self._failed)
        span.end()

    @hookimpl
    def teardown(self, reason: str) -> None:
        """End what is open, and say how the training has ended."""
        self._end_phases()
        self.step_end()
        for _, span in self._saves:
            span.end()
        self._saves = []
        self._tracer.start_span("teardown", self._root, attributes={"ft.reason": reason}).end()

    def _end_phases(self) -> None:
        if self._setup is not None:
            self._setup.end()
            self._setup = None
        if self._evaluation is not None:
            self._evaluation.set_attribute("ft.steps", self._evaluations)
            self._evaluation.end(self._evaluated_ns or None)
            self._evaluation = None


def _run(run_id: str) -> str | None:
    """Return what the log folder of the run is called, as the spans of restarts have it; None where nobody named it."""
    return None if run_id in ("", _UNNAMED_RUN) else run_id.replace("/", "_")


def _steps_every(text: str) -> int:
    if not text.strip():
        return 0
    if not text.strip().isdecimal():
        raise ConfigError(f"{STEPS_VARIABLE} is {text!r}: give every how many steps there is a span, 0 for none")
    return int(text)
