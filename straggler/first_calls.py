"""What the first iteration, the first report and the first process group need of modules, imported beforehand.

A step must not be delayed by more than 5 ms, and what torch and numpy import where it is first used takes longer: the
waits of functional collectives are watched from the first iteration after ``init_process_group`` on, and the first
median imports ``numpy.ma``. So all of it is imported by ``initialize``, which is no part of an iteration.
``benchmarks/straggler_steps.py --steps`` measures these calls.

Importing it on the thread that makes reports was rejected: a thread that imports holds the interpreter's lock most of
the time, and so delays the one that trains.
"""

from __future__ import annotations

from importlib import import_module

from straggler.measurement.waits import watched_modules

__all__ = ["import_ahead"]


def import_ahead() -> None:
    """Import what later calls use, so that none of them does."""
    import torch.distributed as dist

    import_module("numpy.ma")
    if dist.is_available():
        import_module("straggler.exchange.store")
        watched_modules()
