"""The figures of a run, written by a launcher and read by a report."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from launcher.records.event_log import EventLog
from launcher.records.figures_log import FIGURES, LimitInForce, line_of_rank, read_figure_lines
from launcher.records.format_versions import UnknownVersionError
from launcher.records.log_records import warn_once
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CELL_SIZE,
    CLOSED,
    FIRST_REPORT,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    LIMITS_TEXT,
    NO_LIMIT,
    RESUMED_FROM,
    SAVED,
    STATE,
    WATCHED,
)
from resilience_core.protocol.figures import (
    BUCKETS,
    DONE,
    FIGURES_SIZE,
    LEFT,
    LEFT_AT,
    LEFT_OPENED,
    LEFT_TOOK,
    LONGEST,
    PASSED,
    TOOK,
    create_figures,
    figures_path,
    note_save,
    open_figures,
    row_of,
)
from resilience_core.protocol.figures_read import Save
from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument
from resilience_core.protocol.limits_text import write_limits


@pytest.fixture
def raw(tmp_path: Path) -> tuple[bytes, bytes]:
    """A cell and figures as a rank leaves them."""
    cell = Cell.create(str(tmp_path / "cell"), rank=5, generation=2)
    os.close(create_figures(figures_path(cell.path)))
    words, figures = cell.words, open_figures(figures_path(cell.path))
    word = cell.add_section("step")
    words[STATE], words[ITERATION], words[RESUMED_FROM], words[SAVED] = WATCHED, 17, 10, 15
    words[FIRST_REPORT], words[LAST_HEARTBEAT], words[LEFT_SECTION] = 90, 100, 150
    words[word + 1], words[word] = 200, NO_LIMIT
    entry = LimitEntry(2.0, "configured")
    document = LimitsDocument("relax", None, True, {"section step": entry}, {})
    cell.write_text(LIMITS_TEXT, write_limits(document, LIMITS_TEXT.size))
    row = row_of(figures, "step")
    figures[LEFT + row], figures[LEFT_TOOK + row] = 3, 7
    figures[LEFT_OPENED + row], figures[LEFT_AT + row] = 8, 9
    figures[PASSED] = 18
    figures[DONE], figures[TOOK + row], figures[LONGEST + row], figures[BUCKETS + 64 * row + 21] = 16, 9, 2, 16
    note_save(figures, 15, 140, 7, 14)
    return Path(cell.path).read_bytes(), Path(figures_path(cell.path)).read_bytes()


def test_a_line_says_what_the_rank_has_stored(raw: tuple[bytes, bytes], tmp_path: Path) -> None:
    found = line_of_rank(1, *raw)
    assert found is not None
    rank, facts = found
    log = EventLog(str(tmp_path), stem=FIGURES)
    log.write(FIGURES, 300, generation=2, is_full=True, is_last=True, ranks={str(rank): facts})
    (line,) = read_figure_lines(tmp_path)
    assert (line.t_ns, line.generation, line.is_full, line.is_last) == (300, 2, True, True)
    assert (line.node, bool(line.boot), bool(line.time)) == (os.uname().nodename, True, True)
    told = line.ranks[5]
    assert (told.iteration, told.done, told.passed, dict(told.open)) == (17, 16, 18, {"step": 200})
    assert told.sections["step"] == (16, 9, 2, 0, {21: 16}, 3, 7, 8, 9)
    details = told.details
    assert details is not None
    assert (details.local_rank, details.resumed_from, details.saved, details.saves) == (
        1,
        10,
        15,
        (Save(15, 140, 7, 14),),
    )
    assert (details.first_sign_ns, details.last_sign_ns, details.first_iteration) == (90, 200, None)
    assert dict(details.limits) == {"section step": LimitInForce(2.0, "configured")}


def test_a_rank_without_figures_is_told_by_its_cell(raw: tuple[bytes, bytes]) -> None:
    found = line_of_rank(1, raw[0], b"")
    assert found is not None
    assert (found[1]["iteration"], found[1]["done"], found[1]["sections"]) == (17, None, {})


@pytest.mark.parametrize("cell", [b"", bytes(CELL_SIZE)])
def test_a_cell_that_cannot_be_read_tells_nothing(cell: bytes) -> None:
    assert line_of_rank(0, cell, bytes(FIGURES_SIZE)) is None


def test_a_cell_that_makes_no_sense_tells_nothing(raw: tuple[bytes, bytes]) -> None:
    words = memoryview(bytearray(raw[0])).cast("q")
    words[STATE] = 77
    assert line_of_rank(0, words.tobytes(), raw[1]) is None


def test_before_its_first_sign_a_rank_has_none(tmp_path: Path) -> None:
    cell = Cell.create(str(tmp_path / "cell"), rank=5)
    cell.words[LEFT_SECTION] = CLOSED
    found = line_of_rank(0, Path(cell.path).read_bytes(), b"")
    assert found is not None
    assert (found[1]["last_sign_ns"], found[1]["iteration"]) == (None, None)


def test_a_line_that_is_not_full_has_no_details(raw: tuple[bytes, bytes], tmp_path: Path) -> None:
    log = EventLog(str(tmp_path), stem=FIGURES)
    sections = {"step": {"closed": 3, "took_ns": 4, "longest_ns": 2, "close_calls": 1}}
    facts = {"iteration": 3, "done": None, "open": {}, "sections": sections}
    log.write(FIGURES, generation=0, is_full=False, is_last=False, ranks={"0": facts})
    (line,) = read_figure_lines(tmp_path)
    assert (line.ranks[0].details, line.ranks[0].passed) == (None, None)
    assert line.ranks[0].sections["step"] == (3, 4, 2, 1, {}, 0, 0, 0, 0)  # as lines of earlier releases


def test_a_damaged_line_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    log = EventLog(str(tmp_path), stem=FIGURES)
    facts = {"iteration": 3, "done": "four", "open": {}, "sections": {}}
    log.write(FIGURES, generation=0, is_full=False, is_last=False, ranks={"0": facts})
    log.write(FIGURES, generation=0, is_full=False, is_last=False, ranks=7)
    log.write(FIGURES, generation=1, is_full=False, is_last=False, ranks={})
    log.write("lost", lines=3)
    with caplog.at_level(logging.WARNING):
        assert [line.generation for line in read_figure_lines(tmp_path)] == [1]
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "section",
    [
        {"closed": 1, "took_ns": 10**400, "longest_ns": 1, "close_calls": 0},
        {"closed": 1 << 63, "took_ns": 1, "longest_ns": 1, "close_calls": 0},
        {"closed": 1, "took_ns": 1, "longest_ns": 1, "close_calls": 0, "durations": {"10000000000": 1}},
    ],
)
def test_a_number_that_no_word_holds_is_damage(tmp_path: Path, section: dict[str, object]) -> None:
    log = EventLog(str(tmp_path), stem=FIGURES)
    facts = {"iteration": 3, "done": 2, "open": {}, "sections": {"step": section}}
    log.write(FIGURES, generation=0, is_full=False, is_last=False, ranks={"0": facts})
    assert read_figure_lines(tmp_path) == []


def test_a_folder_of_an_older_release_has_no_figures(tmp_path: Path) -> None:
    EventLog(str(tmp_path)).write("began")
    assert read_figure_lines(tmp_path) == []


def test_figures_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "figures.jsonl").write_text('{"event": "figures", "t_ns": 1, "version": 99}\n')
    with pytest.raises(UnknownVersionError, match=r"figures\.jsonl has version 99"):
        read_figure_lines(tmp_path)
