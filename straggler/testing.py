"""Test doubles for a GPU, its driver and a job of many ranks; their names begin with Fake or Recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from straggler.exchange.exchange import LocalExchange
from straggler.measurement.name_table import hash_name
from straggler.probes.cupti_backend import CuptiError, KernelRecord

__all__ = [
    "FakeCudaEvents",
    "FakeNvmlBackend",
    "RecordedCuptiBackend",
    "RecordedWindowsExchange",
]


class RecordedCuptiBackend:
    """Plays kernel records back as CUPTI would deliver them: only while enabled, at a flush, in one buffer.

    Attributes:
        enabled: Whether kernels are recorded now.
        enable_calls: How often that was switched on.
        register_calls: How often callbacks were registered.

    Args:
        records: What each enabled stretch yields.
        dropped: Records to report as lost, once.
        refuse: What ``enable`` raises, ``""`` for nothing.
    """

    def __init__(self, records: Sequence[KernelRecord], *, dropped: int = 0, refuse: str = "") -> None:
        self.enabled = False
        self.enable_calls = 0
        self.register_calls = 0
        self._records = records
        self._dropped = dropped
        self._refuse = refuse
        self._buffer: list[KernelRecord] = []
        self._deliver: Callable[[Iterable[KernelRecord]], None] | None = None

    def unavailable_because(self) -> str:
        """Return ``""``."""
        return ""

    def register(self, deliver: Callable[[Iterable[KernelRecord]], None]) -> None:
        """Keep what is called with the records."""
        self.register_calls += 1
        self._deliver = deliver

    def enable(self) -> None:
        """Record what the next flush delivers."""
        self.enable_calls += 1
        if self._refuse:
            raise CuptiError(self._refuse)
        self.enabled = True
        self._buffer += self._records

    def disable(self) -> None:
        """Cease to record."""
        self.enabled = False

    def flush(self) -> None:
        """Deliver the records."""
        if self._deliver is not None:
            self._deliver(self._buffer)
        self._buffer = []

    def displace(self) -> None:
        """Take the callbacks away, as a session of torch.profiler does."""
        self._deliver = None

    def dropped(self) -> int:
        """Return the number of records lost, once."""
        dropped, self._dropped = self._dropped, 0
        return dropped


class _FakeEvent:
    def __init__(self, clock: FakeCudaEvents) -> None:
        self._clock = clock
        self.at = 0.0

    def record(self) -> None:
        self.at = self._clock.now_ms

    def query(self) -> bool:
        return self.at <= self._clock.done_ms

    def elapsed_time(self, end: _FakeEvent) -> float:
        return end.at - self.at


class FakeCudaEvents:
    """A stream whose clock the test moves.

    Attributes:
        now_ms: What an event recorded now will say.
        done_ms: How far the stream has run; later events are still pending.
    """

    def __init__(self) -> None:
        self.now_ms = 1.0
        self.done_ms = float("inf")
        self.made = 0

    def unavailable_because(self) -> str:
        """Return ``""``."""
        return ""

    def use_device(self) -> None:
        """Do nothing."""

    def event(self) -> _FakeEvent:
        """Make an event."""
        self.made += 1
        return _FakeEvent(self)


class FakeNvmlBackend:
    """A device that says what the test wants.

    Args:
        **state: Fields of ``measured.STATE_FIELDS``.
    """

    def __init__(self, **state: float) -> None:
        self.state = dict(state)
        self.closed = False

    def unavailable_because(self) -> str:
        """Return ``""``."""
        return ""

    def read(self) -> dict[str, float]:
        """Return the state."""
        return dict(self.state)

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


class RecordedWindowsExchange(LocalExchange):
    """Rank 0 of a job whose other ranks' windows the test supplies.

    Args:
        world_size: Ranks in the job.
        others: Asked at every report with its number; returns the windows of ranks 1 and up, None for a missing one.
        names: What the other ranks would tell when rank 0 asks for the names behind hashes.
    """

    def __init__(
        self, world_size: int, others: Callable[[int], Sequence[bytes | None]], names: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.world_size = world_size
        self._others = others
        self._names = {hash_name(name): name for name in names}

    def collect(self, sequence: int, is_over: Callable[[], bool] | None = None) -> list[bytes | None]:
        """Return this rank's window and the others'.

        Raises:
            ValueError: The test supplies another number of windows.
        """
        others = list(self._others(sequence))
        if len(others) != self.world_size - 1:
            raise ValueError(
                f"others({sequence}) returned {len(others)} windows; expected {self.world_size - 1}, one for each rank "
                "from 1 on, None for a missing one"
            )
        return [*super().collect(sequence), *others]

    def names_of(self, hashes: Iterable[int]) -> dict[int, str]:
        """Return the names behind these hashes, as far as the other ranks know them."""
        return {number: self._names[number] for number in hashes if number in self._names}
