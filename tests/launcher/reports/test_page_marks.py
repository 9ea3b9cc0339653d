"""Where the labels of incidents stand."""

from __future__ import annotations

import itertools

import pytest

from launcher.reports.page_marks import lanes_of
from launcher.reports.page_rows import Row
from tests.launcher.reports.page_stories import story


@pytest.mark.parametrize("count", [1, 4, 5, 20, 50])
def test_labels_of_a_row_do_not_overlap_and_stay_inside(count: int) -> None:
    report = story(2, count)
    labels = lanes_of(Row(report.ranks[:1], report.incidents), report.seconds, 964)
    assert [label.incident for label in labels] == list(report.incidents)
    shown = [label for label in labels if label.text]
    assert len(shown) >= min(count, 15)
    for one, other in itertools.combinations(shown, 2):
        is_apart = one.start + one.width < other.start or other.start + other.width < one.start
        assert one.lane != other.lane or is_apart, (one.text, other.text)
    assert all(label.start >= 0 and label.start + label.width <= 964 for label in shown)
    assert all(label.start <= label.x <= label.start + label.width for label in shown)


def test_labels_leave_out_who_where_a_row_has_many() -> None:
    report = story(2, 3)
    (first, *_) = lanes_of(Row(report.ranks[:1], report.incidents), report.seconds, 964)
    assert first.text == "#1 rank 1 node-a: hang in backward"
    many = story(2, 20)
    (first, *_) = lanes_of(Row(many.ranks[:1], many.incidents), many.seconds, 964)
    assert first.text == "#1 hang in backward"


def test_an_incident_that_another_row_names_has_its_number_alone() -> None:
    report = story(64, 3)
    labels = lanes_of(Row(report.ranks[:1], report.incidents[2:]), report.seconds, 964, named={3})
    assert [(label.text, label.is_first) for label in labels] == [("#3", False)]
