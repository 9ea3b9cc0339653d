"""The report log, the pictures drawn from it, and the command line."""

import json
import re

import numpy as np
import pytest

from straggler.__main__ import main
from straggler.errors import ReportLogError
from straggler.reporting.heatmap_html import write_html
from straggler.reporting.heatmap_png import bin_ranks, picture_of, write_png
from straggler.reporting.report_log import read
from straggler.simulation.reports import write_log
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "reports.jsonl"
    write_log(
        SimulatedJob(
            ranks=40, windows=8, slowdowns=(SimulatedSlowdown(kind="slow_rank", rank=17, slowdown=0.5, onset=2),)
        ),
        path,
    )
    return path


def test_a_log_holds_one_versioned_line_a_report(log):
    records = read(log)
    assert [record["sequence"] for record in records] == list(range(8))
    assert {(record["format"], record["version"]) for record in records} == {("straggler-report", 1)}
    assert records[-1]["ranks"][17] > 1400
    assert records[-1]["nodes"] == [[f"node-{n:04d}", 8] for n in range(5)]
    assert [verdict["rank"] for verdict in records[-1]["verdicts"]] == [17]


def test_a_line_cut_by_a_kill_is_left_out_and_said(log, tmp_path, caplog):
    cut = tmp_path / "cut.jsonl"
    cut.write_text(log.read_text()[:-100])
    assert len(read(cut)) == 7
    assert "line 8 ends in mid-line" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no report"),
        ("x\n{}\n", "line 1 is not JSON"),
        ("{}\n", "is not a straggler-report"),
        ("[]\n", "is not a straggler-report"),
        ('{"format": "straggler-report", "version": 2}\n', "version 2; this reads 1"),
    ],
)
def test_what_is_no_log_is_refused_with_the_line(tmp_path, text, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ReportLogError, match=said):
        read(path)


def test_one_slow_rank_among_ten_thousand_stays_visible():
    slowdown = np.zeros((10_000, 3))
    slowdown[7777, 1] = 0.5
    slowdown[:100, 2] = np.nan
    binned, per_row = bin_ranks(slowdown, 450)
    assert per_row == 23
    assert binned.shape[0] <= 450
    assert binned[7777 // per_row, 1] == 0.5
    assert np.isnan(binned[0, 2])
    assert not np.isnan(binned[-1, 2])


def test_the_png_is_a_png(log, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_png(picture_of(read(log)), tmp_path / "p.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 10_000


def test_the_page_needs_nothing_from_anywhere_else(log, tmp_path):
    page = write_html(picture_of(read(log)), tmp_path / "p.html").read_text()
    assert not re.findall(r"https?://|src=|@import|url\(|<link", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert (data["ranks"], data["reports"]) == (40, 8)
    assert data["slow"][-1][0] == 17


def test_a_name_cannot_break_out_of_the_page(log, tmp_path):
    records = read(log)
    evil = "</script><script>alert(1)</script>"
    for record in records:
        record["sections"] = {evil: next(iter(record["sections"].values()))}
    page = write_html(picture_of(records), tmp_path / "p.html").read_text()
    assert page.count("<script") == 2 + page.count("<script>alert")
    assert "</script><script>alert" not in page


def test_a_single_report_and_no_sections_can_be_drawn(log, tmp_path):
    (record, *_) = read(log)
    record["sections"], record["ranks"] = {}, [None] * 40
    picture = picture_of([record])
    write_html(picture, tmp_path / "p.html")
    pytest.importorskip("matplotlib")
    write_png(picture, tmp_path / "p.png")


def test_the_command_draws_both(log, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["plot", str(log), "--png", str(tmp_path / "a.png"), "--html", str(tmp_path / "a.html")]) == 0
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.split()] == ["a.png", "a.html"]
    assert (tmp_path / "a.html").exists()


def test_the_command_says_what_is_wrong(capsys, tmp_path):
    assert main(["plot", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl: No such file" in capsys.readouterr().err
    assert main(["simulate", "--ranks", "1", "--jobs", "1"]) == 1
    assert "ranks is 1" in capsys.readouterr().err


def test_the_command_evaluates_the_scoring(capsys, tmp_path):
    log = tmp_path / "s.jsonl"
    assert main(["simulate", "--ranks", "64", "--jobs", "2", "--log", str(log)]) == 0
    assert "F1 1.0000" in capsys.readouterr().out
    assert len(read(log)) == 13
