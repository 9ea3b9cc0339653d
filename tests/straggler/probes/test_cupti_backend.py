"""CUPTI through its binding: the unit of its time stamps, and what it writes to an address.

The binding is a fake, since cupti-python works only with a driver. It is called through the recorded signatures of
each version of cupti-python; tests/straggler/test_probes.py has the real one, where there is a GPU.
"""

import ctypes
from types import SimpleNamespace

import pytest

from straggler.probes.cupti_backend import CuptiError, CuptiPython
from tests.straggler.probes.recorded_packages import CUPTI_VERSIONS, RecordedPackage

TSC = 2.1
"""Ticks in a nanosecond."""


class FakeBinding:
    """Records of one kernel of 1,000 ticks; the clock of the records runs ``ticks`` times as fast as the other one."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.ticks = 1.0
        self.lost = 0
        self.completed = None

    def monotonic_ns(self) -> int:
        self.now_ns += 100_000
        return self.now_ns

    def get_timestamp(self) -> int:
        return int(self.now_ns * self.ticks)

    def activity_register_callbacks(self, func_buffer_requested, func_buffer_completed) -> None:
        self.completed = func_buffer_completed

    def activity_flush_all(self, flag: int) -> None:
        self.completed([SimpleNamespace(kind=10, name="gemm", start=0, end=1_000), SimpleNamespace(kind=1)])

    def activity_get_num_dropped_records(self, context: int, stream_id: int, dropped: int) -> None:
        ctypes.c_size_t.from_address(dropped).value = self.lost


@pytest.fixture
def binding():
    return FakeBinding()


@pytest.fixture(params=CUPTI_VERSIONS)
def backend(binding, request):
    module = RecordedPackage("cupti-python", request.param, binding)
    return CuptiPython(module, monotonic_ns=binding.monotonic_ns)


def delivered(backend) -> list[tuple[str, int, int]]:
    records = []
    backend.register(records.extend)
    backend.flush()
    return records


def test_stamps_are_nanoseconds_unless_another_clock_was_registered(backend):
    assert delivered(backend) == [("gemm", 0, 1_000)]


def test_stamps_of_another_clock_are_converted(backend, binding):
    binding.ticks = TSC
    ((_, start, end),) = delivered(backend)
    assert end - start == pytest.approx(1_000 / TSC, rel=0.01)


def test_a_clock_that_another_profiler_registers_later_is_noticed_at_the_next_registration(backend, binding):
    delivered(backend)
    binding.ticks = TSC
    backend.flush()  # its own callbacks are displaced by now; the ratio over both clocks is used for nothing
    ((_, _, end),) = delivered(backend)
    assert end == pytest.approx(1_000 / TSC, rel=0.01)


def test_the_length_of_a_tick_is_measured_more_exactly_with_time(backend, binding):
    binding.ticks = TSC
    records = []
    backend.register(records.extend)
    binding.now_ns += 1_000_000_000
    backend.flush()
    ((_, _, end),) = records
    assert end == pytest.approx(1_000 / TSC, rel=0.002)


def test_lost_records_are_read_from_the_address_that_the_binding_takes(backend, binding):
    binding.lost = 5
    assert backend.dropped() == 5


def test_what_the_binding_raises_is_named(backend, binding, monkeypatch):
    def refuse(flag):
        raise OSError("no driver")

    monkeypatch.setattr(binding, "activity_flush_all", refuse)
    with pytest.raises(CuptiError, match="activity_flush_all: no driver"):
        delivered(backend)
