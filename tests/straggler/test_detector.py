"""The detector's API: class and instance, settings, reports on time."""

import contextlib
import inspect
import logging
import time
from pathlib import Path

import attrs
import pytest

import straggler
from resilience_core import ConfigError
from straggler import CallableId, Detector, DetectorError, State, Statistic
from straggler.exchange.exchange import LocalExchange
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.plugin_settings import DETECTOR_RESOURCES
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.probes.cuda_events import CudaEventsProbe
from straggler.probes.standard_probes import choose
from straggler.settings import DetectorSettings
from straggler.testing import FakeCudaEvents, RecordedWindowsExchange


@pytest.fixture(autouse=True)
def _no_default_detector_is_left():
    yield
    Detector.shutdown()


def test_every_public_name_can_be_had():
    for name in straggler.__all__:
        assert getattr(straggler, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Detektor'"):
        _ = straggler.Detektor


def test_the_class_level_calls_act_on_a_default_instance():
    Detector.initialize(node_name="here")
    assert Detector.initialized
    assert Detector.default().initialized
    with Detector.detection_section("a"):
        pass
    report = Detector.generate_report()
    assert report.rank_to_node == {0: "here"}
    assert list(report.local_section_summaries) == ["a"]
    Detector.shutdown()
    assert not Detector.initialized


def test_summaries_of_sections_are_in_milliseconds():
    Detector.initialize()
    for seconds in (0.02, 0.02):
        with Detector.detection_section("a"):
            time.sleep(seconds)
    summary = Detector.generate_report().local_section_summaries["a"]
    assert [str(kind) for kind in summary] == ["MIN", "MAX", "MED", "AVG", "STD", "NUM"]
    assert summary[Statistic.NUM] == 2
    assert 20.0 <= summary[Statistic.MIN] <= summary[Statistic.MED] <= summary[Statistic.MAX] < 20_000.0
    Detector.shutdown()


def numbers_of(report):
    return {name: int(summary[Statistic.NUM]) for name, summary in report.local_section_summaries.items()}


def test_a_section_in_training_and_in_an_evaluation_is_two_rows():
    """A pass forward without gradients takes another time by nature: in one row it would hide slowness, or make it."""
    detector = Detector()
    detector.initialize(probes=[CpuWallProbe()])

    def forward(seconds):
        with detector.detection_section("forward"):
            time.sleep(seconds)

    for _ in range(3):
        forward(0.0)
    with detector.evaluation(), detector.evaluation():
        forward(0.05)
        with detector.detection_section():
            pass
    forward(0.0)
    with pytest.raises(KeyError), detector.evaluation():
        raise KeyError
    forward(0.0)
    report = detector.generate_report()
    training = report.local_section_summaries["forward"]
    assert (training[Statistic.NUM], training[Statistic.MED] < 50.0) == (5, True)
    assert report.local_section_summaries["forward (evaluation)"][Statistic.MED] >= 50.0
    assert sum("(evaluation)" in name for name in report.local_section_summaries) == 2
    with pytest.raises(ConfigError, match=r"'forward \(evaluation\)' is named as those of an evaluation"):
        detector.detection_section("forward (evaluation)")
    with detector.evaluation():
        detector.shutdown()
    with pytest.raises(DetectorError, match=r"evaluation was called before initialize\(\) or after shutdown\(\)"):
        detector.evaluation()
    detector.initialize(probes=[CpuWallProbe()])
    forward(0.0)
    assert numbers_of(detector.generate_report()) == {"forward": 1}
    detector.shutdown()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_rank_that_evaluates_alone_is_not_slow(is_told, monkeypatch):
    now = [1]
    monkeypatch.setattr("straggler.measurement.section.perf_counter_ns", lambda: now[0])

    def others(sequence):
        row = Measured(Family.SECTION, "forward", summarise([0.002] * 5))
        head = {"sequence": sequence, "world_size": 4, "elapsed": 1.0, "peer_group": hash_name("")}
        return [encode({**head, "rank": rank}, [(hash_name("forward"), row)]) for rank in (1, 2, 3)]

    detector = Detector()
    detector.initialize(probes=[CpuWallProbe()], exchange=RecordedWindowsExchange(4, others))

    def forward(seconds):
        with detector.detection_section("forward"):
            now[0] += int(seconds * 1e9)

    for _ in range(8):
        for _ in range(5):
            forward(0.002)
        with detector.evaluation() if is_told else contextlib.nullcontext():
            for _ in range(6):
                forward(0.01)
        report = detector.generate_report()
    assert report.verdict(0).state is (State.OK if is_told else State.SLOW)
    detector.shutdown()


def test_a_wrapped_callable_in_training_and_in_an_evaluation_is_two_rows():
    events = FakeCudaEvents()

    class Model:
        def forward(self):
            events.now_ms += 1.0

    model, detector = Model(), Detector()
    detector.initialize(probes=[CpuWallProbe(), CudaEventsProbe(events)])
    detector.wrap_callables([CallableId(model, "forward")])
    kept = model.forward
    model.forward()
    with detector.evaluation():
        model.forward()
        model.forward()
    report = detector.generate_report()
    assert numbers_of(report) == {"Model.forward": 1, "Model.forward (evaluation)": 2}
    assert list(report.local_gpu_section_summaries) == ["cuda:Model.forward"], "a GPU is compared by training alone"
    detector.shutdown()
    kept()  # a reference that somebody has kept still works


@pytest.mark.parametrize("world_size", ["1", "4"])
def test_a_detector_that_comes_before_the_process_group_says_so(world_size, monkeypatch, caplog):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world_size)
    Detector.initialize()
    assert "init_process_group" not in caplog.text, "it may still be made"
    for _ in range(2):
        Detector.generate_report()
    said = [record.getMessage() for record in caplog.records if "init_process_group" in record.getMessage()]
    assert [text.partition(" (")[0] for text in said] == ([] if world_size == "1" else ["this is one of 4 ranks"])


def test_instances_are_apart_from_each_other_and_from_the_default():
    one, other = Detector(), Detector()
    one.initialize()
    other.initialize()
    with one.detection_section("a"):
        pass
    assert list(other.generate_report().local_section_summaries) == []
    assert list(one.generate_report().local_section_summaries) == ["a"]
    assert not Detector.initialized
    one.shutdown()
    one.shutdown()
    assert other.initialized
    other.shutdown()


def test_signatures_begin_as_those_of_the_model_system():
    parameters = inspect.signature(Detector.initialize).parameters
    assert list(parameters)[:5] == [
        "scores_to_compute", "gather_on_rank0", "profiling_interval", "report_time_interval", "node_name",
    ]  # fmt: skip
    section = inspect.signature(Detector.detection_section).parameters
    assert [(p, section[p].default) for p in list(section)[:2]] == [("name", None), ("profile_cuda", True)]


def test_initialising_twice_is_an_error():
    Detector.initialize()
    with pytest.raises(DetectorError, match="initialised already"):
        Detector.initialize()


@pytest.mark.parametrize(
    "call",
    ["generate_report", "generate_report_if_interval_elapsed", "is_interval_elapsed", "detection_section"],
)
def test_use_before_initialize_is_an_error_that_says_what_to_do(call):
    with pytest.raises(DetectorError, match=r"Detector\.initialize"):
        getattr(Detector(), call)()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"scores_to_compute": []}, "no score"),
        ({"scores_to_compute": ["relative_perf_score"]}, "relative_perf_scores"),
        ({"scores_to_compute": "some"}, '"all" or a list'),
        ({"profiling_interval": 0}, "profiling_interval is 0"),
        ({"profiling_interval": 1.5}, "profiling_interval"),
        ({"report_time_interval": 0}, "report_time_interval"),
        ({"report_time_interval": float("nan")}, "report_time_interval"),
        ({"report_bound_seconds": -1}, "report_bound_seconds"),
        ({"scoring": "robst"}, "did you mean 'robust'"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 10**6}, "top_k"),
        ({"gather_on_rank0": 1}, "gather_on_rank0"),
        ({"settings": {"k": 3}}, r"expected RobustSettings\(\.\.\.\)"),
        ({"log_path": 5}, "log_path is 5; expected a path"),
        ({"log_path": b"reports.jsonl"}, "log_path is b'reports.jsonl'; expected a path"),
    ],
)
def test_bad_settings_are_refused_and_leave_nothing_behind(setting, said):
    detector = Detector()
    with pytest.raises(ConfigError, match=said):
        detector.initialize(**setting)
    assert not detector.initialized


@pytest.mark.parametrize(("scores", "relative", "individual"), [
    (["relative_perf_scores"], False, False),
    (["individual_perf_scores"], False, True),
    ("all", False, True),
])  # fmt: skip
def test_only_what_was_asked_for_is_computed(scores, relative, individual):
    """One rank: nothing relative in any case."""
    detector = Detector()
    detector.initialize(scores_to_compute=scores)
    for _ in range(3):
        with detector.detection_section("a"):
            pass
    report = detector.generate_report()
    assert bool(report.section_individual_perf_scores) == individual
    assert bool(report.section_relative_perf_scores) == relative
    detector.shutdown()


def test_a_detector_may_be_used_again_after_shutdown():
    detector = Detector()
    for _ in range(2):
        detector.initialize()
        with detector.detection_section("a"):
            pass
        assert detector.generate_report().sequence == 0
        detector.shutdown()


def test_reports_come_when_the_interval_has_elapsed_alone():
    detector = Detector()
    detector.initialize(report_time_interval=3600.0)
    assert detector.generate_report_if_interval_elapsed() is None
    detector.shutdown()
    detector.initialize(report_time_interval=1e-9)
    assert not detector.is_interval_elapsed()
    report = detector.generate_report_if_interval_elapsed()
    assert detector.is_interval_elapsed()
    assert detector.is_interval_elapsed(), "asking changes nothing"
    reports = [report] if report is not None else detector.shutdown()
    assert [report.sequence for report in reports] == [0]
    detector.shutdown()


def test_what_is_finished_after_the_last_iteration_is_returned_by_shutdown():
    detector = Detector()
    detector.initialize(report_time_interval=1e-9)
    found = [report for _ in range(3) if (report := detector.generate_report_if_interval_elapsed()) is not None]
    found += detector.shutdown()
    assert [report.sequence for report in found] == [0, 1, 2]
    assert detector.shutdown() == []


def test_the_defaults_of_initialize_are_those_of_the_settings():
    signature = inspect.signature(Detector.initialize).parameters
    given = {name: parameter.default for name, parameter in signature.items() if name not in DETECTOR_RESOURCES}
    assert DetectorSettings(**given) == DetectorSettings()
    assert set(given) == {field.alias for field in attrs.fields(DetectorSettings)}


@pytest.mark.parametrize("given", ["reports.jsonl", Path("reports.jsonl")])
def test_the_log_path_becomes_a_path(given):
    assert DetectorSettings(log_path=given).log_path == Path("reports.jsonl")
    assert DetectorSettings().log_path is None


def test_settings_are_frozen_and_go_to_a_detector_whole():
    settings = DetectorSettings(scores_to_compute=["individual_perf_scores"], peer_group=("stage", 3))
    assert (settings.has_relative_scores, settings.has_individual_scores) == (False, True)
    assert settings.peer_group == "('stage', 3)"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        settings.top_k = 3
    detector = Detector()
    detector.start(settings, exchange=LocalExchange())
    with pytest.raises(DetectorError, match="initialised already"):
        detector.start(settings)
    detector.shutdown()


def test_the_choice_of_probes_is_said_once(caplog):
    class Refused(CpuWallProbe):
        name = "refused"

        def unavailable_because(self):
            return "no such thing here"

    with caplog.at_level(logging.INFO, logger="straggler.probes.standard_probes"):
        chosen = choose([CpuWallProbe(), Refused()])
    assert [probe.name for probe in chosen] == ["CPU wall time"]
    assert caplog.messages == ["straggler probes: CPU wall time; not refused (no such thing here)"]
    assert FakeCudaEvents().unavailable_because() == ""
