"""``--tee`` copies the bytes that a rank wrote, with torch's prefix in front of each piece."""

from __future__ import annotations

import io
import os
import re
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from launcher.workers import tee
from launcher.workers.tee import _CHUNK, _LINE, ByteTail, _Pieces, finish_copies, keep_bytes

GARBAGE = b"\xff\xfe\x00\x1b[31m\n" + bytes(range(256)) + b"\n"
BAR = b"".join(b"\r%3d%%" % n for n in range(101))
OUTPUTS = [
    b"",
    b"one\ntwo\n",
    b"no end of line",
    b"\r\n\r\n\n\r",
    GARBAGE,
    BAR + b"\n" + BAR,
    b"x" * (3 * _CHUNK) + b"\nafter\n",
    b"x" * (_LINE + _CHUNK) + b"\nafter\n",
]


class Stream:
    """A stream as ``sys.stdout`` is one, that remembers each write."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()


def tail_of(file: Path, stream: object) -> TailLog:
    context = types.SimpleNamespace(tails=[TailLog("default", {0: str(file)}, stream, {0: "[default0]:"}, 0.01)])  # type: ignore[arg-type]
    keep_bytes(context)
    (tail,) = context.tails
    assert type(tail) is ByteTail
    return tail


def end(tail: TailLog) -> None:
    """Copy to the end: on a busy machine a copy may take longer than ``stop`` waits for it."""
    tail.stop()
    finish_copies(lambda: False)


@pytest.mark.parametrize(
    ("output", "size"),
    [(output, size) for output in OUTPUTS for size in (7, 4096, 1 << 20) if size > 7 or len(output) < 5000],
)
def test_every_byte_is_copied_however_it_comes(tmp_path: Path, output: bytes, size: int) -> None:
    file, stream = tmp_path / "stdout.log", Stream()
    tail = tail_of(file, stream).start()
    with open(file, "wb", buffering=0) as rank:
        rank.writelines(output[start : start + size] for start in range(0, len(output), size))
    end(tail)

    assert stream.buffer.getvalue().replace(b"[default0]:", b"") == output


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("size", [1, 2, 5, 1 << 20])
def test_where_a_prefix_stands_does_not_depend_on_how_it_comes(output: bytes, size: int) -> None:
    output = output[:5000]
    pieces, made = _Pieces(b"[0]:", lambda _: True), b""
    for start in range(0, len(output), size):
        made += b"".join(pieces.of(output[start : start + size], is_last=False))
    made += b"".join(pieces.of(b"", is_last=True))

    lines = re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", output)
    assert made == b"".join(b"[0]:" + line for line in lines)


class EndsWhenAsked(threading.Event):
    """A rank that writes its last words, and ends, just before a certain look at whether it has."""

    def __init__(self, file: Path, look: int) -> None:
        super().__init__()
        self.file, self.asked, self.look = file, 0, look
        self.has_ended = threading.Event()

    def is_set(self) -> bool:
        self.asked += 1
        if self.asked == self.look:
            self.file.write_bytes(b"last words")
            self.has_ended.set()
        return self.asked >= self.look


@pytest.mark.parametrize(("look", "is_there"), [(1, False), (2, False), (1, True), (2, True), (3, True), (4, True)])
def test_what_a_rank_writes_right_before_its_end_is_not_lost(tmp_path: Path, look: int, is_there: bool) -> None:
    file, stream = tmp_path / "stdout.log", Stream()
    if is_there:
        file.touch()
    tail = tail_of(file, stream)
    rank = EndsWhenAsked(file, look)
    tail._finished_events[0] = rank
    tail.start()
    assert rank.has_ended.wait(60)
    end(tail)
    assert stream.buffer.getvalue() == b"[default0]:last words"


def test_lines_that_are_filtered_out_take_their_prefix_with_them() -> None:
    pieces = _Pieces(b"[0]:", lambda line: "loss" in line)
    assert b"".join(pieces.of(b"loss 1\nnoise\r\nloss 2\nnoi", is_last=False)) == b"[0]:loss 1\n[0]:loss 2\n"
    assert list(pieces.of(b"se", is_last=True)) == []


def test_what_is_written_in_one_go_is_whole_pieces() -> None:
    """What others write into the same pipe comes between two of them."""
    pieces = _Pieces(b"[0]:", lambda _: True)
    made = list(pieces.of(b"".join(b"line %d\n" % n for n in range(5000)), is_last=False))
    assert len(made) > 10
    assert all(raw.endswith(b"\n") and len(raw) <= 4096 for raw in made)


def test_a_long_line_is_written_whole_however_it_comes() -> None:
    pieces, line = _Pieces(b"[0]:", lambda _: True), b"x" * (_LINE - 1) + b"\n"
    made = [raw for start in range(0, _LINE, _CHUNK) for raw in pieces.of(line[start : start + _CHUNK], is_last=False)]
    assert made == [b"[0]:" + line]


def test_a_line_without_end_is_not_kept_without_bound() -> None:
    pieces, chunk = _Pieces(b"[0]:", lambda _: True), b"x" * _CHUNK
    made = [raw for _ in range(_LINE // _CHUNK) for raw in pieces.of(chunk, is_last=False)]
    assert made == [b"[0]:" + b"x" * _LINE]


def test_a_tail_of_a_torch_that_keeps_other_names_stays_its_own() -> None:
    tail = TailLog("default", {0: "stdout.log"}, Stream(), {0: "[default0]:"}, 0.01)  # type: ignore[arg-type]
    del tail._finished_events
    keep_bytes(types.SimpleNamespace(tails=[tail]))
    assert type(tail) is TailLog


def test_a_stream_without_bytes_gets_text(tmp_path: Path) -> None:
    file, stream = tmp_path / "stdout.log", io.StringIO()
    file.write_bytes(b"a\xff\n")
    tail = tail_of(file, stream).start()
    end(tail)
    assert stream.getvalue() == "[default0]:a\ufffd\n"


def test_a_file_that_never_comes_holds_up_nobody(tmp_path: Path) -> None:
    stream = Stream()
    tail = tail_of(tmp_path / "none.log", stream).start()
    end(tail)
    assert stream.buffer.getvalue() == b""
    assert os.listdir(tmp_path) == []


# ---- nobody reads --------------------------------------------------------------------------------------

TOO_MUCH = 1 << 18
"""More than a pipe takes, which is 64 KiB."""


class Unread:
    """A pipe as a stream, and a rank's file with more than it takes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "stdout.log"
        self.file.write_bytes(b"line\n" * (TOO_MUCH // 5))
        self._read_end, write_end = os.pipe()
        self.stream = open(write_end, "w")  # noqa: SIM115
        self.tail = tail_of(self.file, self.stream)
        self.got = b""
        self._reader = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while chunk := os.read(self._read_end, 1 << 16):
            self.got += chunk

    def close(self) -> None:
        """Let what is left be written, and end."""
        if self.stream.closed:
            return
        self._reader.start()
        finish_copies(lambda: False)
        self.stream.close()
        self._reader.join(60)
        os.close(self._read_end)


@pytest.fixture
def unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unread]:
    monkeypatch.setattr("launcher.workers.tee._said", set())
    made = Unread(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("why", ["_LONGEST_STOP_SECONDS", "_BLOCKED_SECONDS"])
def test_a_copy_that_nobody_reads_or_that_takes_long_holds_nobody_up_and_follows(
    unread: Unread, why: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tee, why, 1e9)
    stopping = threading.Thread(target=unread.tail.start().stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert unread.tail.stopped()
    said = capfd.readouterr().err
    assert "the output of ranks (--tee) is not read, or more slowly than it comes; it follows as it is read" in said
    assert "restarts wait for half a second at most (said once)" in said

    following = tail_of(unread.file, unread.stream).start()  # of the next generation
    following.stop()
    assert capfd.readouterr().err == "", "said once"

    unread.close()
    assert unread.got.replace(b"[default0]:", b"") == 2 * unread.file.read_bytes()


@pytest.mark.parametrize("is_hurried", [True, False])
def test_the_end_does_not_wait_for_a_reader_for_ever(
    unread: Unread, is_hurried: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        other = "_STILL_SECONDS" if is_hurried else "_STILL_SECONDS_AFTER_A_SIGNAL"
        patched.setattr(tee, other, 1e9)
        patched.setattr(tee, "_STILL_SECONDS_AFTER_A_SIGNAL" if is_hurried else "_STILL_SECONDS", 0.05)
        unread.tail.start().stop()
        finish_copies(lambda: is_hurried)
    said = capfd.readouterr().err
    assert "the output of 1 file(s) of ranks was not copied to its end (--tee): nobody reads it" in said


@pytest.mark.parametrize("longest_stop_seconds", [30.0, -1.0])
def test_copies_that_fail_are_said_once_also_where_nobody_waited_for_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, longest_stop_seconds: float
) -> None:
    monkeypatch.setattr(tee, "_LONGEST_STOP_SECONDS", longest_stop_seconds)
    monkeypatch.setattr(tee, "_said", {"left"})
    for name in ("0", "1"):
        (tmp_path / name).write_bytes(b"line\n")
    with open("/dev/full", "w") as full:
        for name in ("0", "1"):
            end(tail_of(tmp_path / name, full).start())
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what it has kept goes there
    said = capfd.readouterr().err
    assert (
        said.count("the output of ranks cannot be copied any more (--tee): [Errno 28] No space left on device; ") == 1
    )
    assert said.count("--tee") == 1


# ---- one pipe for several ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize("buffering", [-1, 0])
def test_long_lines_of_several_ranks_do_not_mix_in_a_pipe(tmp_path: Path, buffering: int) -> None:
    """Which takes 64 KiB at once. Without a buffer Python leaves what is more to the kernel."""
    read_end, write_end = os.pipe()
    streams = [io.TextIOWrapper(open(os.dup(write_end), "wb", buffering), write_through=True) for _ in "12"]  # noqa: SIM115
    os.close(write_end)
    lines = {str(n): bytes([65 + n]) * 200_000 + b"\n" for n in range(4)}
    tails = []
    for n, (name, line) in enumerate(lines.items()):
        (tmp_path / name).write_bytes(20 * line)
        tails.append(tail_of(tmp_path / name, streams[n % 2]).start())
    got = bytearray()

    def read() -> None:
        while chunk := os.read(read_end, 1 << 16):
            got.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    for tail in tails:
        end(tail)
    for stream in streams:
        stream.close()
    reader.join(60)
    os.close(read_end)
    assert sorted(bytes(got).splitlines()) == sorted(
        b"[default0]:" + line[:-1] for line in lines.values() for _ in "x" * 20
    )
