"""Files that somebody else appends to, damages, removes or makes anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.records import tail as tails
from launcher.records.tail import Tail


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_are_returned_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(str(path))
    assert tail.read() == []
    append(path, "one\ntwo\nthr")
    assert tail.read() == ["one", "two"]
    assert tail.read() == []
    append(path, "ee\n\nfour\n")
    assert tail.read() == ["three", "four"]


@pytest.mark.parametrize("how", ["removed", "renamed", "cut off", "replaced"])
def test_a_file_that_begins_anew_is_read_from_its_beginning(how: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, "one\ntwo, and half of a third")
    tail = Tail(str(path))
    assert tail.read() == ["one"]
    if how == "removed":
        path.unlink()
        assert tail.read() == []
        append(path, "three\n")
    elif how == "renamed":
        path.rename(tmp_path / "former")
        assert tail.read() == []
        append(path, "three\n")
    elif how == "cut off":
        path.write_text("three\n")
    else:
        (tmp_path / "new").write_text("three\n")
        os.replace(tmp_path / "new", path)
    assert tail.read() == ["three"]
    assert tail.is_anew
    assert tail.read() == []
    assert not tail.is_anew


def test_much_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_MOST_BYTES", 10)
    path = tmp_path / "events.jsonl"
    append(path, "".join(f"line {number}\n" for number in range(9)))
    tail, lines = Tail(str(path)), []
    while True:
        lines += tail.read()
        if tail.is_at_end:
            break
    assert lines == [f"line {number}" for number in range(9)]


def test_a_line_without_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_LONGEST_LINE_BYTES", 20)
    path = tmp_path / "events.jsonl"
    append(path, "x" * 30)
    tail = Tail(str(path))
    assert tail.read() == []
    assert tail.endless == 1
    append(path, "\nnext\n")
    assert tail.read() == ["next"]


def test_what_is_no_file_is_an_error_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(OSError, match="pipe"):
        Tail(str(tmp_path / "events.jsonl")).read()
