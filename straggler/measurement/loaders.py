"""Waits for the workers of a ``DataLoader``, and how long these take for a batch.

A rank that waits for its workers in every step is not slow for it. Workers load ahead, so of ranks whose workers are
equally fast, one waits for them in each step, and the others, which wait for that rank in the collective, find their
batches ready: the smallest difference between the workers of two ranks decides which of them waits for all that the
step is longer than its computation. So waits for workers are kept apart from a rank's own work, as those for a core
are, and what the workers take for a batch is measured where they work: the time of a batch, with and without waits for
a core, divided by the number of workers, since so many batches are made at once.

Workers that are forks of this process, made while a detector runs, write it into memory that they share with it.
Others tell nothing: then it is not known whether they are slow, and a report says so.

Two other ways were rejected. How many batches lie ready tells nothing: they are counted when the step begins, and by
then those of workers that are just fast enough are ready, too. That one rank waits much longer than the others for
several minutes is true of equal ranks as well.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, NamedTuple

from straggler.measurement.core_waits import CoreWaits

__all__ = ["Batches", "BatchesMade", "batches_made", "counted", "what_fetches", "what_waits"]

_SLOTS = 127
"""Workers write into one each, by their process's number; two that meet in one may lose a count."""


class Batches(NamedTuple):
    """What is known of a number of batches."""

    took_ns: int
    waited_ns: int
    """The part of it in which workers waited for a core."""
    number: int

    def since(self, before: Batches) -> Batches:
        """Return those that have come after others."""
        return Batches(*(now - then for now, then in zip(self, before, strict=True)))


class BatchesMade:
    """Counts the batches that workers of this process have made, and how long they took; in shared memory."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 24 * _SLOTS)).cast("q")

    def add(self, nanoseconds: int, waited_ns: int) -> None:
        """Add a batch; called in the process of a worker.

        Args:
            nanoseconds: What it took.
            waited_ns: The part of that in which the worker waited for a core.
        """
        place = 3 * (os.getpid() % _SLOTS)
        self._words[place] += nanoseconds
        self._words[place + 1] += waited_ns
        self._words[place + 2] += 1

    def so_far(self) -> Batches:
        """Return what there is of all batches."""
        return Batches(*(sum(self._words[word::3].tolist()) for word in range(3)))


@functools.cache
def batches_made() -> BatchesMade:
    """Return the counts of this process. They are never replaced, since workers outlive a detector."""
    return BatchesMade()


def what_waits() -> Iterator[tuple[Any, str]]:
    """Yield the class and the name of the method in which an iterator of a loader waits for its workers."""
    import torch.utils.data.dataloader as dataloader

    iterator = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if callable(getattr(iterator, "_get_data", None)):
        yield iterator, "_get_data"


def what_fetches() -> Iterator[tuple[Any, str]]:
    """Yield the classes and the name of the method with which a worker makes a batch."""
    import torch.utils.data._utils.fetch as fetch

    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(fetch, name, None)
        if callable(getattr(fetcher, "fetch", None)):
            yield fetcher, "fetch"


def counted(original: Any) -> Callable[..., Any]:
    """Return a method that makes a batch and counts it, where a worker calls it."""
    from torch.utils.data import get_worker_info

    made = batches_made()

    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        worker = get_worker_info()
        if worker is None:
            return original(*args, **kwargs)
        cores = _cores_of(os.getpid())
        waited, began = cores.read_ns(), perf_counter_ns()
        batch = original(*args, **kwargs)
        took, now = perf_counter_ns() - began, cores.read_ns()
        waited = 0 if waited is None or now is None else min(now - waited, took)
        made.add(took // worker.num_workers, waited // worker.num_workers)
        return batch

    return fetch


@functools.lru_cache(maxsize=1)
def _cores_of(_process: int) -> CoreWaits:
    """Return what reads the waits of a worker's main thread, which a fork does not take over from its parent."""
    return CoreWaits()
