"""The timeline of a page: ranks down, time across, and every incident beside the row of its culprit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from launcher.reports.formats import axis_time, clock, count, duration
from launcher.reports.model import Report, wall_seconds
from launcher.reports.page_axis import spread, ticks
from launcher.reports.page_bands import coarser, paths, runs_of
from launcher.reports.page_colours import Palette, palette_of
from launcher.reports.page_marks import LANE, Label, at, incident_marks, lanes_of, near_miss_marks, top_strip
from launcher.reports.page_markup import Markup, Part, element
from launcher.reports.page_rows import Row, folded
from launcher.reports.page_words import nodes_phrase, row_name, shortened, text_width

__all__ = ["WIDTH", "timeline"]

WIDTH = 964
"""Of the time axis, in pixels."""
_EDGE = 8
"""On either side of it, so that a mark at an end is not cut in half."""
_NAMES = 216
"""Width of the column of names."""
_TOP = 46
_GAP = 3
_MOST_PATH = 700_000
"""How many characters the areas of colour may take."""
_COARSER = (1, 2, 4, 8, 16)
_FEW_INCIDENTS = 12
"""Up to so many incidents, their rows are tinted throughout, and a rule leads from each to the other rows."""


class _Placed(NamedTuple):
    """A row, and where it is drawn."""

    row: Row
    labels: tuple[Label, ...]
    top: int
    bar_top: int
    height: int
    """Of the bar."""

    @property
    def bottom(self) -> int:
        return self.bar_top + self.height


def timeline(report: Report) -> Markup:
    """Return the section of a page that shows the ranks over time."""
    palette = palette_of(report)
    rows = _placed(folded(report, palette), report) if report.seconds > 0 else []
    if not rows:
        return element("p", "No rank has been started, or nothing was written down of any.", class_="soft")
    bottom = rows[-1].bottom + 4
    return element(
        "div",
        element("div", _legend(report, palette), _widths(), class_="above"),
        element(
            "div",
            element("svg", [_name(placed) for placed in rows], class_="names", width=_NAMES, height=bottom),
            element(
                "div",
                _plot(report, palette, rows, bottom),
                class_="scroll",
                id="plot-scroll",
                tabindex=0,
                role="region",
                aria_label="Timeline of the ranks; scrolls sideways",
            ),
            class_="timeline",
        ),
        _clocks(report),
    )


# ---- where the rows are ----------------------------------------------------------------------------------


def _placed(rows: Sequence[Row], report: Report) -> list[_Placed]:
    placed = []
    y = _TOP
    is_few = len(report.ranks) <= 16
    bar_of_culprit = 24 if len(report.incidents) <= _FEW_INCIDENTS else 16
    named: set[int] = set()
    for row in rows:
        labels = lanes_of(row, report.seconds, WIDTH, named)
        named |= {incident.number for incident in row.incidents}
        lanes = max((label.lane for label in labels), default=-1) + 1
        bar = bar_of_culprit if row.incidents else 20 if is_few else _height_of_band(len(row.ranks), len(rows))
        above = lanes * LANE + 4 if lanes else 0
        placed.append(_Placed(row, tuple(labels), y, y + above, bar))
        y += above + bar + _GAP + (2 if row.incidents else 0)
    return placed


def _height_of_band(ranks: int, rows: int) -> int:
    """Return more for more ranks, so that a band looks like many, and less where there are many rows."""
    return 14 + round(min(24.0, 3.6 * math.log2(ranks)) * min(1.0, 12 / rows))


# ---- what is drawn ---------------------------------------------------------------------------------------


def _name(placed: _Placed) -> Part:
    row = placed.row
    name, nodes = row_name(row.ranks), nodes_phrase(row.nodes)
    css = "culprit-name" if row.incidents else None
    space = placed.bottom - placed.top
    middle = (placed.top + placed.bottom) / 2
    tint = element("rect", x=0, y=placed.top - 2, width=_NAMES, height=space + 4, class_="culprit-row")
    if space >= 32:
        size = f", {count(len(row.ranks))} ranks" if len(row.ranks) > 1 else ""
        lines: Part = [
            element("text", name, x=6, y=middle - 3, class_=css),
            element("text", nodes, size if row.nodes[1:] == () else "", x=6, y=middle + 12, class_="second"),
        ]
    else:
        beside = 14 + text_width(name)
        has_room = beside + text_width(nodes, 11) <= _NAMES - 4
        lines = [
            element("text", name, x=6, y=middle + 4, class_=css),
            element("text", nodes, x=beside, y=middle + 4, class_="second wide-only") if has_room else None,
        ]
    title = element("title", f"{name}, {', '.join(row.nodes[:40])}")
    return element("g", title, tint if row.incidents else None, lines)


def _plot(report: Report, palette: Palette, rows: Sequence[_Placed], bottom: int) -> Markup:
    marks = [incident_marks(p.labels, p.row, p.bar_top, p.height, report.seconds, WIDTH) for p in rows]
    is_few = len(report.incidents) <= _FEW_INCIDENTS
    return element(
        "svg",
        element("title", "Ranks over time"),
        _patterns(),
        [_tint(p) for p in rows if p.row.incidents] if is_few else None,
        element(
            "g",
            _areas(report, palette, rows),
            _ticks(report.seconds, bottom),
            top_strip(report, [p.row for p in rows], WIDTH, _TOP, bottom),
            near_miss_marks(report, [(p.row, p.bar_top, p.height) for p in rows], WIDTH),
            marks,
            element("line", x1=0, x2=0, y1=_TOP - 4, y2=bottom, id="cursor", visibility="hidden"),
            transform=f"translate({_EDGE},0)",
        ),
        id="plot",
        class_=None if is_few else "many",
        width=WIDTH + 2 * _EDGE,
        height=bottom,
        data_width=WIDTH,
        data_edge=_EDGE,
        data_top=_TOP,
        data_running=report.is_running,
        role="group",
        aria_label="Timeline; each incident is a link to its description",
    )


def _tint(placed: _Placed) -> Markup:
    height = placed.bottom - placed.top + 4
    return element("rect", x=0, y=placed.top - 2, width="100%", height=height, class_="culprit-row")


def _areas(report: Report, palette: Palette, rows: Sequence[_Placed]) -> Markup:
    """Return the areas of colour, more coarsely where they would make the page too large."""
    runs = [runs_of(p.row.ranks, palette, report.seconds, WIDTH, p.height) for p in rows]
    drawn: list[dict[int, str]] = []
    for pixels in _COARSER:
        runs = [coarser(each, pixels) for each in runs] if pixels > 1 else runs
        drawn = [paths(each, p.bar_top) for each, p in zip(runs, rows, strict=True)]
        if sum(len(path) for areas in drawn for path in areas.values()) <= _MOST_PATH:
            break
    groups = []
    for placed, areas in zip(rows, drawn, strict=True):
        named = [
            element("path", d=path, class_=palette.layers[layer].css_class, data_n=palette.layers[layer].name)
            for layer, path in areas.items()
        ]
        name = f"{row_name(placed.row.ranks)}, {nodes_phrase(placed.row.nodes)}"
        groups.append(element("g", named, data_row=name))
    return element("g", groups, id="areas")


def _ticks(seconds: float, bottom: int) -> Part:
    places = [(moment, axis_time(moment)) for moment in ticks(seconds, 10)]
    xs = [moment / seconds * WIDTH for moment, _ in places]
    starts = spread([(x, text_width(text, 11)) for x, (_, text) in zip(xs, places, strict=True)], WIDTH, 10)
    drawn: list[Part] = []
    for x, (_, text), start in zip(xs, places, starts, strict=True):
        drawn.append(element("line", x1=0, x2=0, y1=18, y2=bottom, class_="tick", **at(x)))
        if start is not None:
            anchor = "start" if x < 8 else "end" if start + text_width(text, 11) > WIDTH - 1 else "middle"
            drawn.append(element("text", text, y=12, text_anchor=anchor, class_="axis", **at(x)))
    return drawn


def _patterns() -> Markup:
    def pattern(name: str, *parts: Part) -> Markup:
        background = element("rect", width=6, height=6, class_=f"{name}-back")
        size: dict[str, str | float | bool | None] = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
        return element("pattern", background, parts, id=f"p-{name}", **size)

    return element(
        "defs",
        pattern("starting", element("path", d="M-1 5l2 2M0 0l6 6M5 -1l2 2", class_="hatch")),
        pattern("stopping", element("path", d="M-1 1l2 -2M0 6l6 -6M5 7l2 -2", class_="hatch")),
        pattern("down", element("path", d="M0 3h6", class_="hatch")),
        pattern("idle", element("path", d="M2 2h2v2h-2z", class_="dot")),
        pattern("not-seen", element("path", d="M2 3h2", class_="hatch")),
        pattern("other", element("path", d="M3 0v6", class_="hatch")),
    )


# ---- around it -------------------------------------------------------------------------------------------


def _legend(report: Report, palette: Palette) -> Markup:
    def swatch(*parts: Part) -> Markup:
        return element("svg", parts, class_="swatch", width=18, height=12, aria_hidden="true")

    items = [
        element("li", swatch(element("rect", width=18, height=12, class_=layer.css_class)), shortened(layer.name, 40),
                title=layer.meaning)
        for layer in palette.layers
    ]  # fmt: skip
    if report.incidents:
        diamond = element("path", d="M9 0l6 6l-6 6l-6 -6z", class_="diamond")
        items.append(element("li", swatch(diamond), "incident, at its culprit"))
    if any(generation.number for generation in report.generations):
        items.append(element("li", swatch(element("line", x1=9, x2=9, y1=0, y2=12, class_="restart")), "restart"))
    if report.near_misses:
        ring = element("path", d="M9 1.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z", class_="near-miss")
        items.append(element("li", swatch(ring), "near miss"))
    return element("ul", items, class_="legend")


def _widths() -> Markup:
    """Return the buttons that widen the plot; the script shows them."""
    buttons = [
        element("button", f"{times}x", value=times, type="button", aria_pressed="true" if times == 1 else "false")
        for times in (1, 4, 16)
    ]
    return element("div", "width", buttons, class_="widths soft", role="group", aria_label="Width of the timeline")


def _clocks(report: Report) -> Markup:
    """Return the wall clock at both ends, and what the script says of each place: all is written by one function."""
    first = clock(report.began_at, report.began_epoch, 0.0)
    last = clock(report.began_at, report.began_epoch, report.seconds)
    goes_on = ", and it still goes on" if report.is_running else ""
    is_mean = duration(report.seconds) != duration(wall_seconds(report))
    length = f"{'~' if report.is_length_about else ''}{duration(report.seconds)}"
    took = f", {length} from the first launcher's begin to the last one's end" if is_mean else ""
    step = report.seconds / WIDTH
    times = [duration(step * (x + 0.5)) for x in range(WIDTH)]
    text = Markup(json.dumps(times, ensure_ascii=True).replace("<", "\\u003c"))
    return element(
        "div",
        element("p", f"From {first} to {last}{took}{goes_on}.", class_="said soft", id="said"),
        element("script", text, type="application/json", id="times"),
    )
