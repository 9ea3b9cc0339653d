"""Picture of a report log as PNG, with matplotlib: what the HTML file shows, without the words for each cell."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from straggler.errors import ReportLogError
from straggler.reporting.cells import SOME_MISSING
from straggler.reporting.named_slow import Entry
from straggler.reporting.picture import Picture
from straggler.reporting.picture_files import MARK, write_picture
from straggler.reporting.rows import Row
from straggler.reporting.time_axis import TimeAxis, duration, moment

__all__ = ["write_png"]

_LINES = 8
"""Of who was named; the others are counted."""
_MOST_ROWS = 24
"""Named ranks with a row of their own."""
_LABELS = 32
_INK = "#1b1f24"


def write_png(picture: Picture, path: str | os.PathLike[str]) -> Path:
    """Draw with matplotlib, which is imported here and nowhere else.

    Raises:
        ReportLogError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError as error:
        raise ReportLogError(
            "a PNG needs matplotlib (pip install matplotlib); the HTML picture needs nothing"
        ) from error
    own, sections = picture.named_ranks[:_MOST_ROWS], picture.sections
    heights = [0.22 * len(own), min(max(0.22 * len(picture.rows), 1.0), 5.0), max(0.22 * len(sections), 0.22)]
    said = _said(picture)
    figure = Figure(figsize=(13, sum(heights) + 1.6 + 0.19 * len(said)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(_plain(line) for line in [picture.title, *said]), x=0.01, ha="left", fontsize=9)
    named_axes, all_axes, section_axes = figure.subplots(
        3, 1, height_ratios=[max(h, 0.01) for h in heights], sharex=True
    )
    _show(named_axes, picture, picture.named_cells[: len(own)])
    nodes = {episode.rank: episode.node for episode in picture.episodes}
    named_axes.set_yticks(range(len(own)), [_plain(f"rank {rank} {nodes[rank]}".strip()) for rank in own], fontsize=7)
    _show(all_axes, picture, picture.overview)
    all_axes.set_yticks(*_labels(picture.rows), fontsize=7)
    all_axes.set_ylabel("all ranks" if len(picture.rows[0].ranks) == 1 else "all ranks, the slowest of each row")
    _show(
        section_axes, picture, np.array([s.cells for s in sections], dtype=np.uint8).reshape(-1, picture.axis.columns)
    )
    section_axes.set_yticks(range(len(sections)), [_plain(_short(s.name)) for s in sections], fontsize=7)
    row_of = {rank: number for number, row in enumerate(picture.rows) for rank in row.ranks}
    for episode in picture.episodes:
        since, named, until = (int(picture.axis.column_of[i]) for i in (episode.since, episode.named, episode.until))
        if episode.rank in own:
            corner = (since - 0.5, own.index(episode.rank) - 0.45)
            named_axes.add_patch(
                Rectangle(corner, until - since + 1, 0.9, fill=False, edgecolor=_INK, linestyle="--", linewidth=0.8)
            )
            named_axes.plot([named - 0.5], [own.index(episode.rank)], marker=8, color=_INK, markersize=5)
        all_axes.plot([named - 0.5], [row_of[episode.rank]], marker=8, color=_INK, markersize=4)
    ticks = picture.axis.ticks()
    section_axes.set_xticks([place - 0.5 for place, _ in ticks], [text for _, text in ticks], fontsize=8)
    section_axes.set_xlabel("time of day, UTC" if picture.axis.has_time_of_day else "time since the first report")
    colours = picture.scale.palette() / 255.0
    figure.legend(
        handles=[Patch(facecolor=colours[code], edgecolor="#888", label=text) for code, text in _legend(picture)],
        loc="outside lower left",
        ncols=6,
        fontsize=7,
        frameon=False,
    )
    if not own:
        named_axes.set_visible(False)
    content = io.BytesIO()
    figure.savefig(content, dpi=110, format="png", metadata={"Software": MARK})
    return write_picture(path, content.getvalue(), "--png")


def _said(picture: Picture) -> list[str]:
    lines = [_line(entry, picture.axis, picture.sequences) for entry in picture.named[:_LINES]]
    more = len(picture.named) - len(lines)
    return lines + ([f"and {more} more"] if more else [])


def _line(entry: Entry, axis: TimeAxis, sequences: list[int]) -> str:
    def at(index: int) -> str:
        when = moment(axis.times[index]) if axis.has_time_of_day else duration(axis.times[index] - axis.times[0])
        return f"{when} (report {sequences[index]})"

    until = "the end" if entry.until == len(sequences) - 1 else at(entry.until)
    node = f" on {entry.node}" if entry.node else ""
    return f"{entry.title}{node}: {entry.much} slower in {entry.section!r} since {at(entry.since)} until {until}"


def _show(axes: Any, picture: Picture, cells: npt.NDArray[np.uint8]) -> None:
    """Draw cells in their colours; missing ones are hatched, as in the HTML file."""
    if not len(cells):
        axes.set_yticks([])
        return
    high, wide = (max(1, -(-size // count)) for size, count in zip((500, 1200), cells.shape, strict=True))
    codes = cells.repeat(high, axis=0).repeat(wide, axis=1)
    image = picture.scale.palette()[codes].astype(np.float64)
    across = np.add.outer(np.arange(codes.shape[0]), np.arange(codes.shape[1])) % 9 < 3
    image[(codes <= SOME_MISSING) & across] *= 1.16
    rows, columns = cells.shape
    axes.imshow(
        np.minimum(image, 255.0).astype(np.uint8),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )


def _labels(rows: list[Row]) -> tuple[list[int], list[str]]:
    """Return the rows that begin a node, or rows, as many as can be read, and their labels."""
    if len(rows) <= _LABELS:
        return list(range(len(rows))), [_plain(f"{row.label} {row.node}".strip()) for row in rows]
    begins = [n for n, row in enumerate(rows) if n == 0 or row.node != rows[n - 1].node or not row.node]
    shown = begins[:: max(1, -(-len(begins) // _LABELS))]
    return shown, [_plain(rows[n].node or rows[n].label) for n in shown]


def _legend(picture: Picture) -> list[tuple[int, str]]:
    neutral = picture.scale.neutral
    return [
        (0, "missing"),
        (1, "some missing"),
        (2, "faster"),
        (27, f"within {neutral} % of the peers"),
        (27 + neutral + 20, "slower, not named"),
        (154 + neutral + 20, "named slow"),
    ]


def _short(name: str, length: int = 34) -> str:
    return name if len(name) <= length else name[: length // 2 - 1] + "…" + name[-(length // 2) :]


def _plain(text: str) -> str:
    """Return a text of which matplotlib takes nothing for a formula, and that has no control characters."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text).replace("$", r"\$")
