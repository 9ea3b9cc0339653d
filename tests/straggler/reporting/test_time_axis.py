"""The axis of time of the pictures."""

import pytest

from straggler.reporting.time_axis import TimeAxis, duration, moment

START = 1_700_000_000.0  # 22:13:20 UTC


def test_reports_share_columns_where_there_are_too_many():
    axis = TimeAxis.of([START + 60 * n for n in range(10)], most=4)
    assert axis.column_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert axis.starts().tolist() == [0, 3, 6, 9]


def test_reports_on_both_sides_of_a_gap_share_no_column():
    axis = TimeAxis.of([START + at for at in (0, 60, 120, 4000, 4060)], most=2)
    assert axis.column_of.tolist() == [0, 0, 0, 2, 2]
    assert axis.gaps == [(1, 1, 3880.0)]


@pytest.mark.parametrize(
    ("step", "count", "labels"),
    [
        (60, 31, ["Nov 14 22:13", "22:15", "22:20", "22:25", "22:30", "22:35", "22:40"]),
        (1, 16, ["Nov 14 22:13:20", "22:13:22", "22:13:24", "22:13:26", "22:13:28", "22:13:30"]),
        (600, 30, ["Nov 14 22:13", "Nov 15 00:00", "01:00", "02:00", "03:00"]),
    ],
)
def test_ticks_are_times_of_day(step, count, labels):
    ticks = TimeAxis.of([START + step * n for n in range(count)]).ticks()
    found = [text for _, text in ticks]
    assert [label for label in labels if label not in found] == []
    assert len(found) <= 10


def test_a_job_without_a_clock_has_the_time_since_its_beginning():
    assert [text for _, text in TimeAxis.of([60.0 * n for n in range(5)]).ticks()] == [
        "0 s",
        "1 min",
        "2 min",
        "3 min",
        "4 min",
    ]


def test_one_report_has_one_tick():
    assert TimeAxis.of([START]).ticks() == [(0.5, "Nov 14 22:13:20")]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.25, "0.2 s"), (59, "59 s"), (60, "1 min"), (3661, "1 h 1 min"), (90000, "1 d 1 h")],
)
def test_a_time_span_has_two_units_at_most(seconds, said):
    assert duration(seconds) == said


def test_a_moment_is_told_in_utc():
    assert moment(START) == "Nov 14 22:13:20"
