"""What is called, what messages call it, and why a command cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.notices.target import Target, parse_target, problem_with_target


def test_a_command_is_split_as_by_a_shell() -> None:
    assert parse_target("sh -c 'cat | logger' \"a b\"") == Target(command=("sh", "-c", "cat | logger", "a b"))


def test_messages_leave_out_the_path_of_a_url_and_the_end_of_a_long_command() -> None:
    assert str(parse_target("https://hooks.example.org:8443/services/SECRET?token=1")) == (
        "https://hooks.example.org:8443"
    )
    assert str(parse_target("true 'a b'")) == "true 'a b'"
    assert len(str(parse_target("true " + "x" * 200))) == 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-command -x", "there is no command 'no-such-command' in PATH"),
        ("./missing.sh", "does not exist"),
        ("./folder", "is a folder"),
        ("./plain.sh", "cannot be executed; chmod +x ./plain.sh"),
        ("plain.sh", "write ./plain.sh"),
    ],
)
def test_it_says_why_a_command_cannot_be_started(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.sh").write_text("#!/bin/sh\n")
    problem = problem_with_target(parse_target(text))
    assert problem is not None
    assert said in problem


def test_what_may_be_started_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tell.sh").write_text("#!/bin/sh\n")
    (tmp_path / "tell.sh").chmod(0o755)
    for text in ("sh -c true", "./tell.sh", str(tmp_path / "tell.sh"), "http://nobody.invalid/"):
        assert problem_with_target(parse_target(text)) is None
