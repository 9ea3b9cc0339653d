"""What is called, what messages call it, and why a command cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.notices.target import Target, arguments_shown, parse_target, problem_with_target


def test_a_command_is_split_as_by_a_shell() -> None:
    assert parse_target("sh -c 'cat | logger' \"a b\"") == Target(command=("sh", "-c", "cat | logger", "a b"))


def test_messages_leave_out_the_path_of_a_url_and_the_arguments_of_a_command() -> None:
    assert str(parse_target("https://hooks.example.org:8443/services/SECRET?token=1")) == (
        "https://hooks.example.org:8443/***"
    )
    assert str(parse_target("curl -H 'Authorization: SECRET'")) == "curl ..."
    assert str(parse_target("true")) == "true"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--ft-on-event|http://h/SECRET|train.py|x", "--ft-on-event|http://h/***|train.py|x"),
        ("--ft_on_event=curl -u SECRET|a", "--ft_on_event=curl ...|a"),
        ("--ft-param-on_event|sh -c SECRET|--ft-on-event=", "--ft-param-on_event|sh ...|--ft-on-event="),
        ("--ft-on-event|--ft-on-event|x y|--ft-on-event", "--ft-on-event|--ft-on-event|x y|--ft-on-event"),
        ("--ft-on-event-timeout|3 4|--data|s3://bucket/x", "--ft-on-event-timeout|3 4|--data|s3://bucket/x"),
    ],
)
def test_the_command_line_is_written_without_what_may_be_a_secret(arguments: str, told: str) -> None:
    assert "|".join(arguments_shown(arguments.split("|"))) == told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-command -x", "there is no command 'no-such-command' in PATH"),
        ("TOKEN=SECRET curl", "there is no command 'TOKEN=***' in PATH"),
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
    assert "SECRET" not in problem


def test_what_may_be_started_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tell.sh").write_text("#!/bin/sh\n")
    (tmp_path / "tell.sh").chmod(0o755)
    for text in ("sh -c true", "./tell.sh", str(tmp_path / "tell.sh"), "http://nobody.invalid/"):
        assert problem_with_target(parse_target(text)) is None
