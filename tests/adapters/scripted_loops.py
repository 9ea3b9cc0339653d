"""Scripted trainings through the two adapters of loops that nobody's framework owns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adapters import megatron
from adapters.ddp import FaultTolerance
from resilience_core.testing import Script, Traits

DDP_TRAITS = Traits(after_exception=("step_end",), after_signal=("step_end",))
# A Megatron-style loop agrees on the signal with its peers, and then ends as if it were complete.
MEGATRON_TRAITS = Traits(after_signal=("step_end",), signal_reason="completed")


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """Note SIGTERM instead of dying from it."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        yield lambda: bool(heard)
    finally:
        signal.signal(signal.SIGTERM, before)


def train_ddp(script: Script, folder: Path) -> None:
    """The raw loop."""
    ft = FaultTolerance()
    with sigterm_noted() as is_asked, ft.run():
        if script.first:
            ft.checkpoint_loaded(script.first)
        for update in range(script.first, script.updates):
            with ft.step(update):
                script.act(update)
            if is_asked():
                ft.end_by_signal()
                return
            if (update + 1) % script.every == 0:
                for index in range(script.eval_steps):
                    with ft.eval_step(update + 1, index):
                        pass
                with ft.checkpoint(update + 1):
                    pass


def megatron_state(folder: Path, **settings: Any) -> Any:
    """The duck-typed global state, with its config as ``cfg``."""
    return SimpleNamespace(
        cfg=SimpleNamespace(
            checkpoint=SimpleNamespace(save=str(folder), async_save=settings.pop("async_save", False)),
            ft=SimpleNamespace(enable_ft_package=True, calc_ft_timeouts=False, **settings),
        ),
        rank_monitor_client=None,
        fault_tolerance_state=SimpleNamespace(),
        train_state=SimpleNamespace(step=0),
    )


def train_megatron(script: Script, folder: Path) -> None:
    """The Megatron-style loop."""
    state = megatron_state(folder)
    megatron.setup(state.cfg, state)
    try:
        with sigterm_noted() as is_asked:
            run_megatron(script, state, is_asked)
    except BaseException:
        megatron.abort(state)
        raise
    megatron.shutdown(state)


def run_megatron(script: Script, state: Any, is_asked: Callable[[], bool]) -> None:
    if script.first:
        state.train_state.step = script.first
        megatron.on_checkpoint_loaded(False, state)
    while state.train_state.step < script.updates and not is_asked():
        megatron.on_training_step_start(state)
        script.act(state.train_state.step)
        state.train_state.step += 1
        megatron.on_training_step_end(state)
        if state.train_state.step % script.every == 0:
            for _ in range(script.eval_steps):
                megatron.on_eval_step_start(state)
                megatron.on_eval_step_end(state)
            megatron.on_checkpointing_start(state)
            megatron.on_checkpointing_end(False, state)
