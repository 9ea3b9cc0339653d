"""A message begins on a line of its own where copies of what ranks write go to the same place; copies stay whole."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from launcher.records import console, shared_output
from launcher.records.shared_output import Output, output_of


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_output, "_outputs", {})
    monkeypatch.setattr(shared_output, "_shared", [])


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[TextIO]:
    with open(tmp_path / "said", "a") as stream:
        yield stream


def announce(stream: TextIO, *lines: str) -> None:
    with contextlib.redirect_stderr(stream):
        console.announce(*lines)


def end_line(stream: TextIO) -> None:
    with contextlib.redirect_stderr(stream):
        console.end_line()


def copy(stream: TextIO, raw: bytes) -> None:
    with output_of(stream).copying(raw):
        os.write(stream.fileno(), raw)


def said(stream: TextIO) -> bytes:
    return Path(stream.name).read_bytes()


@pytest.mark.parametrize("end", [b"", b"\r", b"\n", b"\r\n"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_begins_on_a_line_of_its_own(
    stream: TextIO, end: bytes, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console._console, "speaker", console.Speaker(format=form))
    announce(stream, "before")
    copy(stream, b"[default0]:tail" + end)
    announce(stream, "first", "second")
    announce(stream, "third")
    lines = said(stream).split(b"\n")
    assert lines[1] == b"[default0]:tail" + end.removesuffix(b"\n")
    ours = [lines[0], *lines[2:-1]]
    if form == "json":
        assert [json.loads(line)["text"] for line in ours] == ["before", "first\nsecond", "third"]
    else:
        assert ours == [b"ft_launcher: " + each for each in (b"before", b"first", b"second", b"third")]
    assert lines[-1] == b""


def test_a_line_is_ended_at_the_end_and_only_where_it_is_not_yet(stream: TextIO) -> None:
    end_line(stream)
    assert said(stream) == b""
    copy(stream, b"tail")
    for _ in range(2):
        end_line(stream)
    assert said(stream) == b"tail\n"


def test_a_copy_that_is_broken_off_is_taken_for_one_in_mid_line(stream: TextIO) -> None:
    with pytest.raises(OSError), output_of(stream).copying(b"line\n"):  # noqa: PT011
        raise OSError
    assert output_of(stream).is_in_mid_line


def test_standard_output_and_standard_error_may_be_one_place(stream: TextIO, tmp_path: Path) -> None:
    with open(stream.name, "a") as other:
        copy(other, b"tail")
    announce(stream, "message")
    assert said(stream) == b"tail\nft_launcher: message\n"


def test_copies_elsewhere_do_not_count(stream: TextIO, tmp_path: Path) -> None:
    with open(tmp_path / "stdout", "w") as other:
        copy(other, b"tail")
        announce(stream, "message")
    assert said(stream) == b"ft_launcher: message\n"


def test_a_message_goes_before_the_next_piece_of_a_copy() -> None:
    output, begun, goes_on = Output(), threading.Event(), threading.Event()
    order: list[str] = []

    def copies() -> None:
        for number in range(3):
            with output.copying(b"piece\n"):
                order.append(f"piece {number}")
                begun.set()
                goes_on.wait(60)

    copying = threading.Thread(target=copies)
    copying.start()
    assert begun.wait(60)

    def speaks() -> None:
        with output.speaking(None):
            order.append("message")

    speaking = threading.Thread(target=speaks)
    speaking.start()
    while not output._messages_waiting:
        pass
    goes_on.set()
    for thread in (speaking, copying):
        thread.join(60)
    assert order == ["piece 0", "message", "piece 1", "piece 2"]


def test_a_message_that_may_not_wait_is_written_in_any_case() -> None:
    output = Output()
    begins: list[bytes] = []

    def speaks() -> None:
        with output.speaking(0.01) as end_of_line:
            begins.append(end_of_line)

    with output.copying(b"piece\n"):
        speaking = threading.Thread(target=speaks, daemon=True)
        speaking.start()
        speaking.join(30)
        assert begins == [b"\n"]
        assert output._is_taken
    assert not output._is_taken


OTHER = """
import os, sys
from launcher.records import console
console.start(int(sys.argv[1]))
os.write(1, b"ready\\n")
sys.stdin.readline()
console.announce("of another process")
console.finish(60)
os._exit(0)
"""


@pytest.fixture
def other(stream: TextIO) -> Iterator[subprocess.Popen[bytes]]:
    """Another process of ours, which speaks when it is told to."""
    with contextlib.redirect_stderr(stream):
        shared_output.share()
    descriptor = shared_output.shared_descriptor()
    assert descriptor is not None
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(descriptor)], stdin=-1, stdout=-1, stderr=stream, pass_fds=[descriptor]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()
    os.close(descriptor)


def test_another_process_knows_whether_a_copy_has_come_in_mid_line(
    stream: TextIO, other: subprocess.Popen[bytes]
) -> None:
    copy(stream, b"tail")
    other.communicate(b"\n", timeout=60)
    assert said(stream) == b"tail\nft_launcher: of another process\n"
    assert not output_of(stream).is_in_mid_line


def test_another_process_waits_for_a_copy_to_be_written(stream: TextIO, other: subprocess.Popen[bytes]) -> None:
    with output_of(stream).copying(b"first\n"):
        assert other.stdin is not None
        other.stdin.write(b"\n")
        other.stdin.flush()
        os.write(stream.fileno(), b"fir")
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.1)
        os.write(stream.fileno(), b"st\n")
    other.wait(60)
    assert said(stream) == b"first\nft_launcher: of another process\n"


def test_nobody_waits_for_a_process_that_is_stopped(stream: TextIO, other: subprocess.Popen[bytes]) -> None:
    with output_of(stream).copying(b"first\n"):
        os.write(stream.fileno(), b"fir")
        other.communicate(b"\n", timeout=60)
    assert said(stream) == b"fir\nft_launcher: of another process\n"


FILLED = """
import resource, signal, sys
from launcher.records import console
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
if sys.argv[1] == "thread":
    console.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), most))
console.announce("first " + "x" * 100)
console.finish(30)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
console.announce("second")
console.finish(30)
"""


@pytest.mark.parametrize("how", ["thread", "at once"])
@pytest.mark.parametrize("room", [0, 50])
def test_a_message_after_one_that_was_cut_off_begins_on_a_line_of_its_own(tmp_path: Path, how: str, room: int) -> None:
    """A limit of the size of files stands for a full disk; with no room at all there is no line to be ended."""
    path = tmp_path / "stderr"
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", FILLED, how, str(room)], stderr=file, check=True, timeout=60)
    lines = path.read_text().splitlines()
    assert [len(line) for line in lines[:-2]] == ([room] if room else [])
    assert lines[-2].endswith("1 line(s) could not be written here")
    assert lines[-1].endswith("second")
