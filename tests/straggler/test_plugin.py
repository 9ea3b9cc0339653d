"""The bus plugin: when it reports, what it says, and when it stops."""

import json
import logging
import math
import time

import pytest

from resilience_core import ConfigError, EventBus, RunContext, StopTraining
from straggler import STRAGGLER_EXIT_CODE, CallableId, RobustSettings, Statistic, StragglerPlugin
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.reporting.stop_decision import StopDecision
from straggler.testing import RecordedWindowsExchange


def others(slow_seconds, ranks=4, until=math.inf):
    """Windows of ranks 1 and up: one section ``fwd`` of a second, and the last rank's of ``slow_seconds``.

    Args:
        until: From this report on the last rank is as fast as the others.
    """

    def windows(sequence):
        made = []
        for rank in range(1, ranks):
            seconds = slow_seconds if rank == ranks - 1 and sequence < until else 1.0
            row = Measured(Family.SECTION, "fwd", summarise([seconds] * 5))
            head = {"sequence": sequence, "rank": rank, "world_size": ranks, "elapsed": 1.0, "node": b"node-%d" % rank}
            made.append(encode(head, [(hash_name("fwd"), row)]))
        return made

    return windows


def plugin(slow_seconds=1.0, until=math.inf, **changes):
    exchange = RecordedWindowsExchange(4, others(slow_seconds, until=until), ["fwd"])
    arguments = {"report_time_interval": 1e-9, "exchange": exchange, "probes": [], **changes}
    return StragglerPlugin(**arguments)


def train(made, reports):
    """Train until so many reports are told, and what rank 0 proposed on them is settled."""
    bus, told, end = EventBus(), [], time.monotonic() + 60.0
    bus.register(made)
    tell = made._tell
    made._tell = lambda report: (told.append(report), tell(report))
    bus.setup(context=RunContext(rank=0, world_size=4))
    iteration = 0
    try:
        while len(told) < reports or made.detector._measuring.reports._agreement.is_open:
            assert time.monotonic() < end
            bus.step_start(iteration=iteration)
            bus.step_end(iteration=iteration)
            iteration += 1
    finally:
        bus.teardown(reason="completed")
    return told


def test_a_persistent_straggler_ends_training_after_a_checkpoint_with_an_exit_code_of_its_own():
    saved = []
    made = plugin(1.5, stop_if_detected=True, save_checkpoint=lambda: saved.append(1))
    with pytest.raises(StopTraining, match=r"rank 3 on node-3: SLOW, 50.0 % slower in 'fwd'") as stopped:
        train(made, 5)
    assert stopped.value.exit_code == STRAGGLER_EXIT_CODE == 79
    assert saved == [1]


def test_two_reports_are_not_persistent():
    assert len(train(plugin(1.5, until=2, stop_if_detected=True), 6)) >= 6


def test_a_healthy_job_trains_on_and_nothing_is_said(caplog):
    with caplog.at_level(logging.INFO, logger="straggler"):
        train(plugin(1.0, stop_if_detected=True), 5)
    said = [message for message in caplog.messages if "slow" in message and "UNKNOWN" not in message]
    assert said == []


def test_a_straggler_is_told_and_training_goes_on_without_stop_if_detected(caplog):
    reports = len(train(plugin(1.5, logger_name="mine"), 5))
    told = [record for record in caplog.records if record.name == "mine" and "rank 3 on node-3: SLOW" in record.message]
    assert len(told) == reports - 2  # from the third report on


def test_what_stays_unknown_is_said_once(caplog):
    train(plugin(1.0), 5)
    unknown = [message for message in caplog.messages if "UNKNOWN" in message]
    assert len(unknown) == 1


def test_best_and_worst_scores_are_logged_on_request(caplog):
    with caplog.at_level(logging.INFO, logger="straggler"):
        train(plugin(2.0, num_gpu_perf_scores_to_log=1), 1)
    assert "'fwd' relative perf scores: worst 3: 0.500; best 2: 1.000" in caplog.text


@pytest.mark.parametrize("given", ["section_relative_perf_threshold", "gpu_relative_perf_threshold"])
def test_a_threshold_decides_what_training_is_stopped_for(given):
    """Of the GPU's, too: who asked for a slow GPU had training stopped for a section that was 7 % slower."""
    train(plugin(1.5, stop_if_detected=True, **{given: 0.5}), 5)
    with pytest.raises(StopTraining):
        train(plugin(2.5, stop_if_detected=True, **{given: 0.5}), 5)


def test_a_threshold_of_sections_goes_before_that_of_the_gpu():
    given = {"section_relative_perf_threshold": 0.8, "gpu_relative_perf_threshold": 0.5}
    with pytest.raises(StopTraining):
        train(plugin(1.5, stop_if_detected=True, **given), 5)


@pytest.mark.parametrize(("place", "told"), [(None, "; the state was saved"), ("/ckpt/7", "saved as /ckpt/7")])
def test_the_reason_says_where_the_state_was_saved(place, told):
    with pytest.raises(StopTraining) as stopped:
        train(plugin(1.5, stop_if_detected=True, save_checkpoint=lambda: place), 5)
    assert str(stopped.value).endswith(told)


def test_minimum_scoring_has_to_persist_for_three_reports():
    kwargs = {"stop_if_detected": True, "scoring": "minimum"}
    train(plugin(2.0, until=2, **kwargs), 4)
    with pytest.raises(StopTraining):
        train(plugin(2.0, **kwargs), 4)


def test_the_slow_rank_asks_its_launcher_to_leave_the_node_out(monkeypatch):
    asked = []
    monkeypatch.setenv("FT_CONTROL_SOCKET", "somewhere")
    monkeypatch.setattr("straggler.plugin.send", lambda request, path, rank: asked.append((request.action.value, rank)))
    made = plugin(1.5, stop_if_detected=True, exclude_node=True)
    with pytest.raises(StopTraining):
        train(made, 5)
    assert asked == []  # rank 0 is healthy: it is rank 3 that asks
    made._context = RunContext(rank=3, world_size=4)
    made.detector = type(
        "Told", (), {"world_size": 4, "last_decision": lambda self: {"stop": "rank 3", "ranks": [3]}}
    )()
    with pytest.raises(StopTraining):
        made._stop_if_decided()
    assert asked == [("ExcludeThisNode", 3)]


@pytest.mark.parametrize(
    "decision",
    [
        {"stop": 7, "ranks": [3]},
        {"stop": "rank 3"},
        {"stop": "rank 3", "ranks": []},
        {"stop": "rank 3", "ranks": ["3"]},
        {"stop": "rank 3", "ranks": [4]},
        {"stop": "rank 3", "ranks": [True]},
    ],
)
def test_a_decision_that_cannot_be_read_stops_no_rank_and_is_said(decision, caplog):
    made = plugin(stop_if_detected=True)
    made._context = RunContext(rank=3, world_size=4)
    made.detector = type("Told", (), {"world_size": 4, "last_decision": lambda self: decision})()
    made._stop_if_decided()
    assert "rank 0 sent a decision whose" in caplog.text
    assert "this rank does not stop" in caplog.text


def test_a_decision_comes_back_as_it_was_sent():
    decision = StopDecision("rank 3 on node-3: SLOW", (3,))
    assert StopDecision.from_json(json.loads(json.dumps(decision.as_json())), 4) == decision
    assert StopDecision.from_json({"a hook of the user's": 1}, 4) is None


def test_the_constructor_of_a_subclass_is_run():
    class Louder(StragglerPlugin):
        def __init__(self, *, loudness, **settings):
            super().__init__(**settings)
            self.loudness = loudness

    assert Louder(loudness=11, stop_if_detected=True).loudness == 11
    assert not hasattr(StragglerPlugin, "from_settings")


def test_reports_reach_a_frameworks_loggers():
    reports = []
    told = train(plugin(1.5, on_report=reports.append), 2)
    assert [report.sequence for report in reports] == list(range(len(told)))


def test_a_second_run_begins_anew():
    made = plugin(1.0)
    train(made, 2)
    bus = EventBus()
    bus.register(made)
    assert not made.detector.initialized
    bus.setup(context=RunContext(world_size=4))
    assert made.detector.initialized
    bus.training_error(error=RuntimeError(), iteration=0)
    assert not made.detector.initialized


def test_it_measures_steps_and_callables_by_itself():
    class Model:
        def forward(self):
            return 1

    model, reports = Model(), []
    made = StragglerPlugin(report_time_interval=1e-9, on_report=reports.append)
    made.time_callables([CallableId(model, "forward")])
    bus = EventBus()
    bus.register(made)
    bus.setup(context=RunContext())
    for iteration in range(2):
        bus.step_start(iteration=iteration)
        model.forward()
        bus.step_end(iteration=iteration)
    bus.teardown(reason="completed")
    names = {name.rpartition(".")[2] for report in reports for name in report.local_section_summaries}
    assert names == {"training step", "forward"}
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False}, "nothing would be computed"),
        ({"gpu_relative_perf_threshold": 1.5}, "gpu_relative_perf_threshold is 1.5"),
        ({"gpu_individual_perf_threshold": float("nan")}, "gpu_individual_perf_threshold is nan"),
        ({"num_gpu_perf_scores_to_log": -1}, "num_gpu_perf_scores_to_log"),
        ({"report_time_interval": 0.0}, "report_time_interval"),
        ({"exclude_node": True}, "stop_if_detected"),
        ({"scorng": "minimum"}, "did you mean 'scoring'"),
        ({"num_gpu_perf_scores_to_log": 1.5}, "num_gpu_perf_scores_to_log is 1.5; expected a whole number from 0"),
        ({"stop_if_detected": "no"}, "stop_if_detected is 'no'; expected True or False"),
        ({"exclude_node": "no", "stop_if_detected": True}, "exclude_node is 'no'; expected True or False"),
        ({"calc_relative_gpu_perf": "no"}, "calc_relative_gpu_perf is 'no'; expected True or False"),
    ],
)
def test_an_invalid_combination_is_refused_when_it_is_made(setting, said):
    with pytest.raises(ValueError, match=said) as refused:
        StragglerPlugin(**setting)
    assert isinstance(refused.value, ConfigError)


def test_settings_go_through():
    made = plugin(1.5, stop_if_detected=True, settings=RobustSettings(ratio_floor=0.9, change_floor=50.0))
    train(made, 5)


def test_a_decision_is_held_against_the_ranks_that_are_compared_and_not_against_the_environment():
    made = plugin(stop_if_detected=True)
    made._context = RunContext(rank=3, world_size=1)  # WORLD_SIZE is not set under srun or mpirun
    decision = {"stop": "rank 3", "ranks": [3]}
    made.detector = type("Told", (), {"world_size": 4, "last_decision": lambda self: decision})()
    with pytest.raises(StopTraining):
        made._stop_if_decided()


def test_an_evaluation_lasts_from_its_first_step_to_the_next_training_step():
    made, bus = StragglerPlugin(report_time_interval=1000.0), EventBus()
    bus.register(made)
    bus.setup(context=RunContext(world_size=2))

    def forward():
        with made.detector.detection_section("forward"):
            pass

    for iteration in range(3):
        bus.step_start(iteration=iteration)
        forward()
        bus.step_end(iteration=iteration)
        for index in range(2):
            bus.eval_step_start(iteration=iteration, eval_index=index)
            forward()
            bus.eval_step_end(iteration=iteration, eval_index=index)
            forward()  # between two of its batches
    assert not made._step.arrivals, "the time of an evaluation is nobody's own work before the step"
    found = made.detector.generate_report().local_section_summaries
    assert {name: found[name][Statistic.NUM] for name in found if name != "training step"} == {
        "forward": 3,
        "forward (evaluation)": 12,
    }
    bus.eval_step_start(iteration=3, eval_index=0)
    bus.teardown(reason="completed")
    assert not made.detector.initialized


def test_the_time_of_a_checkpoint_is_not_own_work_before_the_step():
    made, bus = StragglerPlugin(report_time_interval=1000.0), EventBus()
    bus.register(made)
    bus.setup(context=RunContext(world_size=2))
    for iteration in range(4):
        bus.step_start(iteration=iteration)
        bus.step_end(iteration=iteration)
        if iteration == 1:
            bus.checkpoint_start(iteration=iteration, kind="save")
            bus.checkpoint_end(iteration=iteration, kind="save", error=None)
    assert len(made._step.arrivals) == 2
    bus.teardown(reason="completed")
