"""Pictures of a report log: a rank x time heat map, and a strip per section.

Up to 10,000 ranks are readable because rows are binned by the *slowest* rank of each bin, never by a mean: one slow
rank among 10,000 stays one dark line. Colours are a diverging scale around "as fast as the peers", with unknown in
a grey of its own, and are told apart by people who do not see red and green.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.errors import ReportLogError

__all__ = ["SCALE", "Picture", "bin_ranks", "picture_of", "write_png"]

Floats = npt.NDArray[np.float64]

MAX_ROWS = 450
"""Lines for ranks in the PNG, fewer than it has pixels there, so that none is lost; more ranks share one."""
MAX_SECTIONS = 16
SCALE = 0.3
"""Slowdown at which the colour is full."""


@attrs.frozen
class Picture:
    """The data of both pictures.

    Args:
        slowdown: Excess of each rank over its peers, shape ``(ranks, reports)``; NaN unknown.
        sections: Section name and, shape ``(3, reports)``, its median, 90th percentile and worst excess.
        worst_rank: Section name to the worst rank at each report, -1 unknown.
        minutes: Time of each report since the first.
        slow: Rank and report of each SLOW verdict, with its text.
        title: One line.
    """

    slowdown: Floats
    sections: dict[str, Floats]
    worst_rank: dict[str, list[int]]
    minutes: list[float]
    slow: list[tuple[int, int, str]]
    title: str


def picture_of(records: Sequence[dict[str, Any]]) -> Picture:
    """Arrange the records of a report log; ranks that a report does not know are unknown in it.

    Raises:
        ReportLogError: There are no records.
    """
    if not records:
        raise ReportLogError("there is no report to draw")
    ranks = max(int(record["world_size"]) for record in records)
    slowdown = np.full((ranks, len(records)), np.nan)
    names = sorted({name for record in records for name in record["sections"]})
    sections = {name: np.full((3, len(records)), np.nan) for name in names}
    worst_rank = {name: [-1] * len(records) for name in names}
    slow: list[tuple[int, int, str]] = []
    for column, record in enumerate(records):
        values = [np.nan if value is None else value / 1000.0 - 1.0 for value in record["ranks"]]
        slowdown[: len(values), column] = values
        for name, numbers in record["sections"].items():
            sections[name][:, column] = [numbers[key] / 1000.0 - 1.0 for key in ("median", "p90", "worst")]
            worst_rank[name][column] = numbers["worst_rank"]
        for verdict in record["verdicts"]:
            if verdict["state"] == "SLOW":
                share = 100 * (verdict["slowdown"] or 0.0)
                text = f"rank {verdict['rank']} {verdict['node']}: {share:.1f} % slower in {verdict['section']!r}"
                if verdict["because"]:
                    text += f", because: {verdict['because']}"
                slow.append((int(verdict["rank"]), column, text))
    start = records[0]["time"]
    minutes = [(record["time"] - start) / 60.0 for record in records]
    named = len({rank for rank, _, _ in slow})
    title = f"{ranks} ranks, {len(records)} reports over {minutes[-1]:.0f} min, {named} ranks named slow"
    loudest = sorted(names, key=lambda name: -float(np.nanmax(sections[name][2], initial=-1.0)))[:MAX_SECTIONS]
    return Picture(slowdown, {name: sections[name] for name in loudest}, worst_rank, minutes, slow, title)


def bin_ranks(slowdown: Floats, rows: int = MAX_ROWS) -> tuple[Floats, int]:
    """Reduce to at most ``rows`` rows, each the slowest of its ranks.

    Returns:
        The binned matrix (a bin is NaN only where all its ranks are), and how many ranks share a row.
    """
    ranks = slowdown.shape[0]
    per_row = max(1, -(-ranks // rows))
    padding = -ranks % per_row
    padded = np.vstack([slowdown, np.full((padding, slowdown.shape[1]), np.nan)]) if padding else slowdown
    return np.fmax.reduce(padded.reshape(-1, per_row, slowdown.shape[1]), axis=1), per_row


def write_png(picture: Picture, path: str | os.PathLike[str]) -> Path:
    """Draw with matplotlib, which is imported here and nowhere else.

    Raises:
        ReportLogError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportLogError(
            "a PNG needs matplotlib (pip install matplotlib); the HTML picture needs nothing"
        ) from error
    strips = max(len(picture.sections), 1)
    figure = Figure(figsize=(13, 6.2 + 0.42 * strips), layout="constrained")
    FigureCanvasAgg(figure)
    heat_axes, strip_axes = figure.subplots(2, 1, height_ratios=[5.2, max(0.42 * strips, 0.8)], sharex=True)
    colours = mpl.colormaps["RdBu_r"].with_extremes(bad="#b9b9b9")
    binned, per_row = bin_ranks(picture.slowdown)
    reports = picture.slowdown.shape[1]
    image = heat_axes.imshow(
        np.ma.masked_invalid(binned),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=-SCALE,
        vmax=SCALE,
        extent=(-0.5, reports - 0.5, picture.slowdown.shape[0] - 0.5, -0.5),
    )
    heat_axes.set_ylabel("rank" if per_row == 1 else f"rank (slowest of {per_row} per line)")
    heat_axes.set_title(picture.title, loc="left")
    _mark_slow(heat_axes, picture)
    names = list(picture.sections)
    worst = np.array([picture.sections[name][2] for name in names]) if names else np.full((1, reports), np.nan)
    strip_axes.imshow(
        np.ma.masked_invalid(worst),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=-SCALE,
        vmax=SCALE,
        extent=(-0.5, reports - 0.5, strips - 0.5, -0.5),
    )
    strip_axes.set_yticks(range(strips), [_short(name) for name in names] or ["no sections"], fontsize=8)
    strip_axes.set_title("each section's slowest rank", loc="left", fontsize=9)
    ticks = np.unique(np.linspace(0, reports - 1, min(reports, 12)).astype(int))
    strip_axes.set_xticks(ticks, [f"{picture.minutes[tick]:.0f}" for tick in ticks])
    strip_axes.set_xlabel("minutes since the first report")
    bar = figure.colorbar(image, ax=[heat_axes, strip_axes], shrink=0.8, pad=0.01, aspect=35)
    bar.set_label("slower than peers (grey: unknown)")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f} %")
    target = Path(path)
    figure.savefig(target, dpi=110)
    return target


def _mark_slow(axes: Any, picture: Picture) -> None:
    """Write a name beside the last report of each slow rank, as long as they do not overlap."""
    last: dict[int, int] = {}
    for rank, column, _ in picture.slow:
        last[rank] = max(column, last.get(rank, -1))
    ranks, reports = picture.slowdown.shape
    taken: list[int] = []
    for rank in sorted(last, key=lambda r: -last[r]):
        if len(taken) >= 20 or any(abs(rank - other) < ranks / 45 for other in taken):
            continue
        taken.append(rank)
        axes.annotate(
            f"{rank}",
            xy=(last[rank] + 0.5, rank),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.6},
        )
    axes.set_xlim(-0.5, reports - 0.5)


def _short(name: str, length: int = 34) -> str:
    return name if len(name) <= length else name[: length // 2 - 1] + "…" + name[-(length // 2) :]
