"""Picture of a report log as one self-contained HTML file: no script, style, font or image from elsewhere.

Two layouts were sketched:

A. The heat map of all ranks first, over the whole width, and below it a list of who was named. It shows that something
   happened. Who it was, has to be pointed at: among 4,096 ranks one of them is less than a pixel high.
B. Who was named first, in words: rank, node, section, how much, since when, until when. Then, over one axis of time, a
   row for each named rank, high enough to be labelled; all ranks, a rank per row in a small job and a node per row in a
   large one; the sections; and what the job loses.

B is what this draws: the question is "who, and since when", and only then "what did the others do". It also keeps a day
of 4,096 ranks small, since only the named ranks need rows of their own.

The cells travel as one byte each (base64, see :mod:`straggler.reporting.cells`), at most 1,500 columns and 640 rows. A
canvas is painted at the resolution of the screen; cells that share a pixel are shown as the most important one. Names
come from the job and are put into the page as JSON and text nodes, never as markup.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from straggler.reporting.heatmap_page import PAGE
from straggler.reporting.named_slow import Entry
from straggler.reporting.picture import Picture
from straggler.reporting.picture_files import MARK, write_picture
from straggler.reporting.time_axis import TimeAxis, duration, moment

__all__ = ["page_data", "write_html"]

_UNKNOWN = 255
"""Of a share of time in per cent."""


def write_html(picture: Picture, path: str | os.PathLike[str]) -> Path:
    """Write the page.

    Args:
        picture: What to show.
        path: The file; what is there is replaced.

    Raises:
        ReportLogError: It cannot be written.
    """
    # "</" inside a script element would end it.
    text = json.dumps(page_data(picture), ensure_ascii=True, separators=(",", ":")).replace("</", "<\\/")
    return write_picture(path, PAGE.replace("@MARK@", MARK).replace("@DATA@", text).encode(), "--html")


def page_data(picture: Picture) -> dict[str, Any]:
    """Return what the page is made of, as JSON values."""
    axis, last = picture.axis, len(picture.sequences) - 1
    row_of_rank = {rank: number for number, row in enumerate(picture.rows) for rank in row.ranks}
    node_of_rank = {episode.rank: episode.node for episode in picture.episodes}
    place = {rank: number for number, rank in enumerate(picture.named_ranks)}
    columns = [int(column) for column in axis.column_of]
    left_out = len({episode.rank for episode in picture.episodes}) - len(place)
    return {
        "title": picture.title,
        "columns": axis.columns,
        "neutral": picture.scale.neutral,
        "importance": picture.scale.importance().tolist(),
        "light": picture.scale.palette().tolist(),
        "dark": picture.scale.palette(dark=True).tolist(),
        "times": [round(at, 1) for at in axis.times],
        "sequences": picture.sequences,
        "columnOf": columns,
        "ticks": [[round(at, 1), text] for at, text in axis.ticks()],
        "clock": "UTC" if axis.has_time_of_day else "elapsed",
        "gaps": [[column, width, f"no report for {duration(seconds)}"] for column, width, seconds in axis.gaps],
        "rows": [[row.label, row.node] for row in picture.rows],
        "overview": _bytes(picture.overview),
        "named": [_said(entry, axis, picture.sequences, last) for entry in picture.named],
        "namedRows": [[f"rank {rank}", node_of_rank[rank]] for rank in picture.named_ranks],
        "namedCells": _bytes(picture.named_cells),
        "leftOut": left_out,
        "spans": [
            [place[e.rank], row_of_rank[e.rank], columns[e.since], columns[e.named], columns[e.until]]
            for e in picture.episodes
            if e.rank in place
        ],
        "marks": [
            [row_of_rank[entry.ranks[0]], entry.node if len(entry.ranks) > 1 else entry.title]
            for entry in picture.named
        ],
        "sections": [{"name": s.name, "cells": _bytes(s.cells), "worst": s.worst} for s in picture.sections],
        "waited": None if picture.waited is None else [_shares(row) for row in picture.waited],
    }


def _said(entry: Entry, axis: TimeAxis, sequences: list[int], last: int) -> list[str]:
    def at(index: int) -> str:
        when = moment(axis.times[index]) if axis.has_time_of_day else duration(axis.times[index] - axis.times[0])
        return f"{when} (report {sequences[index]})"

    until = "the end, still slow" if entry.until == last else at(entry.until)
    return [
        entry.title,
        entry.node,
        entry.much,
        entry.section,
        at(entry.since),
        at(entry.named),
        until,
        duration(axis.times[entry.until] - axis.times[entry.since]),
        entry.because,
    ]


def _bytes(cells: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(cells).tobytes()).decode("ascii")


def _shares(row: npt.NDArray[np.float64]) -> str:
    return _bytes(np.where(np.isnan(row), _UNKNOWN, np.clip(np.round(row), 0, 100)).astype(np.uint8))
