"""The report log, the pictures drawn from it, and the command line."""

import base64
import json
import re
import tracemalloc

import numpy as np
import pytest

from straggler.__main__ import main
from straggler.errors import ReportLogError
from straggler.reporting.cells import MISSING, SOME_MISSING, is_named, per_cent
from straggler.reporting.heatmap_html import page_data, write_html
from straggler.reporting.heatmap_png import write_png
from straggler.reporting.picture import MAX_NAMED, picture_of
from straggler.reporting.report_log import read, records
from straggler.simulation.reports import write_log
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown


def record(number, ranks, *, slow=(), since=0, unknown=(), at=None, per_node=4, **more):
    """A line of a log. ranks: slowdown of each in per mille; slow: who is named."""
    verdict = {"section": "forward", "since_report": since, "confidence": 0.99, "because": ""}
    verdicts = [
        {"rank": r, "node": f"node-{r // per_node}", "state": "SLOW", "slowdown": ranks[r] / 1000 - 1.0, **verdict}
        for r in slow
    ]
    verdicts += [{"rank": r, "node": "", "state": "UNKNOWN", "slowdown": None, **verdict} for r in unknown]
    nodes = [[f"node-{n}", per_node] for n in range(len(ranks) // per_node)]
    return {
        "format": "straggler-report",
        "version": 1,
        "sequence": number,
        "time": 1.7e9 + 60 * number if at is None else at,
        "ranks": ranks,
        "world_size": len(ranks),
        "nodes": nodes,
        "sections": {},
        "verdicts": verdicts,
        **more,
    }


def cells_of(data, name):
    """The cells of a block of the page, shape (rows, columns)."""
    return np.frombuffer(base64.b64decode(data[name]), dtype=np.uint8).reshape(-1, data["columns"])


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


def test_a_log_is_read_one_report_after_the_other(log, tmp_path):
    path = tmp_path / "missing.jsonl"
    with pytest.raises(ReportLogError, match=r"cannot be read from .*No such file"):
        next(records(path))
    reports = records(log)
    assert [next(reports)["sequence"] for _ in range(8)] == list(range(8))
    assert next(reports, None) is None


def test_lines_that_cannot_be_read_are_left_out_and_counted_once(log, tmp_path, caplog):
    first, *others = log.read_text().splitlines(keepends=True)
    path = tmp_path / "bad.jsonl"
    path.write_text(
        "".join([first, others[0][:200] + "\n", *others[1:], "\0" * 50 + "\n", "[" * 100_000 + "\n", "{}\n"])
    )
    assert [each["sequence"] for each in records(path)] == [0, *range(2, 8)]
    (said,) = caplog.messages
    assert said.startswith(f"{path}: left out 4 line(s) that cannot be read; the first: line 2 was cut off")


def test_a_log_of_zero_bytes_only_is_refused(tmp_path):
    path = tmp_path / "zeros.jsonl"
    path.write_bytes(b"\0" * 100 + b"\n")
    with pytest.raises(ReportLogError, match="holds no report: line 1 holds zero bytes only"):
        read(path)


def test_who_was_named_is_at_the_top_with_how_much_since_when_and_until_when():
    played = [record(n, [1000] * 8) for n in range(3)]
    played += [record(n, [1000, 1300 + n, *[1000] * 6], slow=[1] * (n >= 5), since=3) for n in range(3, 8)]
    played += [record(n, [1000] * 8) for n in range(8, 10)]
    data = page_data(picture_of(played))
    assert data["title"] == "8 ranks on 2 nodes, 10 reports over 9 min: nobody is slow at the end, 1 slow before"
    assert data["named"] == [
        [
            "rank 1",
            "node-0",
            "30.5 to 30.7 %",
            "forward",
            "Nov 14 22:16:20 (report 3)",
            "Nov 14 22:18:20 (report 5)",
            "Nov 14 22:20:20 (report 7)",
            "4 min",
            "",
        ]
    ]
    # Row among the named, row among all, since, named, until: what the outline and the mark are drawn by.
    assert data["spans"] == [[0, 1, 3, 5, 7]]
    assert data["namedRows"] == [["rank 1", "node-0"]]
    assert data["marks"] == [[1, "rank 1"]]
    (row,) = cells_of(data, "namedCells")
    assert [is_named(code) for code in row] == [False] * 5 + [True] * 3 + [False] * 2
    assert per_cent(int(row[7])) == 31


def test_who_is_still_slow_is_said_so():
    data = page_data(picture_of([record(n, [1000, 1300], slow=[1], since=0, per_node=2) for n in range(4)]))
    assert data["named"][0][6] == "the end, still slow"
    assert data["title"].endswith("1 slow at the end (1)")


def test_a_slow_node_is_one_entry_with_its_ranks_and_each_of_them_has_a_row():
    ranks = [1000] * 4 + [1150, 1120, 1130, 1140] + [1000] * 8
    data = page_data(picture_of([record(n, ranks, slow=[4, 5, 6, 7]) for n in range(4)]))
    assert [entry[:3] for entry in data["named"]] == [["4 of its 4 ranks (4-7)", "node-1", "12 to 15 %"]]
    assert [row[0] for row in data["namedRows"]] == ["rank 4", "rank 5", "rank 6", "rank 7"]
    assert data["marks"] == [[4, "node-1"]]


def test_named_ranks_that_have_no_row_are_counted():
    ranks = [1300 + n for n in range(200)] + [1000] * 400
    data = page_data(picture_of([record(n, ranks, slow=range(200)) for n in range(2)]))
    assert (len(data["namedRows"]), data["leftOut"]) == (MAX_NAMED, 200 - MAX_NAMED)
    assert data["namedRows"][0][0] == f"rank {200 - MAX_NAMED}"
    assert len(data["named"]) == 50


def test_a_healthy_fleet_has_one_colour():
    noise = np.random.default_rng(0)
    played = [record(n, [int(v) for v in 1000 + 15 * noise.standard_normal(64)]) for n in range(60)]
    picture = picture_of(played)
    assert len({tuple(picture.scale.palette()[code]) for code in np.unique(picture.overview)}) == 1
    assert picture.named == []


def test_one_named_rank_among_ten_thousand_stays_visible():
    ranks = [1000] * 10_000
    ranks[7777] = 1090
    picture = picture_of([record(n, ranks, slow=[7777], per_node=8) for n in range(3)])
    (row,) = (n for n, row in enumerate(picture.rows) if 7777 in row.ranks)
    assert len(picture.rows) <= 640
    assert all(is_named(code) for code in picture.overview[row])
    assert not any(is_named(code) for code in np.delete(picture.overview, row, axis=0).ravel())


def test_missing_windows_are_told_from_fast_and_slow():
    played = [record(n, [1000] * 256, per_node=8) for n in range(4)]
    played[1]["ranks"] = [None] * 8 + [None, *[1000] * 7] + [None, 1500, *[1000] * 6] + [500, *[1000] * 231]
    picture = picture_of(played)
    assert picture.overview[:2, 1].tolist() == [MISSING, SOME_MISSING]
    assert [per_cent(code) for code in picture.overview[2:5, 1].tolist()] == [50, -25, 0]
    shown = picture.scale.palette()[picture.overview[[0, 1, 2, 3, 4], 1]]
    assert len({tuple(colour) for colour in shown}) == 5


def test_a_rank_that_a_report_does_not_know_is_missing_in_it():
    picture = picture_of([record(0, [1000] * 4), record(1, [1000] * 8)])
    assert picture.overview[:, 0].tolist() == [picture.overview[0, 1]] * 4 + [MISSING] * 4


def test_a_time_without_reports_is_missing_and_does_not_join_two_runs():
    first = [record(n, [1000] * 4) for n in range(10)]
    again = [record(n, [1000] * 4, at=1.7e9 + 7200 + 60 * n) for n in range(10)]
    data = page_data(picture_of(first + again))
    assert data["gaps"] == [[10, 1, "no report for 1 h 51 min"]]
    assert (cells_of(data, "overview")[:, 10] == MISSING).all()
    assert (cells_of(data, "overview") == MISSING).sum() == 4
    assert [11.5, "Nov 15 00:13"] in data["ticks"]


def test_what_the_others_wait_is_drawn_where_the_log_says_it():
    played = [record(n, [1000] * 4, waited={"median": 0.66, "most": 0.67}) for n in range(2)]
    played.append(record(2, [1000] * 4, waited=None))
    data = page_data(picture_of(played))
    assert [list(base64.b64decode(row)) for row in data["waited"]] == [[66, 66, 255], [67, 67, 255]]
    assert page_data(picture_of([record(0, [1000] * 4)]))["waited"] is None


def test_the_png_is_a_png(log, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_png(picture_of(read(log)), tmp_path / "p.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 10_000


def test_the_page_needs_nothing_from_anywhere_else(log, tmp_path):
    page = write_html(picture_of(read(log)), tmp_path / "p.html").read_text()
    assert not re.findall(r"https?://|src=|@import|url\(|<link", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert (len(data["rows"]), data["columns"]) == (40, 8)
    assert data["namedRows"] == [["rank 17", "node-0002"]]


def test_a_name_cannot_break_out_of_the_page(log, tmp_path):
    reports = read(log)
    evil = "</script><script>alert(1)</script>"
    for line in reports:
        line["sections"] = {evil: next(iter(line["sections"].values()))}
    page = write_html(picture_of(reports), tmp_path / "p.html").read_text()
    assert page.count("<script") == 2 + page.count("<script>alert")
    assert "</script><script>alert" not in page


def test_a_single_report_and_no_sections_can_be_drawn(log, tmp_path):
    (line, *_) = read(log)
    line["sections"], line["ranks"] = {}, [None] * 40
    picture = picture_of([line])
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
    assert main(["simulate", "--ranks", "8", "--jobs", "1", "--slowdown", "-1"]) == 1
    assert "slowdown is -1.0; expected a number from -0.999" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "said"), [("other.txt", "it holds something else"), ("/dev/full", "No space left")])
def test_a_log_that_cannot_be_written_ends_the_simulation(path, said, tmp_path, capsys, caplog):
    (tmp_path / "other.txt").write_text("of another program\n")
    assert main(["simulate", "--ranks", "64", "--jobs", "1", "--log", str(tmp_path / path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "were not written to" in shown.err
    assert said in shown.err
    assert (tmp_path / "other.txt").read_text() == "of another program\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--share", "2"], "argument --share: 2 is not from 0 (nobody) to 1 (all ranks)"),
        (["--share", "-1"], "argument --share: -1 is not"),
        (["--jobs", "0"], "argument --jobs: 0 is below 1"),
        (["--onset", "-1"], "argument --onset: -1 is below 0"),
        (["--jobs", "x"], "argument --jobs: 'x' is no whole number"),
        (["--share", "x"], "argument --share: 'x' is no number"),
    ],
)
def test_what_cannot_be_simulated_is_refused(given, said, capsys):
    with pytest.raises(SystemExit):
        main(["simulate", *given])
    assert said in capsys.readouterr().err


def test_a_job_in_which_nobody_is_slowed_has_only_healthy_ranks(capsys):
    assert main(["simulate", "--ranks", "64", "--jobs", "3", "--share", "0"]) == 0
    assert capsys.readouterr().out == "3 jobs of 64 ranks, nobody slowed, 13 reports each: 0 healthy ranks named\n"


@pytest.mark.parametrize("name", ["half \ud83d of a pair", "tab\tand\nline", "<b>", r"$\frac$"])
def test_any_name_of_a_section_can_be_drawn(name, tmp_path):
    pytest.importorskip("matplotlib")
    sections = {name: {"median": 1000, "p90": 1020, "worst": 1300, "worst_rank": 1, "slow": 1}}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(record(0, [1000, 1300], slow=[1], since=0, per_node=2, sections=sections)) + "\n")
    assert main(["plot", str(path)]) == 0
    assert (tmp_path / "log.png").stat().st_size > 1000
    (tmp_path / "log.html").read_text(encoding="utf-8")


def test_the_command_evaluates_the_scoring(capsys, tmp_path):
    log = tmp_path / "s.jsonl"
    assert main(["simulate", "--ranks", "64", "--jobs", "2", "--log", str(log)]) == 0
    assert "F1 1.0000" in capsys.readouterr().out
    assert len(read(log)) == 13


@pytest.fixture
def day(tmp_path):
    """A log of a day of 4,096 ranks and three sections, three ranks of which become slow."""
    noise, path = np.random.default_rng(0), tmp_path / "day.jsonl"
    section = {"median": 1000, "p90": 1020, "worst": 1300, "worst_rank": 17, "slow": 1}
    with path.open("w") as file:
        for number in range(1440):
            ranks = np.round(1000 + 20 * noise.standard_normal(4096)).astype(int).tolist()
            ranks[17] = ranks[2050] = ranks[4090] = 1300
            slow = [17, 2050, 4090] if number > 700 else []
            sections = dict.fromkeys(("forward", "backward", "optimizer"), section)
            line = record(number, ranks, slow=slow, since=700, per_node=8, sections=sections)
            file.write(json.dumps(line) + "\n")
    return path


@pytest.mark.long
def test_a_day_of_4096_ranks_is_a_small_file_and_takes_little_memory(day, tmp_path):
    tracemalloc.start()
    try:
        path = write_html(picture_of(records(day)), tmp_path / "day.html")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size < 3_000_000
    assert most < 60_000_000
