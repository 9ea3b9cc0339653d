"""The areas of colour of a timeline, and its axis."""

from __future__ import annotations

import itertools

import pytest

from launcher.reports.formats import axis_time
from launcher.reports.model import DOWN, OUT_OF_SECTION, SECTION, Part, Rank, Span
from launcher.reports.page_axis import spread, ticks
from launcher.reports.page_bands import Run, coarser, paths, runs_of
from launcher.reports.page_colours import palette_of
from tests.launcher.reports.page_stories import story


def span(start: float, end: float, kind: str = SECTION, section: str | None = "step", *parts: Part) -> Span:
    return Span(start, end, kind, section, 0, None, parts)


def rank(number: int, *spans: Span) -> Rank:
    return Rank(number, "node-a", number, spans)


def test_one_rank_is_shown_as_it_was() -> None:
    one = rank(0, span(0, 25), span(25, 25.5, DOWN, None), span(25.5, 100))
    palette = palette_of(story(2, 0)._replace(ranks=(one,)))
    step, down = palette.by_section["step"], palette.by_kind[DOWN]
    assert runs_of([one], palette, 100.0, 1000, 20) == [
        Run(0, 250, ((step, 20),)),
        Run(250, 255, ((down, 20),)),
        Run(255, 1000, ((step, 20),)),
    ]


def test_parts_of_a_span_share_its_height() -> None:
    parts = (Part("backward", 6.0, 1), Part("forward", 3.0, 1), Part(None, 1.0, 0))
    one = rank(0, span(0, 10, SECTION, "backward", *parts))
    palette = palette_of(story(2, 0)._replace(ranks=(one,)))
    (run,) = runs_of([one], palette, 10.0, 100, 20)
    names = {palette.layers[layer].name: height for layer, height in run.heights}
    assert names == {"backward": 12, "forward": 6, OUT_OF_SECTION: 2}


def test_several_ranks_are_averaged() -> None:
    both = [rank(0, span(0, 100)), rank(1, span(0, 50), span(50, 100, DOWN, None))]
    palette = palette_of(story(2, 0)._replace(ranks=tuple(both)))
    step, down = palette.by_section["step"], palette.by_kind[DOWN]
    assert runs_of(both, palette, 100.0, 100, 20) == [
        Run(0, 50, ((step, 20),)),
        Run(50, 100, ((step, 10), (down, 10))),
    ]


@pytest.mark.parametrize("incidents", [0, 1, 7])
def test_areas_fill_the_row_without_gaps(incidents: int) -> None:
    report = story(64, incidents)
    runs = runs_of(report.ranks, palette_of(report), report.seconds, 980, 30)
    for each in (runs, coarser(runs, 4), coarser(runs, 16)):
        assert each[0].start == 0
        assert each[-1].end == pytest.approx(980)
        assert all(one.end == other.start for one, other in itertools.pairwise(each))
        assert all(sum(height for _, height in run.heights) == 30 for run in each)
    assert len(coarser(runs, 16)) <= 980 / 16 + 1


def test_a_path_has_one_rectangle_for_each_run() -> None:
    runs = [Run(0, 10, ((0, 4), (1, 6))), Run(10, 20, ((1, 10),))]
    assert paths(runs, 5) == {0: "M0 5H10v4H0z", 1: "M0 9H10v6H0zM10 5H20v10H10z"}


@pytest.mark.parametrize("length", [0.004, 0.7, 3.2, 59, 61, 3_600, 7_500, 86_401, 40 * 86_400, 400 * 86_400])
def test_ticks_are_few_and_round(length: float) -> None:
    found = ticks(length, 10)
    assert 1 <= len(found) <= 11
    assert found[0] == 0
    assert found[-1] <= length
    assert len({axis_time(at) for at in found}) == len(found)
    if length > 0.02:
        assert len(found) >= 3


def test_labels_have_room_in_the_order_in_which_they_are_given() -> None:
    assert spread([(50, 20), (55, 20), (100, 30)], 110) == [40, None, 80]
    assert spread([(0, 20), (10, 200)], 110) == [0, None]
