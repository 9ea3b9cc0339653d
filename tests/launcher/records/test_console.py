"""What is said to people never raises, never blocks, and what is lost is counted."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.processes.background import Background
from launcher.records import console, log_records

PROGRAM = """
import os, sys
from launcher.records import console
if sys.argv[1] == "thread":
    console.start()
for number in range(4000):
    console.announce(f"line {number} " + "x" * 200)
console.finish(float(sys.argv[2]))
os.write(1, b"done %d\\n" % console.unwritten_lines())
console.finish(30)
sys.stdin.readline()
console.announce("somebody reads again")
console.finish(30)
os.write(1, b"end %d\\n" % console.unwritten_lines())
os._exit(0)
"""


@contextlib.contextmanager
def speaker(how: str, patience: float, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, str(patience)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(reader: int, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        said += os.read(reader, 1 << 20)
    return said


def reported_as_lost(said: bytes) -> int:
    return sum(map(int, re.findall(rb"^ft_launcher: (\d+) line\(s\) could not be written here$", said, re.MULTILINE)))


def accounted_for(said: bytes) -> int:
    """How many lines were written or reported; the last of them may be either."""
    return len(re.findall(rb"^ft_launcher: line \d+ x{200}\n", said, re.MULTILINE)) + reported_as_lost(said)


def available(reader: int) -> bytes:
    os.set_blocking(reader, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while True:
            parts.append(os.read(reader, 1 << 20))
    os.set_blocking(reader, True)
    return b"".join(parts)


@pytest.mark.parametrize("how", ["thread", "at once"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_standard_error_that_nobody_reads_holds_up_nobody(how: str, kind: str) -> None:
    if kind == "pipe":
        reader, writer = os.pipe()
    else:
        ends = socket.socketpair()
        reader, writer = ends[0].detach(), ends[1].detach()
    with speaker(how, 0.1, writer) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith(b"done")
        said = b""
        while how == "thread" and accounted_for(said) < 4000:
            said += os.read(reader, 1 << 20)
        said += available(reader)
        process.stdin.write(b"\n")
        process.stdin.flush()
        said += read_until(reader, b"somebody reads again\n")
        assert process.stdout.readline() == b"end 0\n"
    os.close(reader)
    assert reported_as_lost(said) > 1000
    assert accounted_for(said) == 4000


WAITS = """
import os, sys
from launcher.records import console
console.start()
for number in range(3):
    console.announce(f"line {number}", "its second line")
os.write(1, b"%d " % console.unwritten_lines())
sys.stdin.readline()
console.finish(60)
os.write(1, b"%d" % console.unwritten_lines())
os._exit(0)
"""


def test_lines_that_wait_for_a_reader_are_not_written_yet() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=-1, stdout=-1, stderr=writer) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdin is not None
        told = os.read(process.stdout.fileno(), 10)
        said = read_until(reader, b"line 2\nft_launcher: its second line\n")
        assert told == b"6 "
        process.stdin.close()
        assert process.stdout.read() == b"0"
    os.close(reader)
    assert said.count(b"ft_launcher: line") == 3


@pytest.mark.parametrize("how", ["thread", "at once"])
def test_a_full_disk_and_a_reader_that_has_gone_cost_lines_only(how: str) -> None:
    reader, gone = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for stderr in (full, gone):
        with speaker(how, 30, stderr) as process:
            assert process.stdout is not None
            lost = int(process.stdout.readline().split()[1])
            assert lost == 4000
        os.close(stderr)


def test_lines_in_one_call_stay_together_with_their_prefix(capfd: pytest.CaptureFixture[str]) -> None:
    console.announce("one", "two")
    assert capfd.readouterr().err == "ft_launcher: one\nft_launcher: two\n"


class NoText:
    def __str__(self) -> str:
        raise ZeroDivisionError


class Stream:
    """What a program has put in the place of standard error."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_cannot_be_said_costs_a_line_and_whoever_says_it_goes_on(
    form: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is said on the way to a restart."""
    monkeypatch.setattr(console, "_console", console._Console())
    console.follow(console.State(format=form))
    odd: Any = NoText()
    console.announce("no", odd)
    console.announce("no", ranks=odd)
    assert console.unwritten_lines() == 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stderr", Stream())
        console.announce("nor this")
    assert console.unwritten_lines() == 4
    console.announce("surrogate \udc80", facts={"value": odd})
    assert console.unwritten_lines() == 0
    said = capfd.readouterr().err
    assert "4 line(s) could not be written here" in said
    assert "surrogate \\udc80" in said


def test_a_mistake_in_what_waits_ends_nobody_where_it_cannot_be_told_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: 1 / 0)
    assert Background("x", 1).submit(lambda: 1 / 0)


def test_without_a_standard_error_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_descriptor", lambda: 999)
    console.announce("nobody hears this")
    lost = console.unwritten_lines()
    console._console._failed = 0
    assert lost == 1


def test_below_the_log_level_nothing_is_said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console._console, "threshold", console.WARNING)
    console.announce("in the normal course of things", level=console.INFO)
    console.announce("out of the ordinary")
    assert capfd.readouterr().err == "ft_launcher: out of the ordinary\n"


@pytest.mark.parametrize(("level", "heard"), [("DEBUG", "debug info warning"), ("WARNING", "warning"), (40, "")])
def test_log_records_go_the_same_way_from_the_configured_level_on(
    level: int | str, heard: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, ours = logging.getLogger(), logging.getLogger("launcher")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(console._console, "threshold", console.INFO)
    before = ours.level
    try:
        log_records.take_over_logging(level)
        for name in ("debug", "info", "warning"):
            getattr(logging.getLogger("launcher.part"), name)("%s", name)
        logging.getLogger("another.library").info("not asked for")
    finally:
        ours.setLevel(before)
        logging.captureWarnings(False)
    said = capfd.readouterr().err
    assert [line.rpartition(": ")[2] for line in said.splitlines()] == heard.split()


def test_a_record_of_several_lines_cannot_pass_for_several_messages(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [log_records._Handler()])
    logging.getLogger("another.library").warning("rank 3 says a\nall is well")
    said = capfd.readouterr().err
    assert said == "ft_launcher: WARNING another.library: rank 3 says a\nft_launcher:     all is well\n"


def test_what_torch_logs_in_the_launcher_comes_through_the_console_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handlers wait for whoever reads, and know nothing of ``log_format``."""
    torchs, elastic = logging.getLogger("torch"), logging.getLogger("torch.distributed.run")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(torchs, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(torchs, "propagate", False)
    monkeypatch.setattr(elastic, "handlers", [])
    before = logging.getLogger("launcher").level
    try:
        log_records.take_over_logging("INFO")
        elastic.warning("node_rank is ignored")
        console.set_level(console.ERROR)
        elastic.warning("nor is this heard")
    finally:
        logging.getLogger("launcher").setLevel(before)
        logging.captureWarnings(False)
    assert capfd.readouterr().err == "ft_launcher: WARNING torch.distributed.run: node_rank is ignored\n"


def test_a_guest_in_anothers_program_leaves_its_handlers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [logging.NullHandler()]
    monkeypatch.setattr(logging.getLogger(), "handlers", theirs)
    before = logging.getLogger("launcher").level
    log_records.take_over_logging("INFO")
    logging.getLogger("launcher").setLevel(before)
    assert logging.getLogger().handlers == theirs


def test_what_is_told_does_not_command_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    console.announce("error   ValueError: a\tb\0\x1b[31mred\r\x9b2J")
    console.finish(30)
    assert capfd.readouterr().err == "ft_launcher: error   ValueError: a\tb\\x00\\x1b[31mred\\x0d\\x9b2J\n"


def test_what_turns_the_direction_of_the_text_is_told_and_not_obeyed(capfd: pytest.CaptureFixture[str]) -> None:
    console.announce("error   ValueError: \u202eabc\u2066")
    console.finish(30)
    assert capfd.readouterr().err == "ft_launcher: error   ValueError: \\u202eabc\\u2066\n"


@pytest.mark.parametrize("end", ["\n", "\u2028", "\r\n"])
def test_a_text_with_several_lines_cannot_pass_for_another_message(capfd: pytest.CaptureFixture[str], end: str) -> None:
    console.announce(f"section 'a{end}all is well'", "next")

    said = capfd.readouterr().err
    lines = said.splitlines()
    assert [line for line in lines if not line.startswith("ft_launcher: ")] == []
    assert [line for line in lines if line.startswith("ft_launcher: all is well")] == []
    assert said.endswith("all is well'\nft_launcher: next\n")
