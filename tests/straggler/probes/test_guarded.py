"""Whatever a library or a probe does, training goes on, the other probes measure on, and the loss is said once."""

import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from straggler import Detector
from straggler.measurement.measured import STATE_FIELDS
from straggler.measurement.section import Section, SectionClock
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.probes.cuda_events import CudaEventsProbe
from straggler.probes.cupti import CuptiProbe
from straggler.probes.cupti_backend import CuptiPython
from straggler.probes.guarded import MAX_FAILURES, GuardedProbe
from straggler.probes.nvml import NvmlProbe
from straggler.probes.probe import Collected
from straggler.testing import FakeCudaEvents, RecordedWindowsExchange
from tests.straggler.probes.record_gpu_packages import CUPTI_FUNCTIONS
from tests.straggler.probes.recorded_packages import CUPTI_VERSIONS, NVML_VERSIONS, RecordedPackage

REPORTS = 8
LOST = ("no longer measured", "are not measured")


def train(*probes, exchange=None, entries=4):
    """Return the notes of a short training, which fails if a probe raises into it, and how many records were lost."""
    detector, notes, lost = Detector(), [], 0
    detector.initialize(probes=[CpuWallProbe(), *probes], exchange=exchange)
    for _ in range(REPORTS):
        for _ in range(entries):
            with detector.detection_section("step"):
                pass
        report = detector.generate_report()
        if report is not None:
            assert "step" in report.local_section_summaries
            notes += [note for note in report.notes if "probes lost" not in note]
            lost += report.gathered.dropped
    detector.shutdown()
    return notes, lost


def refuse(*arguments):
    raise RuntimeError("broken")


ANSWERS = {
    "raises": refuse,
    "None": lambda *arguments: None,
    "text": lambda *arguments: "text",
    "an error code": lambda *arguments: -1,
    "nan": lambda *arguments: float("nan"),
}


class Binding:
    """CUPTI: one kernel's record at each flush."""

    def __init__(self):
        self.completed = None
        self.record = SimpleNamespace(kind=10, name="gemm", start=0, end=1_000)

    def activity_register_callbacks(self, func_buffer_requested, func_buffer_completed):
        self.completed = func_buffer_completed

    def activity_flush_all(self, flag):
        if self.completed is not None:
            self.completed([self.record])


def cupti(module):
    backend = CuptiPython(module)
    backend.unavailable_because = lambda: ""
    return CuptiProbe(backend, sample_every=1, other_profiler=lambda: False)


def said_losses(notes):
    return [note for note in notes if any(words in note for words in LOST)]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("function", CUPTI_FUNCTIONS)
def test_no_call_of_cupti_raises_into_training(function, answer):
    binding = Binding()
    setattr(binding, function, ANSWERS[answer])
    notes, _ = train(cupti(RecordedPackage("cupti-python", CUPTI_VERSIONS[-1], binding)))
    if answer == "raises" or (function == "get_timestamp" and answer != "an error code"):
        (said,) = said_losses(notes)
        assert function in said or "timestamp" in said or "int()" in said or "NaN" in said
    else:
        assert len(said_losses(notes)) <= 1


@pytest.mark.parametrize("field", ["kind", "name", "start", "end"])
def test_a_record_that_cannot_be_read_is_said(field):
    binding = Binding()
    delattr(binding.record, field)
    notes, _ = train(cupti(RecordedPackage("cupti-python", CUPTI_VERSIONS[-1], binding)))
    (said,) = said_losses(notes)
    assert f"'{field}'" in said


def test_a_cupti_without_its_enumeration_is_said():
    module = RecordedPackage("cupti-python", CUPTI_VERSIONS[-1], Binding())
    del module.ActivityKind
    (said,) = said_losses(train(cupti(module))[0])
    assert "ActivityKind" in said


def test_a_torch_that_cannot_say_whether_its_profiler_runs_costs_the_kernels_and_not_the_training():
    backend = CuptiPython(RecordedPackage("cupti-python", CUPTI_VERSIONS[-1], Binding()))
    backend.unavailable_because = lambda: ""
    (said,) = said_losses(train(CuptiProbe(backend, sample_every=1, other_profiler=refuse))[0])
    assert "broken" in said


@pytest.mark.parametrize("answer", [answer for answer in ANSWERS if answer != "None"])
@pytest.mark.parametrize("method", ["event", "record", "query", "elapsed_time"])
def test_no_call_of_an_event_raises_into_training(method, answer, monkeypatch):
    events = FakeCudaEvents()
    owner = FakeCudaEvents if method == "event" else type(events.event())
    monkeypatch.setattr(owner, method, ANSWERS[answer])
    notes, lost = train(CudaEventsProbe(events))
    if answer == "raises" or method in {"event", "elapsed_time"}:
        (said,) = said_losses(notes)
        assert "CUDA events: no longer measured" in said
        assert lost >= MAX_FAILURES
    else:
        assert said_losses(notes) == []


NVML_CALLED = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPowerUsage",
)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("function", ["nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex", *NVML_CALLED])
def test_no_call_of_nvml_raises_into_training(function, answer, monkeypatch):
    module = RecordedPackage("nvidia-ml-py", NVML_VERSIONS[-1], SimpleNamespace(**{function: ANSWERS[answer]}))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert said_losses(train(NvmlProbe())[0]) == []


@pytest.mark.parametrize("error", [RuntimeError, TypeError, None])
def test_a_device_that_stops_answering_is_said(error, monkeypatch):
    answers = SimpleNamespace()
    module = RecordedPackage("nvidia-ml-py", NVML_VERSIONS[-1], answers)
    monkeypatch.setitem(sys.modules, "pynvml", module)

    def lost(*arguments):
        raise (error or module.NVMLError)("GPU is lost")

    class LostLater(NvmlProbe):
        def start(self):
            super().start()
            for name in NVML_CALLED:
                setattr(answers, name, lost)

    (said,) = said_losses(train(LostLater())[0])
    assert "NVML: no longer measured" in said
    assert "GPU is lost" in said


def test_a_device_that_never_answered_is_not_chosen(monkeypatch, caplog):
    module = RecordedPackage("nvidia-ml-py", NVML_VERSIONS[-1], SimpleNamespace(**dict.fromkeys(NVML_CALLED, refuse)))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with caplog.at_level(logging.INFO, logger="straggler.probes.standard_probes"):
        assert said_losses(train(NvmlProbe())[0]) == []
    assert "not NVML (it did not start: RuntimeError: broken)" in caplog.text


class Broken:
    """A probe that does what it should not in one place."""

    name = "a probe"

    def __init__(self, where, answer):
        self._where, self._answer = where, answer
        self.calls = 0

    def _at(self, where, otherwise=None):
        if where != self._where:
            return otherwise
        self.calls += 1
        return self._answer()

    def unavailable_because(self):
        return self._at("unavailable_because", "")

    def start(self):
        self._at("start")

    def watch(self, section, profile_cuda):
        section.add_timer(SimpleNamespace(enter=lambda: self._at("enter"), exit=lambda: self._at("exit")))
        self._at("watch")

    def collect(self):
        return self._at("collect", Collected())

    def stop(self):
        self._at("stop")


@pytest.mark.parametrize(
    ("where", "calls", "lost"),
    [
        ("unavailable_because", 1, 0),
        ("start", 1, 0),
        ("watch", 1, 1),
        ("enter", MAX_FAILURES, 3),
        ("exit", MAX_FAILURES, 3),
        ("collect", MAX_FAILURES, 3),
        ("stop", 1, 0),
    ],
)
def test_no_entry_of_a_probe_raises_into_training(where, calls, lost):
    probe = Broken(where, refuse)
    notes, dropped = train(probe)
    assert (probe.calls, dropped) == (calls, lost)
    assert len(said_losses(notes)) == (lost == MAX_FAILURES)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        Collected(rows=[None]),
        Collected(device=np.zeros(len(STATE_FIELDS) + 1)),
        Collected(dropped=None),
        Collected(dropped=-1),
        Collected(notes=None),
    ],
)
def test_what_a_report_cannot_use_is_a_failure_of_the_probe(answer):
    (said,) = said_losses(train(Broken("collect", lambda: answer))[0])
    assert said.startswith("a probe: no longer measured: 3 errors, the latest: collect: ")


@pytest.mark.parametrize("where", ["enter", "exit", "collect"])
def test_an_exit_is_passed_on(where):
    def leave():
        raise KeyboardInterrupt

    guarded = GuardedProbe(Broken(where, leave))
    section = Section("s", SectionClock())
    guarded.watch(section, True)

    def use():
        with section:
            pass
        guarded.collect()

    with pytest.raises(KeyboardInterrupt):
        use()


def test_a_rank_whose_reports_nobody_sees_logs_what_it_lost(caplog):
    exchange = RecordedWindowsExchange(2, lambda sequence: [None])
    exchange.rank = 1
    train(Broken("collect", refuse), exchange=exchange)
    said = [message for message in caplog.messages if "no longer measured" in message]
    assert said == ["straggler: a probe: no longer measured: 3 errors, the latest: collect: RuntimeError: broken"]
