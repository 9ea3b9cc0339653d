"""Lines of a log of reports with a field that is none: left out and told of, and no picture falls over one."""

import copy
import json
import logging
import math

import pytest

from straggler.__main__ import main
from straggler.reporting.report_log import read
from straggler.reporting.report_records import check_fields

SOUND = {
    "format": "straggler-report",
    "version": 1,
    "sequence": 3,
    "time": 1_790_000_000.5,
    "elapsed": 0.01,
    "world_size": 3,
    "coverage": 1.0,
    "ranks": [1000, None, 1500],
    "nodes": [["a", 2], ["b", 1]],
    "sections": {"forward": {"median": 1000, "p90": 1400, "worst": 1500, "worst_rank": 2, "slow": 1}},
    "verdicts": [
        {
            "rank": 2,
            "node": "b",
            "state": "SLOW",
            "slowdown": 0.5,
            "section": "forward",
            "since_report": 1,
            "confidence": 0.99,
            "because": None,
        }
    ],
    "waited": {"median": 0.3, "most": 0.4},
    "notes": [],
}

DAMAGES = [
    ("time", 1e308),
    ("time", -1.0),
    ("time", math.nan),
    ("time", "x"),
    ("sequence", -1),
    ("sequence", 10**30),
    ("sequence", 1.5),
    ("ranks", [1000, {}]),
    ("ranks", [1000, 10**30, 1]),
    ("ranks", [-1, 1, 1]),
    ("ranks", [True, 1, 1]),
    ("ranks", 7),
    ("nodes", [["a", "x"]]),
    ("nodes", [["a", 10**9]]),
    ("nodes", [["a", -1]]),
    ("nodes", [[1, 1]]),
    ("nodes", [["a"]]),
    ("nodes", "a"),
    ("sections", {"forward": math.inf}),
    ("sections", {"forward": {"median": 1}}),
    ("sections", []),
    ("verdicts", math.nan),
    ("verdicts", [7]),
    ("verdicts", [{}]),
    ("waited", {"median": "x", "most": 1.0}),
    ("waited", 7),
]


def changed(name, value):
    return {**copy.deepcopy(SOUND), name: value}


def test_a_sound_line_is_a_record():
    assert check_fields(copy.deepcopy(SOUND)) == SOUND
    assert check_fields(changed("waited", None))["waited"] is None
    without = copy.deepcopy(SOUND)
    del without["waited"]
    assert "waited" not in check_fields(without)


@pytest.mark.parametrize(("name", "value"), DAMAGES)
def test_a_line_with_a_damaged_field_is_left_out(tmp_path, caplog, name, value):
    log = tmp_path / "log.jsonl"
    lines = [SOUND, changed(name, value), changed("sequence", 4)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with caplog.at_level(logging.WARNING):
        assert [record["sequence"] for record in read(log)] == [3, 4]
    assert f"left out 1 line(s) that cannot be read; the first: line 2 is damaged: its {name!r} " in caplog.text


@pytest.mark.parametrize("name", ["rank", "node", "state", "slowdown", "section", "since_report", "because"])
@pytest.mark.parametrize("how", ["missing", "a list"])
def test_a_verdict_with_a_damaged_field_is_none(name, how):
    record = copy.deepcopy(SOUND)
    if how == "missing":
        del record["verdicts"][0][name]
    else:
        record["verdicts"][0][name] = []
    with pytest.raises(ValueError, match="its 'verdicts' is "):
        check_fields(record)


def test_a_verdict_on_a_rank_that_there_is_not_is_none():
    record = copy.deepcopy(SOUND)
    record["verdicts"][0]["rank"] = len(record["ranks"])
    with pytest.raises(ValueError, match=r"a verdict is on rank \d+ of \d+"):
        check_fields(record)


def test_a_line_that_is_there_twice_is_one_report_and_older_ones_are_told(tmp_path, caplog):
    log = tmp_path / "log.jsonl"
    lines = [{**SOUND, "sequence": number, "time": SOUND["time"] + 60.0 * number} for number in range(4)]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:2], lines[1], *lines[2:]]))
    with caplog.at_level(logging.WARNING):
        assert [record["sequence"] for record in read(log)] == [0, 1, 2, 3]
    assert (
        "left out 1 line(s) that cannot be read; the first: line 3 is that of the line before once more" in caplog.text
    )
    caplog.clear()
    log.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    with caplog.at_level(logging.WARNING):
        assert [record["sequence"] for record in read(log)] == [3, 2, 1, 0]
    assert "3 line(s) are older than the line before, the first is line 2: is it put together" in caplog.text


@pytest.mark.parametrize("slowdown", [math.inf, math.nan])
def test_a_slowdown_that_is_not_finite_is_none(slowdown):
    record = copy.deepcopy(SOUND)
    record["verdicts"][0]["slowdown"] = slowdown
    with pytest.raises(ValueError, match="its 'verdicts' is "):
        check_fields(record)


@pytest.mark.parametrize("name", ["sequence", "time", "ranks", "nodes", "sections", "verdicts"])
def test_a_line_without_a_field_is_none(name):
    record = copy.deepcopy(SOUND)
    del record[name]
    with pytest.raises(ValueError, match=f"its '{name}' is missing"):
        check_fields(record)


def test_a_picture_is_drawn_of_what_is_left(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    lines = [SOUND, *(changed(name, value) for name, value in DAMAGES), changed("sequence", 4)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["plot", str(log), "--only", "html"]) == 0
    assert (tmp_path / "log.html").stat().st_size > 0
