"""The figures of a run: what its ranks have done, line by line, in ``figures.jsonl`` beside the events.

The launcher of each node writes a line about its ranks now and then, and one when a generation is over
(:mod:`launcher.agent.figures_recorder` says when). Every line has the time stamps of an event and::

    {"generation": 0, "is_full": true, "is_last": false, "ranks": {"3": {
        "iteration": 17, "done": 16, "passed": 17, "open": {"step": 1234567}, "beside_ns": 0,
        "sections": {"step": {"closed": 16, "took_ns": 9, "longest_ns": 2, "close_calls": 0, "durations": {"21": 16},
                              "left": 1, "left_ns": 3, "left_opened_ns": 1, "left_at_ns": 4}},
        "local_rank": 1, "first_iteration": 0, "first_step_ns": 1, "first_sign_ns": 1, "last_sign_ns": 1,
        "went_back": false,
        "resumed_from": null, "saved": 10, "saves": [{"iteration": 10, "t_ns": 1, "checkpointing_ns": 1}],
        "longest_gap_ns": 1, "longest_heartbeat_gap_ns": 0,
        "limits": {"section step": {"seconds": 2.0, "source": "learned"}}}}}

All figures grow within a generation. A line that is not full leaves out the rows from ``local_rank`` on, the durations,
and sections whose figures are those of the line before; ``saves`` are in it where some are new, those alone. Full are
the first and the last line of a generation, the first after a rank has begun its first step or after lines were lost,
and each thirtieth.
"""

from __future__ import annotations

import os
import reprlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from launcher.records.event_files import EventFile, read_events
from launcher.records.log_records import warn_once
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import LIMITS_TEXT
from resilience_core.protocol.cell_view import implausible
from resilience_core.protocol.figures_read import RankFigures, Save, SectionFigures, read_figures
from resilience_core.protocol.limits_text import read_limits

__all__ = [
    "FIGURES",
    "FiguresLine",
    "LimitInForce",
    "RankDetails",
    "RankLine",
    "figures_of",
    "figures_in",
    "line_of_rank",
    "read_figure_lines",
]

FIGURES = "figures"
"""What the names of the files begin with, and the ``event`` of each line."""
_BITS = 64
_BOUND = 1 << (_BITS - 1)
"""Figures are signed words of so many bits; a number beyond that is damage, and no sum of it can be a float."""


class LimitInForce(NamedTuple):
    """A limit and where it comes from."""

    seconds: float
    source: str
    """``learned``, ``configured`` or ``default``."""


class RankDetails(NamedTuple):
    """What only full lines tell of a rank. Times are ``CLOCK_MONOTONIC`` nanoseconds of its node."""

    local_rank: int
    first_iteration: int | None
    first_step_ns: int | None
    first_sign_ns: int | None
    last_sign_ns: int | None
    resumed_from: int | None
    saved: int | None
    saves: tuple[Save, ...]
    longest_gap_ns: int
    longest_heartbeat_gap_ns: int
    limits: Mapping[str, LimitInForce]
    """By kind (:mod:`resilience_core.protocol.limit_kinds`)."""
    went_back: bool
    """Its iterations do not count on through the run."""


class RankLine(NamedTuple):
    """What a line tells of one rank."""

    iteration: int | None
    done: int | None
    """The iteration of the last training step that ended."""
    open: Mapping[str, int]
    """The sections that were open, and when each was opened."""
    sections: Mapping[str, SectionFigures]
    """In a line that is not full: those that have changed, without their durations."""
    details: RankDetails | None
    saves: tuple[Save, ...] = ()
    """In a line that is not full: those that are new."""
    beside_ns: int = 0
    """How long ``checkpointing`` was open in all while steps went on; of those that were closed."""
    passed: int | None = None  # as in RankFigures


class FiguresLine(NamedTuple):
    """One line."""

    t_ns: int
    time: str
    boot: str
    """Identifies the monotonic clock."""
    node: str
    generation: int
    is_full: bool
    is_last: bool
    """The generation was over."""
    ranks: Mapping[int, RankLine]
    """By global rank."""


# ---- writing --------------------------------------------------------------------------------------------


def line_of_rank(local_rank: int, raw_cell: bytes, raw_figures: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return what a full line tells of a rank, and the number of the rank.

    Args:
        local_rank: Of the rank.
        raw_cell: What was in its cell.
        raw_figures: What was in its file of figures; empty where it has none.

    Returns:
        None where the cell cannot be read.
    """
    try:
        cell = Cell.from_bytes(raw_cell)
    except CellError:
        return None
    view = cell.view()
    if implausible(view, time.monotonic_ns()):
        return None
    figures = read_figures(raw_figures) or _NONE
    limits = read_limits(cell.read_text(LIMITS_TEXT))
    known = {} if limits is None else limits.limits
    return view.rank, {
        "iteration": _known(view.iteration),
        "done": figures.done,
        "passed": figures.passed,
        "open": {section.name: section.opened_ns for section in view.sections},
        "beside_ns": figures.beside_ns,
        "sections": {
            name: {**section._asdict(), "durations": {str(bits): n for bits, n in section.durations.items()}}
            for name, section in figures.sections.items()
        },
        "local_rank": local_rank,
        "first_iteration": figures.first_iteration,
        "first_step_ns": figures.first_step_ns,
        "first_sign_ns": cell.stamps()["first_sign_ns"],
        "last_sign_ns": view.last_sign_ns or None,
        "went_back": view.went_back > 0 or 0 <= view.iteration < view.resumed_from,
        "resumed_from": _known(view.resumed_from),
        "saved": _known(view.saved),
        "saves": [save._asdict() for save in figures.saves],
        "longest_gap_ns": figures.longest_gap_ns,
        "longest_heartbeat_gap_ns": figures.longest_heartbeat_gap_ns,
        "limits": {
            kind: {"seconds": rows[0].seconds, "source": rows[0].source} for kind, rows in known.items() if rows
        },
    }


_NONE = RankFigures(None, None, None, 0, 0, (), {})


def _known(iteration: int) -> int | None:
    return iteration if iteration >= 0 else None


# ---- reading --------------------------------------------------------------------------------------------


def read_figure_lines(log_folder: str | os.PathLike[str]) -> list[FiguresLine]:
    """Return the figures of a run, of every node that wrote into this folder, oldest first.

    Order, damaged lines and errors are as for :func:`launcher.records.event_files.read_events`; a folder of an older
    release has none.

    Raises:
        OSError: As there.
        UnknownVersionError: As there.
    """
    return _lines(read_events(log_folder, FIGURES), os.fspath(log_folder), warn_once)


def figures_in(file: EventFile, leave_out: Callable[[str], object] = warn_once) -> list[FiguresLine]:
    """Return the lines of one file that :func:`launcher.records.event_files.read_event_file` has read.

    Args:
        file: What was read.
        leave_out: Is told which damaged lines are left out.
    """
    about = {"node": file.node, "boot": file.boot}
    return _lines(({**about, **event} for event in file.events), file.path, leave_out)


def _lines(events: Iterable[Mapping[str, Any]], where: str, leave_out: Callable[[str], object]) -> list[FiguresLine]:
    lines = []
    for event in events:
        if event["event"] != FIGURES:
            continue
        try:
            lines.append(figures_of(event))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            leave_out(f"{where}: a damaged line of figures is left out: {error!r}, {reprlib.repr(event)}")
    return lines


def figures_of(event: Mapping[str, Any]) -> FiguresLine:
    """Return the figures of one line, as :func:`read_events` returns it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is damaged.
    """
    is_full = event["is_full"] is True
    return FiguresLine(
        t_ns=_whole(event["t_ns"]),
        time=str(event["time"]),
        boot=str(event["boot"]),
        node=str(event["node"]),
        generation=_whole(event["generation"]),
        is_full=is_full,
        is_last=event["is_last"] is True,
        ranks={_whole(int(rank)): _rank(facts, is_full=is_full) for rank, facts in event["ranks"].items()},
    )


def _rank(facts: Mapping[str, Any], *, is_full: bool) -> RankLine:
    sections = {
        name: SectionFigures(
            _whole(each["closed"]),
            _whole(each["took_ns"]),
            _whole(each["longest_ns"]),
            _whole(each["close_calls"]),
            {_bits(bits): _whole(count) for bits, count in each.get("durations", {}).items()},
            _whole(each.get("left", 0)),  # in lines of earlier releases they are counted with the others
            _whole(each.get("left_ns", 0)),
            _whole(each.get("left_opened_ns", 0)),
            _whole(each.get("left_at_ns", 0)),
        )
        for name, each in facts["sections"].items()
    }
    return RankLine(
        iteration=_maybe(facts["iteration"]),
        done=_maybe(facts["done"]),
        open={name: _whole(opened_ns) for name, opened_ns in facts["open"].items()},
        sections=sections,
        details=_details(facts) if is_full else None,
        saves=_saves(facts.get("saves", ())),
        beside_ns=_whole(facts.get("beside_ns", 0)),  # lines of earlier releases have none, nor ``passed``
        passed=_maybe(facts.get("passed")),
    )


def _details(facts: Mapping[str, Any]) -> RankDetails:
    return RankDetails(
        local_rank=_whole(facts["local_rank"]),
        first_iteration=_maybe(facts["first_iteration"]),
        first_step_ns=_maybe(facts["first_step_ns"]),
        first_sign_ns=_maybe(facts["first_sign_ns"]),
        last_sign_ns=_maybe(facts["last_sign_ns"]),
        resumed_from=_maybe(facts["resumed_from"]),
        saved=_maybe(facts["saved"]),
        saves=_saves(facts["saves"]),
        longest_gap_ns=_whole(facts["longest_gap_ns"]),
        longest_heartbeat_gap_ns=_whole(facts["longest_heartbeat_gap_ns"]),
        limits={kind: LimitInForce(float(one["seconds"]), str(one["source"])) for kind, one in facts["limits"].items()},
        went_back=facts.get("went_back") is True,
    )


def _saves(rows: Iterable[Mapping[str, Any]]) -> tuple[Save, ...]:
    return tuple(
        Save(_whole(r["iteration"]), _whole(r["t_ns"]), _whole(r["checkpointing_ns"]), _maybe(r.get("done")))
        for r in rows
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{reprlib.repr(value)} is no whole number")
    if not -_BOUND <= value < _BOUND:
        raise ValueError(f"{reprlib.repr(value)} is beyond 64 bits")
    return value


def _bits(name: str) -> int:
    if not 0 <= (bits := int(name)) < _BITS:
        raise ValueError(f"{reprlib.repr(name)} is no length of a word in bits")
    return bits


def _maybe(value: object) -> int | None:
    return None if value is None else _whole(value)
