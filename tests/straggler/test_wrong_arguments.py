"""What is wrong with an argument is said where it is given: its name, its value and what fits."""

import pytest

from resilience_core import ConfigError
from straggler import CallableId, Detector, RobustSettings, StragglerPlugin
from straggler.exchange.exchange import LocalExchange
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.testing import RecordedWindowsExchange


@pytest.fixture
def detector():
    made = Detector()
    yield made
    made.shutdown()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scores_to_compute": None}, 'scores_to_compute is None; give "all"'),
        ({"scores_to_compute": 5}, 'scores_to_compute is 5; give "all"'),
        ({"scores_to_compute": b"all"}, "scores_to_compute is b'all'; give \"all\""),
        ({"report_time_interval": 10**400}, "report_time_interval is 1000.*; expected seconds above 0"),
        ({"report_bound_seconds": 1e12}, "report_bound_seconds is 1000000000000.0; expected seconds above 0"),
        ({"probes": 5}, "probes is 5; expected a list of probes"),
        ({"probes": "x"}, "probes is 'x'; expected a list of probes"),
        ({"probes": [5]}, "probes has 5, which is no probe: it needs a name and the methods unavailable_because"),
        ({"probes": [CpuWallProbe]}, "probes has .*which is no probe"),
        ({"exchange": 5}, "exchange is 5; expected an Exchange"),
        ({"store": 5}, "store is 5; expected a store of torch.distributed"),
        ({"store": "x"}, "store is 'x'; expected a store of torch.distributed"),
        ({"log_path": ""}, "log_path is ''; expected a path"),
        ({"node_name": 5}, "node_name is 5; expected text"),
        ({"node_name": b"n"}, "node_name is b'n'; expected text"),
        ({"node_name": ""}, "node_name is ''; expected printable text"),
        ({"node_name": "a\nb"}, r"node_name is 'a\\nb'; expected printable text"),
        ({"peer_group": object()}, "peer_group is <object object at .*, whose text is another on each rank"),
        ({"peer_group": ("stage", object())}, "peer_group is .*whose text is another on each rank"),
        ({"log_path": "a\0b"}, r"log_path is 'a\\x00b'; expected a path"),
        (
            {"scoring": "minimum", "settings": RobustSettings(k=2)},
            "settings are for scoring=\"robust\", and scoring is 'minimum'",
        ),
    ],
)
def test_of_initialize_and_of_the_plugin(detector, given, said):
    with pytest.raises(ConfigError, match=said):
        detector.initialize(**given)
    assert not detector.initialized
    if "scores_to_compute" not in given:
        with pytest.raises(ConfigError, match=said):
            StragglerPlugin(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logger_name": 5}, "logger_name is 5; expected the name of a logger"),
        ({"save_checkpoint": 5}, "save_checkpoint is 5; expected a function"),
        ({"on_report": 5}, "on_report is 5; expected a function"),
        ({"detector": 5}, r"detector is 5; expected a Detector\(\)"),
        ({"gpu_relative_perf_threshold": 7}, "^gpu_relative_perf_threshold is 7; a score is between 0"),
        ({"section_individual_perf_threshold": "x"}, "^section_individual_perf_threshold is 'x'; a score is"),
        ({"detector": Detector}, r"detector is .*; expected a Detector\(\)"),
    ],
)
def test_of_the_plugin(given, said):
    with pytest.raises(ConfigError, match=said):
        StragglerPlugin(**given)


@pytest.mark.parametrize("name", [["x"], {}, 5, b"x"])
def test_of_a_section(detector, name):
    detector.initialize(probes=[])
    with pytest.raises(ConfigError, match=r"a section's name is text, such as \"forward\", not "):
        detector.detection_section(name)


def test_of_profile_cuda(detector):
    detector.initialize(probes=[])
    with pytest.raises(ConfigError, match="profile_cuda of section 'forward' is 'no'; expected True or False"):
        detector.detection_section("forward", profile_cuda="no")
    with pytest.raises(ConfigError, match=r"wrap_callables\(profile_cuda\) is 'no'; expected True or False"):
        detector.wrap_callables([CallableId(Wrapped, "method")], profile_cuda="no")
    assert "method" in vars(Wrapped)
    assert Wrapped().method() == 5


class Wrapped:
    def method(self):
        return 5


@pytest.mark.parametrize("rank", ["0", -1, 1, 0.0, None, True])
def test_of_a_report_that_is_asked_for_a_rank(detector, rank):
    detector.initialize(probes=[])
    report = detector.generate_report()
    for ask in (report.verdict, report.lost_share, report.of_rank):
        with pytest.raises(ValueError, match=r"rank is .*; expected a whole number from 0 to 0"):
            ask(rank)


@pytest.mark.parametrize("rows", ["x", -1, None, 2.5])
def test_of_a_table(detector, rows):
    detector.initialize(probes=[])
    with pytest.raises(ValueError, match=r"rows is .*; expected a whole number from 0"):
        detector.generate_report().table(rows)


def test_of_windows_that_a_test_supplies(detector):
    detector.initialize(probes=[], exchange=RecordedWindowsExchange(4, lambda sequence: [None]))
    with pytest.raises(ValueError, match=r"others\(.*\) returned 1 windows; expected 3"):
        detector.generate_report()


def test_of_a_hook_and_of_callables(detector):
    detector.initialize(probes=(CpuWallProbe(),), exchange=LocalExchange())
    with pytest.raises(ConfigError, match=r"set_decision_hook\(decide\) is 5; expected a function"):
        detector.set_decision_hook(5)
    detector.set_decision_hook(None)
    for wrong in (5, [5], None):
        with pytest.raises(ConfigError, match="time_callables takes "):
            StragglerPlugin().time_callables(wrong)


def test_of_the_callback_of_lightning():
    lightning = pytest.importorskip("adapters.lightning")
    for given in ({"enable_ptl_logging": "x"}, {"logger_name": 5}, {"log_path": ""}):
        with pytest.raises(ConfigError, match=next(iter(given))):
            lightning.StragglerDetectionCallback(**given)
