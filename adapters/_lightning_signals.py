"""SIGTERM under Lightning: one rank of several that gets it must not deadlock the others.

Lightning 2.6 answers SIGTERM with a broadcast inside its signal handler. The rank that was hit waits there for peers
who never come, while they wait for it in the all-reduce of the step. Here the handler takes a note and nothing
more: the rank leaves at the end of its batch, as Lightning has it, and its peers see that the connection is closed
(or, where the backend does not tell, reach the limit of their step).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["defer_sigterm"]


def defer_sigterm(trainer: Any) -> None:
    """Replace Lightning's handler of SIGTERM; Lightning restores the one before it when ``fit`` ends.

    Args:
        trainer: A trainer that has registered its signal handlers. Left alone where it has one rank only, where
            Lightning is too old to broadcast, and where somebody else handles SIGTERM.
    """
    connector: Any = getattr(trainer, "_signal_connector", None)
    loop = trainer.fit_loop.epoch_loop
    if trainer.world_size < 2 or not hasattr(loop, "_broadcast_sigterm_tensor"):
        return
    if threading.current_thread() is not threading.main_thread():
        return
    composed = getattr(signal.getsignal(signal.SIGTERM), "signal_handlers", None)
    notifier = getattr(connector, "_sigterm_notifier_fn", None)
    if notifier is None or composed is None or notifier not in composed:
        return
    others = [handler for handler in composed if handler != notifier and callable(handler)]

    def note(number: int, frame: FrameType | None) -> None:
        if not trainer.received_sigterm and trainer.strategy.launcher is not None:
            trainer.strategy.launcher.kill(number)
        connector.received_sigterm = True
        for handler in others:
            handler(number, frame)

    signal.signal(signal.SIGTERM, note)
