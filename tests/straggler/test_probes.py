"""GPU probes: with a fake or recorded backend everywhere, and with the real ones where there is a GPU."""

import threading

import pytest

from straggler import Detector, Statistic
from straggler.measurement.measured import Family
from straggler.measurement.section import Section, SectionClock
from straggler.probes.cuda_events import MAX_PENDING, CudaEventsProbe
from straggler.probes.cupti import MAX_FAILURES, CuptiProbe
from straggler.probes.nvml import NvmlProbe
from straggler.probes.standard_probes import choose
from straggler.testing import FakeCudaEvents, RecordedCuptiBackend

torch = pytest.importorskip("torch")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

KERNELS = [("gemm", 0, 1_000_000), ("gemm", 0, 3_000_000), ("ncclDevKernel_AllReduce", 0, 9_000_000)]


@pytest.fixture
def events():
    return FakeCudaEvents()


def watched(probe, name="s", **more):
    section = Section(name, SectionClock(), **more)
    probe.start()
    probe.watch(section, True)
    return section


def run(section, clock, milliseconds):
    with section:
        clock.now_ms += milliseconds


def test_events_time_a_section(events):
    probe = CudaEventsProbe(events)
    section = watched(probe)
    for milliseconds in (1.0, 3.0, 2.0):
        run(section, events, milliseconds)
    (row,) = probe.collect().rows
    assert (row.family, row.name) == (Family.GPU_SECTION, "cuda:s")
    assert row.summary[Statistic.MED] == pytest.approx(0.002)
    assert row.summary[Statistic.NUM] == 3


def test_nothing_waits_for_the_gpu_and_what_is_late_counts_next_time(events):
    probe = CudaEventsProbe(events)
    section = watched(probe)
    run(section, events, 1.0)
    events.done_ms = events.now_ms
    run(section, events, 5.0)
    assert probe.collect().rows[0].summary[Statistic.NUM] == 1
    events.done_ms = events.now_ms
    assert probe.collect().rows[0].summary[Statistic.MED] == pytest.approx(0.005)


def test_events_are_reused_and_bounded(events):
    probe = CudaEventsProbe(events)
    section = watched(probe)
    for _ in range(3):
        for _ in range(10):
            run(section, events, 1.0)
        probe.collect()
    assert events.made == 20
    events.done_ms = -1.0
    for _ in range(MAX_PENDING + 5):
        run(section, events, 1.0)
    assert probe.collect().dropped == 5


def test_a_section_that_wants_no_cuda_gets_no_events(events):
    probe = CudaEventsProbe(events)
    section = Section("s", SectionClock())
    probe.watch(section, False)
    run(section, events, 1.0)
    assert probe.collect().rows == []
    assert events.made == 0


def test_the_gpu_time_of_a_wait_is_not_scored(events):
    probe = CudaEventsProbe(events)
    section = watched(probe, kind="wait")
    run(section, events, 1.0)
    assert probe.collect().rows == []


def test_kernels_are_summarised_and_collectives_are_waits():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, other_profiler=lambda: False)
    section = watched(probe)
    with section:
        pass
    rows = {row.name: row for row in probe.collect().rows}
    assert rows["gemm"].summary[Statistic.MED] == pytest.approx(0.002)
    assert rows["collective kernels"].family is Family.WAIT
    assert probe.collect().rows == []


def test_kernels_are_sampled():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=4, other_profiler=lambda: False)
    section = watched(probe)
    for _ in range(9):
        with section:
            pass
    assert backend.enable_calls == 3
    assert not backend.enabled


def test_overlapping_sections_switch_off_once_the_last_is_left():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    outer = watched(probe, "outer")
    inner = Section("inner", SectionClock())
    probe.watch(inner, True)
    with outer:
        with inner:
            pass
        assert backend.enabled
    assert not backend.enabled
    assert backend.enable_calls == 1


def test_dropped_records_are_counted_and_told():
    detector = Detector()
    probe = CuptiProbe(RecordedCuptiBackend(KERNELS, dropped=12), other_profiler=lambda: False)
    detector.initialize(probes=[probe])
    with detector.detection_section("s"):
        pass
    report = detector.generate_report()
    assert any("lost 12 records" in note for note in report.notes)
    assert set(report.local_kernel_summaries) == {"gemm"}
    detector.shutdown()


def test_sampled_kernels_and_the_gpu_time_of_every_entry_are_told_apart(events):
    detector = Detector()
    sampled = CuptiProbe(RecordedCuptiBackend(KERNELS), sample_every=4, other_profiler=lambda: False)
    detector.initialize(probes=[CudaEventsProbe(events), sampled])
    for _ in range(8):
        with detector.detection_section("s"):
            events.now_ms += 5.0
    report = detector.generate_report()
    assert set(report.local_kernel_summaries) == {"gemm"}
    assert report.local_kernel_summaries["gemm"][Statistic.NUM] == 4
    assert report.local_kernel_summaries["gemm"][Statistic.AVG] == pytest.approx(2000.0)  # microseconds
    assert set(report.local_gpu_section_summaries) == {"cuda:s"}
    assert report.local_gpu_section_summaries["cuda:s"][Statistic.NUM] == 8
    assert report.local_gpu_section_summaries["cuda:s"][Statistic.AVG] == pytest.approx(5000.0)
    detector.shutdown()


def test_without_kernels_the_gpu_times_of_sections_take_their_place(events):
    detector = Detector()
    detector.initialize(probes=[CudaEventsProbe(events)])
    with detector.detection_section("s"):
        events.now_ms += 5.0
    report = detector.generate_report()
    assert set(report.local_kernel_summaries) == set(report.local_gpu_section_summaries) == {"cuda:s"}
    detector.shutdown()


def test_another_subscriber_is_said_and_never_tried_again():
    backend = RecordedCuptiBackend(KERNELS, refuse="CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    for _ in range(5):
        with section:
            pass
    assert backend.enable_calls == 1
    (note,) = probe.collect().notes
    assert "another CUPTI subscriber" in note
    assert probe.collect().notes == []


def test_a_cupti_that_keeps_failing_is_left_alone():
    backend = RecordedCuptiBackend(KERNELS, refuse="CUPTI_ERROR_UNKNOWN")
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    for _ in range(10):
        with section:
            pass
    assert backend.enable_calls == MAX_FAILURES
    assert "failed 3 times" in probe.collect().notes[0]


def test_kernels_that_are_switched_off_inside_a_section_are_said_once_and_disabled_at_its_end():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    disabled, notes = [], []

    def disable():
        disabled.append(True)
        raise RuntimeError("broken, too")

    with section:
        backend.flush = lambda: 1 / 0
        backend.disable = disable
        for _ in range(MAX_FAILURES):
            notes += probe.collect().notes
    notes += probe.collect().notes
    assert disabled == [True]
    (note,) = notes
    assert "kernels are not measured: CUPTI failed 3 times" in note


def test_it_keeps_still_while_torch_profiler_runs():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1)
    section = watched(probe)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True), section:
        pass
    assert backend.enable_calls == 0
    assert "torch.profiler was running" in probe.collect().notes[0]


def sample(probe, section):
    with section:
        pass
    return [row.name for row in probe.collect().rows]


def test_kernels_come_back_after_a_session_of_torch_profiler():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1)
    section = watched(probe)
    assert "gemm" in sample(probe, section)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True):
        backend.displace()
        assert sample(probe, section) == []
    assert "gemm" in sample(probe, section)
    assert "gemm" in sample(probe, section)
    assert backend.register_calls == 2


def test_kernels_that_a_session_between_two_entries_took_come_back_and_that_is_said():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    assert "gemm" in sample(probe, section)
    backend.displace()
    with section:
        pass
    collected = probe.collect()
    assert collected.rows == []
    (note,) = collected.notes
    assert "no kernel from 1 sampled entries" in note
    assert "gemm" in sample(probe, section)


def test_a_session_before_anything_came_costs_one_window_and_that_is_said():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    backend.displace()
    assert sample(probe, section) == []
    with section:
        pass
    collected = probe.collect()
    assert "gemm" in [row.name for row in collected.rows]
    (note,) = collected.notes
    assert "had none from 1 sampled entries" in note
    assert probe.collect().notes == []


def test_callbacks_that_could_not_be_registered_are_registered_at_the_next_sample():
    backend = RecordedCuptiBackend(KERNELS)
    register, backend.register = backend.register, lambda deliver: 1 / 0
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    backend.register = register
    assert "gemm" in sample(probe, section)


def test_kernels_come_back_inside_a_section_that_stays_open():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    outer = watched(probe, "epoch")
    inner = Section("step", SectionClock())
    probe.watch(inner, True)
    with outer:
        assert "gemm" in sample(probe, inner)
        backend.displace()
        backend.enabled = False
        sample(probe, inner)
        assert "gemm" in sample(probe, inner)
        assert backend.enabled
    assert not backend.enabled


def test_two_threads_in_one_sampled_section_leave_kernels_off():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    with section:
        other = threading.Thread(target=lambda: section.__enter__() and section.__exit__(None, None, None))
        other.start()
        other.join()
        assert backend.enabled
    assert not backend.enabled


def test_an_entry_of_a_second_thread_does_not_end_that_of_the_first(events):
    probe = CudaEventsProbe(events)
    section = watched(probe)
    with section:
        events.now_ms += 1.0
        other = threading.Thread(target=lambda: run(section, events, 1.0))
        other.start()
        other.join()
        events.now_ms += 1.0
    collected = probe.collect()
    assert collected.rows[0].summary[Statistic.MAX] == pytest.approx(0.003)
    assert collected.rows[0].summary[Statistic.NUM] == 1
    assert collected.dropped == 1


def test_an_entry_left_on_another_thread_ends_no_timer_for_good(events):
    """As by a generator that another thread goes on with."""
    backend = RecordedCuptiBackend([])
    probes = choose([CudaEventsProbe(events), CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)])
    section = watched(probes[0])
    probes[1].watch(section, True)
    section.__enter__()
    assert backend.enabled
    thread = threading.Thread(target=section.__exit__, args=(None, None, None))
    thread.start()
    thread.join(60)
    assert not backend.enabled
    run(section, events, 3.0)
    collected = probes[0].collect()
    assert [row.summary[Statistic.NUM] for row in collected.rows] == [1]
    assert collected.dropped == 1
    assert backend.enable_calls == 2
    assert not backend.enabled


def test_an_event_that_cannot_be_read_costs_its_own_entry_only(events):
    probe = CudaEventsProbe(events)
    section = watched(probe)
    for _ in range(3):
        run(section, events, 1.0)
    captured = section.timers[0].pending[1][1]
    captured.query = lambda: 1 / 0
    collected = probe.collect()
    assert (collected.rows[0].summary[Statistic.NUM], collected.dropped) == (2, 1)


def test_a_section_without_kernels_is_no_loss():
    probe = CuptiProbe(RecordedCuptiBackend([]), sample_every=1, other_profiler=lambda: False)
    section = watched(probe)
    for _ in range(3):
        with section:
            pass
        assert probe.collect().notes == []


def test_a_profiler_that_begins_inside_a_section_keeps_its_kernels():
    backend = RecordedCuptiBackend(KERNELS)
    probe = CuptiProbe(backend, sample_every=1)
    section = watched(probe)
    section.__enter__()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True):
        section.__exit__(None, None, None)
        assert backend.enabled
    probe.collect()
    assert not backend.enabled


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_each_probe_says_why():
    assert "CUDA" in CudaEventsProbe().unavailable_because()
    assert "CUDA" in CuptiProbe().unavailable_because()
    assert NvmlProbe().unavailable_because() != ""


@no_gpu
@pytest.mark.parametrize("probe", [CudaEventsProbe, CuptiProbe])
def test_the_real_probe_sees_a_matrix_product(probe):
    made = probe()
    reason = made.unavailable_because()
    if reason:
        pytest.skip(reason)
    section = watched(made)
    matrix = torch.ones(512, 512, device="cuda")
    with section:
        matrix @ matrix
        torch.cuda.synchronize()
    rows = made.collect().rows
    made.stop()
    assert rows
    assert all(row.summary[Statistic.MED] > 0 for row in rows)


@no_gpu
def test_the_real_device_tells_its_clock():
    probe = NvmlProbe()
    reason = probe.unavailable_because()
    if reason:
        pytest.skip(reason)
    probe.start()
    assert probe.collect().device[0] > 0
    probe.stop()
