"""The table for people: lines for nodes and ranks, and what the job loses, in a job whose ranks are played."""

import pytest

from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import OWN_WORK_OF_AN_ITERATION, Family, Measured
from straggler.measurement.name_table import NameTable
from straggler.measurement.summary import summarise
from straggler.reporting.rank_lists import mostly, ranges
from straggler.reporting.report import Report
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings

SECONDS = 60.0


def last_report(rows, *, ranks, reports=4, per_node=8, missing=()):
    """The last of equal reports of 60 s. rows: (family, name, seconds of each rank in 60 s, is a wait)."""
    names, scorer = NameTable(), Scorer(ranks, DetectorSettings())
    for sequence in range(reports):
        payloads = []
        for rank in range(ranks):
            head = {"sequence": sequence, "rank": rank, "world_size": ranks, "elapsed": SECONDS}
            head["node"] = f"node-{rank // per_node}".encode()
            sent = [
                (names.add(name), Measured(family, name, summarise([seconds[rank] / 10] * 10), (0.0, 0.0), is_wait))
                for family, name, seconds, is_wait in rows
                if seconds[rank] is not None
            ]
            payloads.append(None if rank in missing else encode(head, sent))
        gathered = assemble(payloads, sequence)
        report = Report(
            scores=scorer.score(gathered),
            gathered=gathered,
            name_of=names.get,
            sequence=sequence,
            rank=0,
            report_seconds=[SECONDS] * (sequence + 1),
        )
    return report


def work(*factors, seconds=40.0):
    """Own work and a section of ranks that are slower by these factors."""
    own = [seconds * factor for factor in factors]
    return [(Family.OWN_WORK, OWN_WORK_OF_AN_ITERATION, own, False), (Family.SECTION, "forward", own, False)]


def waiting_line(report):
    return next((line.strip() for line in report.table().splitlines() if "the others wait" in line), "")


@pytest.mark.parametrize(
    ("ranks", "most", "said"),
    [
        ([], 9, ""),
        ([5], 9, "5"),
        ([16, 3, 2, 1, 0, 2], 9, "0-3, 16"),
        ([0, 2, 4, 6, 7, 8], 2, "0, 2 and 4 more"),
    ],
)
def test_ranks_are_listed_as_ranges_or_counted(ranks, most, said):
    assert ranges(ranks, most) == said


def test_most_of_a_node_is_more_than_half_and_more_than_one():
    node_of = dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b") | {8: "c", 9: ""}
    sizes = {"a": 4, "b": 4, "c": 1}
    assert mostly([0, 1, 2, 4, 5, 8, 9], node_of, sizes) == ["a"]


def test_a_slow_node_is_one_line_and_all_its_ranks_are_in_it():
    factors = [1.0] * 8 + [1.12, 1.13, 1.14, 1.15, 1.15, 1.15, 1.15, 1.12] + [1.0] * 16
    lines = last_report(work(*factors), ranks=32).table().splitlines()
    assert lines[0] == "straggler report 3: 8 slow of 32 ranks"
    assert lines[1] == (
        "  node node-1: 8 of its 8 ranks SLOW (8-15), 12 to 15 % slower in 'forward' for 240 s (since report 0)"
    )
    assert not any(line.startswith(("  rank", "  node")) for line in lines[2:])


def test_half_of_a_node_is_a_line_for_each_rank():
    factors = [1.3] * 4 + [1.0] * 28
    lines = last_report(work(*factors), ranks=32).table().splitlines()
    assert [line.split(":")[0] for line in lines if "SLOW," in line] == [
        f"  rank {rank} on node-0" for rank in (0, 1, 2, 3)
    ]
    assert "  node node-0: 4 of its 8 ranks are slow" in lines


def test_a_slow_node_does_not_hide_a_slow_rank_elsewhere():
    factors = [1.2] * 8 + [1.0] * 8 + [1.1] + [1.0] * 15
    lines = last_report(work(*factors), ranks=32).table(rows=1).splitlines()
    assert lines[1].startswith("  node node-0: 8 of its 8 ranks SLOW (0-7), 20 % slower")
    assert lines[2] == "  ... and 1 more slow ranks: 16"


def test_what_the_others_wait_for_a_rank_of_a_third_of_the_speed_is_two_thirds():
    """Of 60 s three ranks work 20 s and wait 40 s for the fourth."""
    report = last_report(work(1, 3, 1, 0.9, seconds=20.0), ranks=4)
    assert waiting_line(report) == ("the others wait for the last to arrive: 67 % of their time (median), 70 % at most")


def test_the_waits_of_kernels_count_where_the_thread_does_not_wait():
    """With NCCL the thread is busy all of the 60 s; the kernels of three ranks wait 40 s, and 1 s is the transfer."""
    rows = [
        (Family.OWN_WORK, OWN_WORK_OF_AN_ITERATION, [59.5, 60.0, 59.6, 59.5], False),
        (Family.KERNEL, "gemm", [19.0, 59.0, 19.0, 19.0], False),
        (Family.WAIT, "collective kernels", [41.0, 1.0, 41.0, 41.0], False),
    ]
    assert waiting_line(last_report(rows, ranks=4)) == (
        "the others wait for the last to arrive: at least 67 % of their time (median), 67 % at most"
    )


def test_where_only_a_section_tells_it_is_a_least_figure():
    rows = [(Family.SECTION, "reduce", [20.0, 1.0, 20.0, 20.0], True), *work(1, 2, 1, 1, seconds=20.0)[1:]]
    assert "at least 32 % of their time" in waiting_line(last_report(rows, ranks=4))


def test_nothing_is_said_of_waits_where_nothing_tells():
    report = last_report(work(1, 3, 1, 1, seconds=20.0)[1:], ranks=4)
    assert report.has_stragglers()
    assert waiting_line(report) == ""


def test_a_rank_that_does_not_answer_leaves_the_waits_of_the_others():
    report = last_report(work(1, 3, 1, 1, 1, seconds=20.0), ranks=5, missing={4})
    assert "67 % of their time (median)" in waiting_line(report)
    assert "UNKNOWN 1 ranks (4)" in report.table()
