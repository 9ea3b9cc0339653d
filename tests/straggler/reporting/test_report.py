"""Reports: scores, verdicts and the table, for a job whose other ranks are played."""

import numpy as np
import pytest

from straggler import Detector, RobustSettings, State, StragglerId
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import OWN_WORK_OF_AN_ITERATION, STATE_FIELDS, Family, Measured
from straggler.measurement.name_table import NameTable
from straggler.measurement.summary import summarise
from straggler.measurement.waits import WaitClock
from straggler.probes.nvml import NvmlProbe
from straggler.probes.own_work import OwnWorkProbe
from straggler.reporting.report import Report
from straggler.reporting.report_log import as_record
from straggler.reporting.row_names import RowNames
from straggler.scoring.scorer import Scorer
from straggler.settings import DEFAULT_THRESHOLD, DetectorSettings
from straggler.testing import FakeNvmlBackend, RecordedWindowsExchange


def steps(seconds, num):
    return seconds if isinstance(seconds, list) else [seconds] * num


class Played:
    """Reports of a job made by hand: each call is one window."""

    def __init__(self, ranks, **settings):
        self.ranks = ranks
        self.names = NameTable()
        self.scorer = Scorer(ranks, DetectorSettings(**settings))
        self.sequence = -1

    def report(
        self, sections=(), kernels=(), arrivals=(), own=(), missing=(), synchronous=(), devices=None, groups=None, num=5
    ):
        """Sections, kernels, arrivals and own work: {name: [seconds of each rank, a list of its steps, or None]}."""
        self.sequence += 1
        payloads = []
        tables = ((Family.SECTION, sections), (Family.KERNEL, kernels), (Family.ARRIVAL, arrivals))
        tables += ((Family.OWN_WORK, own),)
        for rank in range(self.ranks):
            rows = [
                (
                    self.names.add(name),
                    Measured(family, name, summarise(steps(seconds[rank], num)), (0.0, 0.0), name in synchronous),
                )
                for family, table in tables
                for name, seconds in dict(table).items()
                if seconds[rank] is not None
            ]
            head = {
                "sequence": self.sequence,
                "rank": rank,
                "world_size": self.ranks,
                "elapsed": 60.0,
                "node": b"node-%d" % (rank // 2),
                "device": np.full(len(STATE_FIELDS), np.nan) if devices is None else devices[rank],
                "peer_group": 0 if groups is None else groups[rank],
            }
            payloads.append(None if rank in missing else encode(head, rows))
        gathered = assemble(payloads, self.sequence)
        return Report(
            scores=self.scorer.score(gathered),
            gathered=gathered,
            name_of=self.names.get,
            sequence=self.sequence,
            rank=0,
            report_seconds=[60.0] * (self.sequence + 1),
        )

    def reports(self, count, *args, **kwargs):
        return [self.report(*args, **kwargs) for _ in range(count)][-1]


def ranks_of(stragglers):
    return {straggler.rank for straggler in stragglers}


def test_a_slow_rank_is_told_with_how_much_since_when_and_how_sure():
    job = Played(4)
    job.reports(2, {"fwd": [1, 1, 1, 1]})
    report = job.reports(3, {"fwd": [1, 1.3, 1, 1]})
    (verdict,) = report.verdicts()
    assert (verdict.rank, verdict.node, verdict.state, verdict.section) == (1, "node-0", State.SLOW, "fwd")
    assert verdict.slowdown == pytest.approx(0.3)
    assert verdict.since_report == 2
    assert verdict.since_seconds == pytest.approx(180.0)
    assert 0.9 < verdict.confidence <= 1.0
    assert "rank 1 on node-0: SLOW, 30.0 % slower in 'fwd' for 180 s" in report.table()
    assert report.identify_stragglers()["straggler_sections_relative"] == {"fwd": {StragglerId(1, "node-0")}}


def test_when_nothing_is_wrong_it_says_nothing():
    report = Played(4).reports(5, {"fwd": [1, 1.01, 0.99, 1]})
    assert report.table() == ""
    assert report.verdicts() == []
    assert report.verdict(2).state is State.OK


def test_the_shape_of_the_scores():
    report = Played(2).report({"fwd": [1, 2]}, {"k": [1, 4]})
    assert report.section_relative_perf_scores == {"fwd": {0: 1.0, 1: 0.5}}
    assert report.section_individual_perf_scores == {"fwd": {0: 1.0, 1: 1.0}}
    assert report.gpu_relative_perf_scores == {0: 1.0, 1: 0.25}
    assert report.rank_to_node == {0: "node-0", 1: "node-0"}


def test_a_slow_gpu_is_named_among_gpus_and_not_among_sections():
    report = Played(4).reports(3, {"fwd": [1, 1, 1, 1]}, {"k": [1, 1, 1, 1.4], "j": [1, 1, 1, 1.4]})
    stragglers = report.identify_stragglers()
    assert ranks_of(stragglers["straggler_gpus_relative"]) == {3}
    assert stragglers["straggler_sections_relative"] == {}
    assert report.verdict(3).section == "gpu"


def test_who_waits_is_not_blamed_and_who_arrives_last_is_named():
    """Three ranks wait 0.2 s in the collective for rank 2, whose work before it takes 0.2 s longer."""
    report = Played(4).reports(
        3,
        {"all_reduce": [0.3, 0.3, 0.1, 0.3]},
        arrivals={"all_reduce": [1.0, 1.0, 1.2, 1.0]},
        synchronous={"all_reduce"},
    )
    assert [v.rank for v in report.stragglers()] == [2]
    assert report.stragglers()[0].section == "before all_reduce"
    assert "all_reduce" not in report.section_relative_perf_scores
    assert "the others wait" in report.table()


def test_of_two_ranks_that_might_each_wait_for_the_other_neither_is_named():
    report = Played(2).reports(4, {"compute": [1.2, 1.0], "reduce": [0.1, 0.3]})
    assert report.stragglers() == []
    assert {v.state for v in report.verdicts()} == {State.UNKNOWN}
    assert 'mark the collective with detection_section(name, kind="wait")' in report.table()
    assert report.identify_stragglers()["straggler_sections_relative"] == {}


def test_of_two_ranks_one_slow_in_one_place_is_named():
    report = Played(2).reports(3, {"compute": [1.2, 1.0], "other": [0.3, 0.3]})
    assert [v.rank for v in report.stragglers()] == [0]


ITERATION = OWN_WORK_OF_AN_ITERATION


def test_a_rank_is_named_where_only_its_iterations_are_known():
    played = Played(4)
    for _ in range(3):
        report = played.report(sections={"step": [12.0] * 4}, synchronous={"step"}, own={ITERATION: [5, 5, 5, 10]})
    (verdict,) = report.stragglers()
    assert (verdict.rank, verdict.section) == (3, "own work of each iteration")
    assert report.scores.waited.tolist() == pytest.approx([25 / 60, 25 / 60, 25 / 60, 0.0])


def test_a_section_that_explains_the_iteration_is_named_instead_of_it():
    played = Played(4)
    for _ in range(3):
        report = played.report(sections={"forward": [3, 3, 3, 8]}, own={ITERATION: [5, 5, 5, 10.2]})
    (verdict,) = report.stragglers()
    assert (verdict.rank, verdict.section) == (3, "forward")
    for _ in range(3):  # a second section explains a small part of what is lost now
        report = played.report(sections={"forward": [3, 3, 3, 3.5]}, own={ITERATION: [5, 5, 5, 10]})
    assert report.verdict(3).section == "own work of each iteration"


def test_what_a_rank_gains_elsewhere_is_no_loss():
    played = Played(4)
    for _ in range(4):
        report = played.report(
            sections={"log": [1, 1, 1, 3], "compute": [4, 4, 4, 2.1]}, own={ITERATION: [5, 5, 5, 5.02]}
        )
    assert report.stragglers() == []
    assert report.lost_share(3) == 0.0


def test_a_short_gap_before_a_collective_is_no_reason_where_iterations_are_known():
    played = Played(4)
    given = {"arrivals": {"sync": [0.1, 0.1, 0.1, 0.3]}, "sections": {"sync": [1.0] * 4}, "synchronous": {"sync"}}
    for _ in range(4):
        report = played.report(**given, own={ITERATION: [5, 5, 5, 5.1]})
    assert report.stragglers() == []
    for _ in range(4):
        report = played.report(**given, own={ITERATION: [5, 5, 5, 10]})
    assert [verdict.section for verdict in report.stragglers()] == ["own work of each iteration"]


def test_of_two_ranks_the_one_that_waits_by_its_own_work_is_not_blamed_for_a_wait_that_was_not_recognised():
    played = Played(2)
    for _ in range(3):
        report = played.report(sections={"compute": [1, 2], "sync": [3, 1]}, own={ITERATION: [4, 6]})
    assert [verdict.rank for verdict in report.stragglers()] == [1]
    assert {i.rank for ids in report.identify_stragglers()["straggler_sections_relative"].values() for i in ids} == {1}


def test_collectives_whose_waits_are_not_seen_are_said():
    exchange = RecordedWindowsExchange(2, lambda sequence: [None])
    probe = OwnWorkProbe(WaitClock(), iter(range(0, 100, 7)).__next__)
    detector = Detector()
    detector.initialize(exchange=exchange, probes=[probe])
    for _ in range(4):
        probe.tick()
    report = detector.generate_report()
    detector.shutdown()
    assert any("collectives were made where no wait for them is seen" in note for note in report.notes)


def test_a_missing_rank_is_unknown_with_the_coverage_and_the_others_are_judged():
    job = Played(4)
    report = job.reports(3, {"fwd": [1, 1.3, 1, 1]}, missing=[3])
    assert report.coverage == 0.75
    assert report.missing_ranks == [3]
    assert report.verdict(3).state is State.UNKNOWN
    assert "no answer" in report.verdict(3).because
    assert [v.rank for v in report.stragglers()] == [1]
    assert "coverage 75.0 %" in report.table()


def test_one_rank_only_is_judged_by_its_own_past():
    job = Played(1)
    healthy = job.reports(12, {"fwd": [1.0]})
    assert healthy.verdict(0).state is State.UNKNOWN
    assert "one rank only" in healthy.verdict(0).because
    report = job.reports(3, {"fwd": [1.5]})
    assert report.verdict(0).state is State.SLOW
    assert [found.rank for found in report.stragglers()] == [0]
    assert report.section_relative_perf_scores == {}
    assert report.section_individual_perf_scores["fwd"][0] == pytest.approx(1 / 1.5, rel=0.01)
    assert ranks_of(report.identify_stragglers()["straggler_sections_individual"]["fwd"]) == {0}


def test_an_empty_window_is_unknown():
    report = Played(2).reports(3)
    assert [v.state for v in report.verdicts()] == [State.UNKNOWN] * 2
    assert report.gpu_relative_perf_scores == {}
    assert report.identify_stragglers() == {
        "straggler_gpus_relative": set(),
        "straggler_gpus_individual": set(),
        "straggler_sections_relative": {},
        "straggler_sections_individual": {},
    }


def test_the_whole_job_slowing_down_is_the_jobs_matter():
    job = Played(4)
    job.reports(10, {"fwd": [1, 1, 1, 1]})
    tables = [job.report({"fwd": [1.5, 1.5, 1.5, 1.5]}).table() for _ in range(4)]
    assert any("most ranks became slower together in 'fwd'" in table for table in tables)
    assert not any("SLOW" in table for table in tables)


def test_what_all_ranks_share_is_no_change_of_one():
    """Steps as long as their data: each rank's own time changes, and the verdict and the lists of names agree."""
    job = Played(8)
    job.reports(12, {"fwd": [1.0] * 8})
    for number in range(12):
        shared = 1.12 if number % 8 else 1.0
        report = job.report({"fwd": [shared * (1.0 + 0.02 * (rank < 3)) for rank in range(8)]})
        assert report.stragglers() == []
        found = report.identify_stragglers()
        assert found["straggler_sections_relative"] == found["straggler_sections_individual"] == {}


def test_a_rank_whose_peers_have_no_timings_is_told_apart_from_one_that_has_none():
    report = Played(3).reports(3, {"step": [1, None, None]})
    assert "no other rank of its peer group has timings of the same" in report.verdict(0).because
    assert report.verdict(1).because == "no timings in this window"


def test_too_few_samples_are_the_reason_where_the_peers_have_timings_too():
    report = Played(3).reports(3, {"step": [1, 1, 1.5]}, num=2)
    assert {verdict.because for verdict in report.verdicts()} == {
        "too few samples in this window: give a longer report_time_interval, or a smaller min_samples"
    }
    alone = Played(3).reports(3, {"step": [1, 1, 1.5]}, groups=[0, 1, 2])
    assert "no other rank of its peer group" in alone.verdict(0).because


def test_a_rank_that_is_slow_in_an_evaluation_is_slow():
    """The own work of iterations holds no evaluation, and is the same on all ranks."""
    played = Played(4)
    for _ in range(3):
        report = played.report(
            sections={"forward": [5] * 4, "forward (evaluation)": [4, 4, 4, 6.4], "save": [4, 4, 4, 6.4]},
            own={ITERATION: [5.0] * 4},
        )
    assert [(v.rank, v.section) for v in report.stragglers()] == [(3, "forward (evaluation)")]
    assert list(report.identify_stragglers()["straggler_sections_relative"]) == ["forward (evaluation)"]


@pytest.mark.parametrize(
    ("own", "is_some"),
    [([1.0] * 4 + [2.5] * 2, True), ([1.4] * 4 + [2.5] * 2, False), ([1.5] * 6, False)],
    ids=["some steps", "all, and some much", "all alike"],
)
def test_only_where_the_median_shows_it_some_steps_are_said_to_be_long(own, is_some):
    report = Played(4).reports(12, {"fwd": [1.0, 1.0, 1.0, own]})
    (verdict,) = report.stragglers()
    assert verdict.rank == 3
    assert ("some of its steps take much longer, and most do not" in verdict.because) == is_some


def test_the_log_shows_no_rank_as_slow_for_microseconds():
    took = {"step": [1, 1, 1, 1.5], "log": [1e-4, 5e-4, 1e-4, 1e-4]}
    report = Played(4).reports(3, took)
    assert as_record(report)["ranks"] == [1000, 1000, 1000, 1500]


def test_an_immaterial_section_does_not_make_a_rank_slow():
    report = Played(4).reports(3, {"step": [1, 1, 1, 1], "log": [1e-4, 1e-4, 1e-4, 2e-4]})
    assert report.stragglers() == []
    assert report.table() == ""
    assert report.identify_stragglers()["straggler_sections_relative"] == {}
    assert ranks_of(report.identify_stragglers(section_rel_threshold=0.9)["straggler_sections_relative"]["log"]) == {3}


def test_of_a_slow_rank_the_lists_and_the_table_have_what_matters():
    took = {"step": [1, 1, 1, 1.5], "log": [1e-4, 2e-4, 1e-4, 2e-4]}
    report = Played(4).reports(3, took)
    found = report.identify_stragglers()["straggler_sections_relative"]
    assert [verdict.rank for verdict in report.stragglers()] == [3]
    assert {name: ranks_of(ids) for name, ids in found.items()} == {"step": {3}}
    assert "section 'step': SLOW on 1 ranks" in report.table()
    assert "'log'" not in report.table()


def test_a_report_of_one_rank_is_about_that_rank():
    report = Played(4).reports(3, {"step": [1, 1, 1, 1.5]})
    assert "1 slow of 4 ranks" in report.table()
    assert report.section_relative_perf_scores["step"].keys() == {0, 1, 2, 3}
    alone, slow = report.of_rank(0), report.of_rank(3)
    assert alone.section_relative_perf_scores["step"].keys() == {0}
    assert (alone.stragglers(), alone.table()) == ([], "")
    assert [verdict.rank for verdict in slow.stragglers()] == [3]
    assert slow.table().startswith("straggler report 2 of rank 3 alone, of 4 ranks")


def test_a_line_that_rank_0_logs_between_two_steps_is_no_reason_to_blame_it():
    """One short arrival row, five times as long on rank 0, beside steps of 100 ms."""
    report = Played(4).reports(
        4, {"step": [0.1] * 4}, arrivals={"step": [1e-3, 2e-4, 2e-4, 2e-4]}, synchronous={"step"}
    )
    assert report.identify_stragglers()["straggler_sections_relative"] == {}
    found = report.identify_stragglers(section_rel_threshold=0.9)["straggler_sections_relative"]
    assert ranks_of(found["before step"]) == {0}
    assert report.stragglers() == []
    assert report.lost_share(0) < 0.01


def test_a_bogus_clock_is_unknown_and_says_so():
    report = Played(4).reports(3, {"fwd": [1, 1, 0.5, 1]})
    assert report.verdict(2).state is State.UNKNOWN
    assert "implausibly fast" in report.verdict(2).because
    assert report.stragglers() == []


def test_peer_groups_are_compared_within():
    groups = [7, 7, 7, 9, 9, 9]
    report = Played(6).reports(3, {"fwd": [1, 1, 1, 5, 5, 6.5]}, groups=groups)
    assert [v.rank for v in report.stragglers()] == [5]


def test_the_device_says_why():
    usual = [1980.0, 1980.0, 0.0, 50.0, 0.0, 16.0, 16.0, 400.0, 0.0, 0.0, 0.0]
    capped = [1200.0, 1980.0, float(0x4), 50.0, 0.0, 8.0, 16.0, 400.0, 0.0, 0.0, 0.0]
    report = Played(4).reports(3, {"fwd": [1, 1, 1, 1.5]}, devices=[usual, usual, usual, capped])
    assert report.verdict(3).because == "power cap (software), SM clock 1200 MHz, peers 1980, PCIe x8 of x16"


def test_what_every_device_shows_is_no_reason():
    capped = [1200.0, 1980.0, float(0x4), 50.0, 0.0, 16.0, 16.0, 400.0, 0.0, 0.0, 0.0]
    report = Played(4).reports(3, {"fwd": [1, 1, 1, 1.5]}, devices=[capped] * 4)
    assert report.verdict(3).because == ""


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", None, True])
@pytest.mark.parametrize(
    "name", ["gpu_rel_threshold", "section_rel_threshold", "gpu_indiv_threshold", "section_indiv_threshold"]
)
def test_a_threshold_outside_0_to_1_is_an_error_that_names_it(name, value):
    with pytest.raises(ValueError, match=name):
        Played(2).report({"fwd": [1, 1]}).identify_stragglers(**{name: value})


def test_an_explicit_threshold_replaces_the_floor_even_at_the_defaults_value():
    report = Played(4).reports(3, {"fwd": [1, 1, 1, 1.2]})
    assert DEFAULT_THRESHOLD == 0.75
    assert report.identify_stragglers()["straggler_sections_relative"] != {}
    assert report.identify_stragglers(section_rel_threshold=0.75)["straggler_sections_relative"] == {}
    assert report.identify_stragglers(section_rel_threshold=0.9)["straggler_sections_relative"] != {}


def test_settings_reach_the_scorer():
    loose = Played(4, settings=RobustSettings(ratio_floor=0.5, change_floor=9.0))
    assert loose.reports(5, {"fwd": [1, 1, 1, 1.3]}).stragglers() == []


def test_minimum_scoring_names_by_threshold_alone_and_gives_no_verdict():
    report = Played(4, scoring="minimum").report({"fwd": [1, 1, 1, 2]})
    assert ranks_of(report.identify_stragglers()["straggler_sections_relative"]["fwd"]) == {3}
    assert report.table() == ""
    assert "scores only" in report.verdict(0).because


def test_a_rank_outside_the_job_is_an_error():
    with pytest.raises(ValueError, match=r"rank is 2; expected a whole number from 0 to 1"):
        Played(2).report({"fwd": [1, 1]}).verdict(2)


def test_a_name_that_rank_0_does_not_know_has_a_stand_in():
    job = Played(2)
    report = job.report({"fwd": [1, 2]})
    report._row_name = RowNames(NameTable().get)
    assert all(name.startswith("unnamed-") for name in report.section_relative_perf_scores)


def test_the_nvml_probe_tells_this_ranks_device():
    backend = FakeNvmlBackend(sm_clock_mhz=1500.0, ecc_uncorrected=7.0)
    probe = NvmlProbe(backend)
    probe.start()
    backend.state["ecc_uncorrected"] = 9.0
    state = dict(zip(STATE_FIELDS, probe.collect().device.tolist(), strict=True))
    assert state["sm_clock_mhz"] == 1500.0
    assert state["ecc_uncorrected"] == 2.0
    assert np.isnan(state["temperature_c"])
    probe.stop()
    assert backend.closed


def test_recorded_ranks_can_be_played_to_a_detector():
    detector = Detector()
    detector.initialize(probes=[], exchange=RecordedWindowsExchange(3, lambda sequence: [None, b"noise"]))
    report = detector.generate_report()
    assert report.coverage == pytest.approx(1 / 3)
    assert "at least" in report.verdict(2).because
    detector.shutdown()
