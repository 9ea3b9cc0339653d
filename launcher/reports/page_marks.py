"""What a timeline is marked with: incidents beside the rows of their culprits, restarts, near misses."""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
from typing import NamedTuple

from launcher.reports.formats import duration, limit_of
from launcher.reports.model import Incident, Report
from launcher.reports.page_axis import spread
from launcher.reports.page_markup import Markup, Part, element
from launcher.reports.page_rows import Row, is_culprit
from launcher.reports.page_words import blamed, text_width, what_happened
from launcher.reports.phrases import lateness_of

__all__ = ["LANE", "Label", "at", "incident_marks", "lanes_of", "near_miss_marks", "top_strip"]

LANE = 19
"""Height of a lane of labels, in pixels."""
_MOST_LANES = 3
_PILL = 16
_CROWDED = 4
"""With more incidents than this in a row, their labels leave out who is to blame."""
_MOST_NEAR_MISSES = 300


class Label(NamedTuple):
    """The label of an incident in the row of its culprit."""

    incident: Incident
    x: float
    """Of the incident."""
    start: float
    width: float
    text: str
    """Empty where there is no room for one."""
    lane: int
    """From 0, the one next to the bar; -1 without a label."""
    is_first: bool
    """No row above this one shows the incident, too."""


def lanes_of(row: Row, seconds: float, width: int, named: Collection[int] = ()) -> list[Label]:
    """Return where the labels of a row's incidents stand, without two of them overlapping.

    Args:
        row: The row.
        seconds: The length of the axis.
        width: The same in pixels.
        named: Numbers of incidents that another row names: a lost node may have several rows.
    """
    occupied: list[list[tuple[float, float]]] = [[] for _ in range(_MOST_LANES)]
    labels = []
    is_crowded = len(row.incidents) > _CROWDED  # the row has the rank's name, too
    for incident in row.incidents:
        x = incident.at / seconds * width
        number = f"#{incident.number}"
        what = what_happened(incident)
        text = f"{number} {what}" if is_crowded else f"{number} {blamed(incident)}: {what}"
        texts = ((number, 1),) if incident.number in named else ((text, _MOST_LANES), (number, 1))
        label = _label(incident, x, width, occupied, texts)
        labels.append(label._replace(is_first=incident.number not in named))
    return labels


def _label(
    incident: Incident,
    x: float,
    width: int,
    occupied: list[list[tuple[float, float]]],
    texts: Sequence[tuple[str, int]],
) -> Label:
    """Return a label with the first of the texts that has room in one of so many lanes."""
    for text, most in texts:
        own = text_width(text, 12, is_bold=True) + 14
        for lane in range(most):
            for start in (x - 9, x + 9 - own):
                start = min(max(start, 0.0), width - own)
                if all(start > end + 4 or start + own + 4 < begin for begin, end in occupied[lane]):
                    occupied[lane].append((start, start + own))
                    return Label(incident, x, start, own, text, lane, True)
    return Label(incident, x, x, 0.0, "", -1, True)


def incident_marks(
    labels: Sequence[Label], row: Row, top: int, height: int, seconds: float, width: int
) -> list[Markup]:
    """Return the marks of a row: a diamond on its bar at each incident, a label above it, how long it was silent."""
    own = collections.defaultdict(list)
    for rank in row.ranks:
        own[rank.rank].append(rank)
    leaders, marks = [], []
    for label in labels:
        incident = label.incident
        middle = top + height / 2
        suspects = [s for s in incident.culprits if any(is_culprit(rank, s) for rank in own.get(s.rank, ()))]
        silent = max((s.open_seconds or 0.0 for s in suspects), default=0.0) if incident.kind == "hang" else 0.0
        wide = min(silent / seconds * width, label.x)
        outline = None
        if wide >= 3:
            outline = element("rect", x=-wide, y=top, width=wide, height=height, class_="silent", data_wide=wide)
        pill: list[Part] = []
        if label.text:
            y = top - 4 - (label.lane + 1) * LANE + (LANE - _PILL)
            x = label.start - label.x
            leaders.append(element("line", x1=0, x2=0, y1=y + _PILL, y2=middle, class_="leader", **at(label.x)))
            pill = [
                element("rect", x=x, y=y, width=label.width, height=_PILL, rx=3, class_="pill"),
                element("text", label.text, x=x + 7, y=y + 12.5, class_="pill-text"),
            ]
        diamond = element("path", d=f"M0 {middle - 8:g}l8 8l-8 8l-8 -8z", class_="diamond")
        happened = ". ".join(s.headline for s in suspects[:3]) or incident.why
        title = element("title", f"#{incident.number}, after {duration(incident.at)}: {happened}")
        marks.append(_link(incident, label.x, label.is_first, title, outline, pill, diamond))
    return leaders + marks


def _link(incident: Incident, x: float, is_first: bool, *parts: Part) -> Markup:
    """Return what leads from the timeline to the description of an incident."""
    number = incident.number
    return element(
        "a", parts, href=f"#incident-{number}", id=f"mark-{number}" if is_first else None, class_="mark", **at(x)
    )


def at(x: float) -> dict[str, str | float | bool | None]:
    """Return the attributes of what stands at a place, and moves along when the plot is widened."""
    return {"transform": f"translate({x:.1f},0)", "data_x": round(x, 1)}


def near_miss_marks(report: Report, rows: Sequence[tuple[Row, int, int]], width: int) -> list[Markup]:
    """Return a hollow diamond for each near miss, in the row that holds its rank."""
    places = {(rank.rank, rank.node): (top, height) for row, top, height in rows for rank in row.ranks}
    marks = []
    for miss in report.near_misses[:_MOST_NEAR_MISSES]:
        if (place := places.get((miss.rank, miss.node))) is not None:
            top, height = place
            x, middle = miss.at / report.seconds * width, top + height / 2
            limit = f"limit {limit_of(miss.limit_seconds)} missed by {lateness_of(miss)}"
            title = element("title", f"near miss of rank {miss.rank} after {duration(miss.at)}: {miss.kind}, {limit}")
            path = element("path", d=f"M0 {middle - 6:g}l6 6l-6 6l-6 -6z", class_="near-miss")
            marks.append(element("g", title, path, **at(x)))
    return marks


def top_strip(report: Report, rows: Sequence[Row], width: int, top: int, bottom: int) -> list[Part]:
    """Return the rules of restarts and incidents, through all rows, with names where there is room.

    An incident that has no row, since nobody can be named, is marked here.
    """
    placed = {incident.number for row in rows for incident in row.incidents}
    drawn: list[Part] = []
    named: list[tuple[bool, float, str]] = []
    for generation in report.generations:
        if generation.began <= 0 or (generation.number == 0 and generation.run == 0):
            continue
        x = generation.began / report.seconds * width
        is_run = generation.number == 0
        name = report.runs[generation.run].name if is_run else f"restart {generation.number}"
        drawn.append(_rule(x, top, bottom, "run-rule" if is_run else "restart", name))
        named.append((True, x, name))
    for incident in report.incidents:
        x = incident.at / report.seconds * width
        drawn.append(_rule(x, top, bottom, "incident-rule", f"#{incident.number}"))
        if incident.number not in placed:
            drawn.append(_without_row(incident, x, top))
            named.append((False, x, f"#{incident.number} {blamed(incident)}"))
    named.sort()  # incidents have their room first
    starts = spread([(x, text_width(name, 11)) for _, x, name in named], width, 8)
    for (is_restart, x, name), start in zip(named, starts, strict=True):
        if start is not None:
            css = "axis" if is_restart else "axis culprit-name"
            drawn.append(element("text", name, x=start - x, y=32, class_=css, **at(x)))
    return drawn


def _without_row(incident: Incident, x: float, top: int) -> Markup:
    title = element("title", f"#{incident.number}, after {duration(incident.at)}: {incident.why}")
    return _link(incident, x, True, title, element("path", d=f"M0 {top - 13}l6 6l-6 6l-6 -6z", class_="diamond"))


def _rule(x: float, top: int, bottom: int, css_class: str, name: str) -> Markup:
    return element("line", element("title", name), x1=0, x2=0, y1=top - 10, y2=bottom, class_=css_class, **at(x))
