"""Source is read for a verdict: each file once, within a bound, and never by whoever asks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents import source_lines
from launcher.incidents.frames import Frame
from launcher.incidents.source_lines import SourceReader
from launcher.processes.background import Background

PATIENCE = 180.0


def frame(path: Path, line: int) -> Frame:
    return Frame("step", path.name, line, path=str(path))


def test_lines_are_read_by_path_and_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "train.py", []
    path.write_text("first\n\x0csecond \\x85\nthird")  # a form feed ends no line of Python
    original = source_lines._source
    monkeypatch.setattr(source_lines, "_source", lambda each, newest: (read.append(each), original(each, newest))[1])
    frames = [frame(path, line) for line in (1, 2, 3, 4, 0)] + [frame(tmp_path / "none.py", 1), frame(tmp_path, 1)]

    found = SourceReader().lines([*frames, *frames], PATIENCE)

    assert [found[each] for each in frames] == ["first", "\x0csecond \\x85", "third", "", "", "", ""]
    assert len(read) == 3
    assert SourceReader().lines([Frame("step", "a\0b", 1)], PATIENCE) == {Frame("step", "a\0b", 1): ""}


def test_what_was_changed_since_it_was_read_tells_nothing(tmp_path: Path) -> None:
    """A line that was moved to where the culprit stands made a victim of it."""
    path = tmp_path / "train.py"
    path.write_text("work.wait()\n")
    changed = path.stat().st_mtime
    assert SourceReader().lines([frame(path, 1)], PATIENCE, changed + 0.01) == {frame(path, 1): "work.wait()"}
    assert SourceReader().lines([frame(path, 1)], PATIENCE, changed - 10) == {}
    os.utime(path, (0, 0))  # put in its place with the time of an older version
    assert SourceReader().lines([frame(path, 1)], PATIENCE, changed - 10) == {}


def test_a_file_that_does_not_answer_leaves_out_itself_and_what_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, hangs, opened = tmp_path / "good.py", tmp_path / "hangs.py", threading.Event()
    good.write_text("work.wait()\n")
    original = source_lines._source

    def hanging(path: str, newest: float) -> list[str] | None:
        if path == str(hangs):
            assert opened.wait(PATIENCE)
        return original(path, newest)

    monkeypatch.setattr(source_lines, "_source", hanging)
    try:
        for _ in range(60):  # a busy machine may not have come as far
            reader = SourceReader()
            found = reader.lines([frame(good, 1), frame(hangs, 1)], 0.5)
            if found:
                break
        assert found == {frame(good, 1): "work.wait()"}
        for _ in range(20):  # and nothing piles up
            assert reader.lines([frame(good, 1)], 0.5) == {}
    finally:
        opened.set()


def test_without_a_thread_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks must not be the one who waits for a disk."""

    def refused(*_: Any) -> None:
        """As with pids.max."""

    monkeypatch.setattr(Background, "start", refused)
    path = tmp_path / "train.py"
    path.write_text("work.wait()\n")
    assert SourceReader().lines([frame(path, 1)], PATIENCE) == {}
