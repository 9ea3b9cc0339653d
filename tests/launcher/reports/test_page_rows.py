"""Which ranks of a timeline share a row."""

from __future__ import annotations

import pytest

from launcher.reports.model import OUT_OF_SECTION, Rank, Report
from launcher.reports.page_colours import palette_of
from launcher.reports.page_rows import Row, folded
from tests.launcher.reports.page_stories import story


def rows_of(report: Report) -> list[Row]:
    return folded(report, palette_of(report))


def numbers(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.ranks[0].rank, row.ranks[-1].rank) for row in rows]


def alike(report: Report) -> Report:
    """Return the same with ranks that did the same but on other nodes."""
    spans = report.ranks[-1].spans
    return report._replace(ranks=tuple(rank._replace(spans=spans) for rank in report.ranks))


LARGE = [pytest.param(1024, incidents, marks=pytest.mark.long) for incidents in (1, 50)]


@pytest.mark.parametrize(("ranks", "incidents"), [(1, 0), (2, 1), (16, 3), (64, 1), (64, 50), *LARGE])
def test_every_rank_is_in_one_row_in_order(ranks: int, incidents: int) -> None:
    rows = rows_of(story(ranks, incidents))
    assert [rank.rank for row in rows for rank in row.ranks] == list(range(ranks))
    marked = {incident.number for row in rows for incident in row.incidents}
    named = {i.number for i in story(ranks, incidents).incidents if i.culprits or i.nodes_to_blame}
    assert marked == named
    assert sum(not row.incidents for row in rows) <= 40 + sum(bool(row.incidents) for row in rows) + 1


def test_a_culprit_stands_alone_between_bands() -> None:
    assert numbers(rows_of(alike(story(1024, 1)))) == [(0, 36), (37, 37), (38, 1023)]


def test_nodes_are_kept_apart_where_there_are_few() -> None:
    rows = rows_of(alike(story(64, 1)))
    assert numbers(rows)[:3] == [(0, 7), (8, 15), (16, 23)]
    assert all(len(row.nodes) == 1 for row in rows)


def test_a_rank_that_did_something_else_is_not_folded() -> None:
    report = alike(story(256, 0))
    other = [span._replace(kind=OUT_OF_SECTION, section=None, parts=()) for span in report.ranks[100].spans]
    ranks = [*report.ranks]
    ranks[100] = Rank(100, ranks[100].node, 4, tuple(other))
    assert numbers(rows_of(report._replace(ranks=tuple(ranks)))) == [(0, 99), (100, 100), (101, 255)]


def test_few_ranks_have_a_row_each() -> None:
    assert numbers(rows_of(alike(story(16, 1)))) == [(number, number) for number in range(16)]


def test_a_lost_node_is_one_row() -> None:
    report = alike(story(256, 1))
    node = report.nodes[4]
    incident = report.incidents[0]._replace(kind="lost", culprits=(), nodes_to_blame=(node.name,))
    rows = rows_of(report._replace(incidents=(incident,)))
    assert numbers(rows) == [(0, 31), (32, 39), (40, 255)]
    assert [len(row.incidents) for row in rows] == [0, 1, 0]


def test_ranks_that_all_differ_are_folded_all_the_same() -> None:
    report = story(512, 0)
    kinds = [OUT_OF_SECTION, "section"]
    ranks = tuple(
        rank._replace(
            spans=tuple(
                span._replace(kind=kinds[(rank.rank >> bit) & 1], section="data", parts=())
                for bit, span in enumerate(rank.spans)
            )
        )
        for rank in report.ranks
    )
    assert len(rows_of(report._replace(ranks=ranks))) <= 40
