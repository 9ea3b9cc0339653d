"""The time that the training thread spends waiting for other ranks, whatever part of the step it waits in.

In a synchronous job every rank needs as long for a step as the slowest one: the others wait for it in a collective. A
rank's own work is the step without that time, and so it is measured whatever the script marks, in whichever group the
collective is, and with no comparison of two clocks. Of several groups (tensor, data and pipeline parallel) the slow
rank is the one that waits in none of them, so that nobody needs to know who waits for whom.

While a detector runs, these are watched, and put back when it is shut down:

- ``Work.wait``, with which every collective and point-to-point call of ``torch.distributed`` waits, at once or later
  (these functions themselves are left alone: ``torch.compile`` knows them by identity), and the two calls that wait
  without it;
- the wait of functional collectives, as in tensor parallelism by ``DTensor``;
- what a ``DataLoader`` waits for its workers, which is a wait for nobody's collective and is kept apart
  (:mod:`straggler.measurement.loaders`);
- the end of a backward pass of ``DistributedDataParallel``: from when all of the rank's own gradients are computed, to
  when those of all ranks are there. Callbacks of ``Engine.queue_callback`` run in the order in which they were queued.
  One that is queued at the beginning of the backward pass runs before the one in which DDP waits, and one that is
  queued from there runs after it.

Not seen are collectives that C++ code makes by itself, and waits of a GPU: with NCCL a collective returns at once, and
it is the kernels that tell who waits. :attr:`WaitClock.seen` beside the groups' sequence numbers shows the first.

Two other ways were rejected. Sequence numbers, sampled by a thread, show when a collective begins but not when it ends,
so that clocks of machines would have to be compared. The processor time of the training thread shows waiting only where
the slow rank computes, and not where it waits for a disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from straggler.measurement.core_waits import CoreWaits
from straggler.measurement.loaders import counted, what_fetches, what_waits

__all__ = ["WaitClock", "watch", "watched_modules"]

_CALLS = ("monitored_barrier", "_broadcast_coalesced")
"""What waits without a ``Work``. The second sends the buffers of a model before each forward pass of DDP."""

_LEAST_CORE_SHARE = 0.005
"""Of its time that a thread has to wait for a core before anybody looks at which part of it that is in."""

_MOST_OUTPUTS = 16
"""Tensors of a model's output at which a backward pass may begin."""


class WaitClock:
    """Adds up the waits of one thread, for other ranks and for a core.

    Waits for a core are told apart by where they fall: within a wait for other ranks (the collective is over, and the
    thread is not yet running) they cost a rank nothing that is its own, elsewhere they make its own work longer. Two
    readings at each wait tell. They are left out while the thread waits for less than ``_LEAST_CORE_SHARE``. Waits for
    the workers of a ``DataLoader`` are known as well.

    Attributes:
        waited_ns: How long that thread has waited for other ranks so far.
        loader_ns: How long for workers of data loaders, without the waits for a core in it.
        seen: How many waits that were.
        thread: Which, by its identifier: the one that makes the clock.

    Args:
        cores: Reads how long the thread has waited for a core; None: of the calling thread.
    """

    __slots__ = ("_cores", "_is_reading", "_known", "_within_ns", "loader_ns", "seen", "thread", "waited_ns")

    def __init__(self, cores: CoreWaits | None = None) -> None:
        self.waited_ns = 0
        self.loader_ns = 0
        self.seen = 0
        self.thread = get_ident()
        self._cores = CoreWaits() if cores is None else cores
        self._within_ns = 0
        self._known = (perf_counter_ns(), self._cores.read_ns())
        self._is_reading = self.tells_cores

    @property
    def tells_cores(self) -> bool:
        """Whether the kernel tells how long the thread has waited for a core."""
        return self._known[1] is not None

    def core_ns(self) -> int | None:
        """Return how long the thread has waited for a core, outside of waits for others; None while nobody looks."""
        now = self._cores.read_ns() if self._is_reading else None
        return None if now is None else now - self._within_ns

    def apart(self) -> tuple[int | None, int]:
        """Return what :meth:`apart_since` is to be given later."""
        return self.core_ns(), self.loader_ns

    def apart_since(self, before: tuple[int | None, int]) -> int:
        """Return how long the thread has waited since then that was neither work nor for other ranks."""
        core_ns = self.core_ns()
        waited = 0 if core_ns is None or before[0] is None else core_ns - before[0]
        return waited + self.loader_ns - before[1]

    def add_loader(self, nanoseconds: int, core_ns: int | None) -> None:
        """Add a wait of the training thread for workers of a data loader; the arguments are those of :meth:`add`."""
        now = self.core_ns()
        self.loader_ns += nanoseconds - (0 if core_ns is None or now is None else now - core_ns)

    def add(self, nanoseconds: int, core_ns: int | None = None) -> None:
        """Add a wait of the training thread for other ranks.

        Args:
            nanoseconds: How long it was.
            core_ns: What :meth:`core_ns` was before.
        """
        self.waited_ns += nanoseconds
        self.seen += 1
        if core_ns is not None and (now := self.core_ns()) is not None:
            self._within_ns += now - core_ns

    def close(self) -> None:
        """Read no more how long the thread waits for a core."""
        self._cores.close()

    def end_window(self) -> None:
        """Decide by the window that ends whether the next one looks at waits for a core."""
        (began, before), now = self._known, self._cores.read_ns()
        self._known = (perf_counter_ns(), now)
        elapsed = self._known[0] - began
        self._is_reading = now is not None and before is not None and now - before >= _LEAST_CORE_SHARE * elapsed


_clocks: list[WaitClock] = []
"""Those of all detectors; what is watched is watched once for all of them."""
_undo: list[Callable[[], None]] = []


def watch(clock: WaitClock) -> Callable[[], None]:
    """Let a clock run; return what ends that.

    Raises:
        ImportError: This torch has no ``torch.distributed``.
    """
    if not _clocks:
        _undo.extend(_installed())
    _clocks.append(clock)

    def stop() -> None:
        if clock in _clocks:
            _clocks.remove(clock)
            if not _clocks:
                while _undo:
                    _undo.pop()()

    return stop


def _installed() -> Iterator[Callable[[], None]]:
    """Replace what is watched; yield what puts each back."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    yield _replaced(c10d.Work, "wait", _timed)
    for owner, name in what_waits():
        yield _replaced(owner, name, _timed_loader)
    for owner, name in what_fetches():
        yield _replaced(owner, name, counted)
    for name in _CALLS:
        for module in (dist, c10d):
            if callable(getattr(module, name, None)):
                yield _replaced(module, name, _timed)
    modules = watched_modules()
    if modules is None:
        return
    functional, parallel = modules
    if callable(getattr(functional, "wait_tensor", None)):
        yield _replaced(functional, "wait_tensor", _timed)
    yield _replaced(parallel.DistributedDataParallel, "forward", _followed)


def watched_modules() -> tuple[Any, Any] | None:
    """Import and return those that ``import torch`` may leave out; None where a build of torch is without them.

    The first takes 20 ms of processor time.
    """
    try:
        import torch.distributed._functional_collectives as functional
        import torch.nn.parallel as parallel
    except ImportError:
        return None
    return functional, parallel


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace an attribute by what is made of it; return what puts it back, where nobody has replaced it since."""
    original = getattr(owner, name)
    made = make(original)
    setattr(owner, name, made)

    def put_back() -> None:
        if getattr(owner, name, None) is made:
            setattr(owner, name, original)

    return put_back


def _timed(original: Any) -> Any:
    return _telling(WaitClock.add, original)


def _timed_loader(original: Any) -> Any:
    return _telling(WaitClock.add_loader, original)


def _telling(tell: Callable[[WaitClock, int, int | None], None], original: Any) -> Any:
    """Make of a function one that tells the clocks of its thread how long it took."""
    from torch.compiler import is_compiling

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        thread = get_ident()
        watching = [(clock, clock.core_ns()) for clock in _clocks if clock.thread == thread]
        began = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            waited = perf_counter_ns() - began
            for clock, core_ns in watching:
                tell(clock, waited, core_ns)

    return timed


def _followed(original: Any) -> Any:
    """Make of DDP's ``forward`` one that also watches the backward pass of what it returns."""
    from torch import is_grad_enabled
    from torch.compiler import is_compiling

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if not is_compiling() and _clocks and is_grad_enabled() and getattr(self, "require_backward_grad_sync", False):
            _follow(output)
        return output

    return forward


def _follow(output: Any) -> None:
    from torch.autograd import Variable

    engine: Any = Variable._execution_engine
    is_queued: list[bool] = []
    arrived: list[tuple[int, list[tuple[WaitClock, int | None]]]] = []

    def begin(*_: Any) -> None:
        if not is_queued:
            is_queued.append(True)
            engine.queue_callback(arrive)

    def arrive() -> None:
        arrived.append((perf_counter_ns(), [(clock, clock.core_ns()) for clock in _clocks]))
        engine.queue_callback(leave)

    def leave() -> None:
        began, watching = arrived[0]
        waited = perf_counter_ns() - began
        for clock, core_ns in watching:
            clock.add(waited, core_ns)

    for node in _nodes(output, 0, []):
        node.register_prehook(begin)


def _nodes(output: Any, depth: int, found: list[Any]) -> list[Any]:
    """Return the nodes of the graph at which a backward pass may begin."""
    if len(found) >= _MOST_OUTPUTS or depth > 3:
        return found
    node = getattr(output, "grad_fn", None)
    if node is not None:
        found.append(node)
    elif isinstance(output, dict):
        for value in output.values():
            _nodes(value, depth + 1, found)
    elif isinstance(output, (list, tuple)):
        for value in output:
            _nodes(value, depth + 1, found)
    elif hasattr(output, "__dict__") and not isinstance(output, type):
        _nodes(vars(output), depth + 1, found)
    return found
