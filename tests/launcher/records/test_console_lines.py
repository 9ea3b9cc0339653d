"""What a message looks like: lines for people, with a colour on a terminal only, or one JSON object."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from launcher.records import console, console_lines
from launcher.records.console_lines import CRITICAL, DEBUG, ERROR, INFO, WARNING, Message, Speaker, coloured, lines_of

TEXT, JSON = Speaker(), Speaker(format="json")
STORY = Message(
    (
        "rank 3 (pid 9) exited with code 1",
        "  error   ValueError: bad\n  why     forged",
        "  stack   a (x.py:1)",
        "  stack   b (x.py:2)",
        "  why     raised ValueError",
        "  action  1 peer(s) asked to end",
        "  report  /logs/0001/report.txt",
    ),
    ERROR,
    "failure",
    (3,),
    2,
    0,
)


def text_of(message: Message, speaker: Speaker = TEXT) -> str:
    return console_lines.plain(lines_of(message, speaker)).decode()


def object_of(message: Message, speaker: Speaker = JSON) -> dict[str, Any]:
    (line,) = lines_of(message, speaker)
    assert line.raw.endswith(b"}\n")
    assert line.raw.count(b"\n") == 1
    assert len(line.raw) <= select.PIPE_BUF
    document = json.loads(line.raw)
    assert isinstance(document, dict)
    return document


def test_a_line_of_text_names_the_node_where_there_are_several() -> None:
    several = Speaker(names_node=True)
    assert text_of(Message(("a", "  why     b"))) == "ft_launcher: a\nft_launcher:   why     b\n"
    node = os.uname().nodename
    assert text_of(Message(("a\nb",)), several) == f"ft_launcher[{node}]: a\nft_launcher[{node}]:     b\n"


def test_a_story_is_one_object_with_its_facts_as_fields() -> None:
    document = object_of(STORY)
    when = document.pop("time")
    assert datetime.fromisoformat(when).utcoffset() is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", when)
    assert document == {
        "level": "ERROR",
        "source": "launcher",
        "node": os.uname().nodename,
        "event": "failure",
        "ranks": [3],
        "generation": 2,
        "text": "rank 3 (pid 9) exited with code 1",
        "who": ["rank 3 (pid 9) exited with code 1"],
        "error": ["ValueError: bad\n  why     forged"],
        "stack": ["a (x.py:1)", "b (x.py:2)"],
        "why": "raised ValueError",
        "action": "1 peer(s) asked to end",
        "report": "/logs/0001/report.txt",
    }


def test_the_last_words_have_their_reason_as_text_and_the_culprit_as_who() -> None:
    said = ("the job has failed: no restart is left", "  rank 10 (pid 9) died", "  report  /logs/report.txt")
    document = object_of(Message(said, CRITICAL, "job_failed", culprits_from=1))
    assert (document["level"], document["text"]) == ("CRITICAL", "the job has failed: no restart is left")
    assert (document["who"], document["report"]) == (["rank 10 (pid 9) died"], "/logs/report.txt")
    assert "ranks" not in document
    assert "generation" not in document


def test_lines_that_are_no_facts_stay_together_as_text() -> None:
    said = ("Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'a'")
    assert object_of(Message(said, CRITICAL))["text"] == "\n".join(said)
    assert object_of(Message(("the nodes could not agree", "  every node must reach it")))["text"].count("\n") == 1


def test_further_fields_do_not_replace_ours() -> None:
    document = object_of(Message(("a", "  node    b"), facts={"logger": "torch", "level": "none"}))
    assert (document["logger"], document["level"], document["node"]) == ("torch", "WARNING", os.uname().nodename)


@pytest.mark.parametrize("name", ["node", "time", "ranks", "text", "who", "logger"])
def test_a_fact_with_the_name_of_another_field_stays_in_the_text(name: str) -> None:
    document = object_of(Message(("a", f"  {name:7} b"), facts={"logger": "torch"}))
    assert document["text"] == f"a\n  {name:7} b"


def test_no_fact_of_a_story_is_lost_to_another_of_its_name() -> None:
    document = object_of(Message(("a", "  why     b", "  stack   c", "  why     d", "  stack   e"), ERROR))
    assert (document["why"], document["stack"]) == ("b\nd", ["c", "e"])


class NoText:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("value", [NoText(), float("nan"), {(1, 2): 3}], ids=["no text", "no number", "no key"])
def test_what_is_said_is_kept_where_a_further_field_is_nothing_for_json(value: Any) -> None:
    document = object_of(Message(("a", "  why     b"), facts={"further": value}))
    assert (document["text"], document["why"], document["is_cut"]) == ("a", "b", True)
    assert "further" not in document


def test_of_a_message_about_thousands_of_ranks_the_report_is_kept() -> None:
    ranks = tuple(range(4096))
    document = object_of(Message(("all are lost", "  report  /r"), ERROR, "lost", ranks, 0))
    assert (document["text"], document["report"], document["is_cut"]) == ("all are lost", "/r", True)
    assert document["ranks"] == list(range(len(document["ranks"])))
    assert len(document["ranks"]) >= 16


@pytest.mark.parametrize("level", [DEBUG, INFO, 25, WARNING, ERROR, CRITICAL, 60])
def test_a_level_has_the_name_of_the_last_one_that_it_reaches(level: int) -> None:
    names = {DEBUG: "DEBUG", INFO: "INFO", 25: "INFO", WARNING: "WARNING", ERROR: "ERROR"}
    assert object_of(Message(("a",), level))["level"] == names.get(level, "CRITICAL")


@pytest.mark.parametrize(
    "message",
    [
        Message(("x" * 100_000,)),
        Message(("\u2028\U0001f600" * 5000, "  why     " + "\0" * 9000), ERROR, "failure", (1,), 3, 0),
        Message(("who", *(f"  stack   frame {n} {'y' * 90}" for n in range(2000)), "  report  /r"), ERROR),
        Message(tuple(f"rank {n} has gone" for n in range(4096)), ERROR, "failure", tuple(range(4096)), 0, 0),
        Message(("\udc80 no text",), facts={f"field{n}": "z" * 50 for n in range(400)}),
    ],
)
def test_an_object_fits_into_one_write_to_a_pipe(message: Message) -> None:
    document = object_of(message)
    assert document["text"]
    assert document.get("is_cut", False) or "no text" in document["text"]


def test_of_a_long_story_is_kept_where_there_is_more() -> None:
    frames = [f"  stack   frame {n} {'y' * 90}" for n in range(2000)]
    document = object_of(Message(("who", *frames, "  why     " + "z" * 9000, "  report  /r"), ERROR, "hang"))
    assert (document["text"], document["report"]) == ("who", "/r")
    assert document["stack"][0].startswith("frame 0 y")
    assert document["why"].endswith("z ...")


def test_text_is_cut_at_a_line_s_end_and_in_no_character() -> None:
    said = text_of(Message(("\u00e4" * 100_000, "next")))
    assert len(said.encode()) <= console_lines.LONGEST_TEXT
    assert said.endswith("\u00e4 ...\n")
    assert said.count("\n") == 1


# ---- colours ----------------------------------------------------------------------------------------------

SHOWS = """
import sys
from launcher.records import console
if sys.argv[1] == "thread":
    console.start()
if sys.argv[2] == "json":
    console.follow(console.State(format="json"))
console.announce("an error", "  detail  plain", level=console.ERROR)
console.announce("a warning", level=console.WARNING)
console.announce("as ever", level=console.INFO)
console.announce("rank 1 died", "  why     so", level=console.ERROR, culprits_from=0)
console.announce("it has failed", "  rank 1 died", "  report  /r", level=console.CRITICAL, culprits_from=1)
console.announce("long " + "x" * 100_000 + "\\n" + "y" * 9, level=console.ERROR)
console.finish(30)
"""
PLAIN = [
    "ft_launcher: an error",
    "ft_launcher:   detail  plain",
    "ft_launcher: a warning",
    "ft_launcher: as ever",
    "ft_launcher: rank 1 died",
    "ft_launcher:   why     so",
    "ft_launcher: it has failed",
    "ft_launcher:   rank 1 died",
    "ft_launcher:   report  /r",
]


def shown(how: str, form: str, *, on_terminal: bool = True, **env: str) -> bytes:
    reader, writer = pty.openpty() if on_terminal else os.pipe()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    command = [sys.executable, "-c", SHOWS, how, form]
    with subprocess.Popen(command, stderr=writer, env={**environment, "TERM": "xterm", **env}) as process:
        os.close(writer)
        said = b""
        try:
            while chunk := os.read(reader, 1 << 16):
                said += chunk
        except OSError:  # how a terminal whose other end is closed says so
            pass
        assert process.wait(60) == 0
    os.close(reader)
    return said.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("how", ["thread", "at once"])
def test_on_a_terminal_errors_are_red_warnings_yellow_and_the_culprit_bold(how: str) -> None:
    lines = shown(how, "text").decode().splitlines()
    assert lines[:9] == [
        "\x1b[31mft_launcher: an error\x1b[0m",
        "ft_launcher:   detail  plain",
        "\x1b[33mft_launcher: a warning\x1b[0m",
        "ft_launcher: as ever",
        "\x1b[1;31mft_launcher: rank 1 died\x1b[0m",
        "ft_launcher:   why     so",
        "\x1b[31mft_launcher: it has failed\x1b[0m",
        "\x1b[1mft_launcher:   rank 1 died\x1b[0m",
        "ft_launcher:   report  /r",
    ]
    assert all(line.count("\x1b") in (0, 2) and (not line.count("\x1b") or line.endswith("\x1b[0m")) for line in lines)


@pytest.mark.parametrize(
    ("on_terminal", "env"), [(False, {}), (True, {"NO_COLOR": "1"}), (True, {"TERM": "dumb"}), (True, {"TERM": ""})]
)
@pytest.mark.parametrize("how", ["thread", "at once"])
def test_elsewhere_there_is_no_colour(how: str, on_terminal: bool, env: dict[str, str]) -> None:
    said = shown(how, "text", on_terminal=on_terminal, **env)
    assert b"\x1b" not in said
    assert said.decode().splitlines()[:9] == PLAIN


def test_no_color_without_a_value_means_nothing() -> None:
    assert b"\x1b[31m" in shown("thread", "text", NO_COLOR="")


def test_json_has_no_colour_on_a_terminal_either() -> None:
    said = shown("thread", "json")
    assert b"\x1b" not in said
    assert [json.loads(line)["text"] for line in said.splitlines()][:3] == ["an error", "a warning", "as ever"]


def test_every_line_ends_as_it_began() -> None:
    """Also one that was cut, and the lines of a text that has several."""
    lines = lines_of(Message((f"a\n{'b' * 100_000}",), ERROR), Speaker())
    for line in coloured(lines).splitlines():
        assert line.startswith(b"\x1b[31m")
        assert line.endswith(b"\x1b[0m")
        assert line.count(b"\x1b") == 2


def test_lines_of_a_long_message_and_of_others_in_one_pipe_are_not_mixed() -> None:
    """The kernel writes no more than PIPE_BUF in one piece, and lets others write when the pipe is full."""
    program = (
        "import sys\nfrom launcher.records import console\nconsole.start()\n"
        "for _ in range(30):\n    console.announce(*[sys.argv[1] * 60] * 300)\n    console.finish(60)\n"
    )
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2 * select.PIPE_BUF)
    processes = [subprocess.Popen([sys.executable, "-c", program, word], stderr=writer) for word in "ab"]
    os.close(writer)
    said = b""
    while chunk := os.read(reader, 1 << 16):
        said += chunk
    assert [process.wait(60) for process in processes] == [0, 0]
    os.close(reader)
    wanted = {b"ft_launcher: " + 60 * word for word in (b"a", b"b")}
    assert set(said.splitlines()) == wanted
    assert len(said.splitlines()) == 2 * 30 * 300


def test_lost_lines_are_reported_as_an_object_where_objects_are_written(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console._console, "speaker", JSON)
    console._console._failed = 3
    console.announce("next")
    lost, said = map(json.loads, capfd.readouterr().err.splitlines())
    assert (lost["event"], lost["text"]) == ("lines_lost", "3 line(s) could not be written here")
    assert said["text"] == "next"
