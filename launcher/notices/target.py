"""Who is told of events: a command or a URL of the user's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable
from typing import NamedTuple

from resilience_core.config.notice_values import program_shown, scheme_of, shown

__all__ = ["Target", "arguments_shown", "parse_target", "problem_with_target"]

_OPTION = re.compile(r"--ft[-_](?:param[-_])?on[-_]event(?P<value>=.*)?", re.DOTALL)


class Target(NamedTuple):
    """A command or a URL."""

    command: tuple[str, ...] = ()
    """The program and its arguments; empty for a URL."""
    url: str = ""

    def __str__(self) -> str:
        """Return what messages call it: see :func:`.shown`."""
        return shown(self.url) if self.url else program_shown(self.command[0]) + " ..." * (len(self.command) > 1)


def parse_target(text: str) -> Target:
    """Return what a checked ``on_event`` means."""
    if scheme_of(text) is not None:
        return Target(url=text)
    return Target(command=tuple(shlex.split(text)))


def arguments_shown(arguments: Iterable[str]) -> list[str]:
    """Return the launcher's command line as it is written: of each ``--ft-on-event`` only who is called."""
    kept: list[str] = []
    is_value = False
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if is_value:
            kept.append(shown(argument))
        elif option is not None and option["value"]:
            kept.append(f"{argument.partition('=')[0]}={shown(option['value'][1:])}")
        else:
            kept.append(argument)
        is_value = option is not None and not option["value"] and not is_value
    return kept


def problem_with_target(target: Target) -> str | None:
    """Return why a command cannot be started in this process's folder and environment, and what to do.

    Returns:
        None where it may well be started. Whether a URL answers is not tried.
    """
    if target.url:
        return None
    program = target.command[0]
    name = program_shown(program)
    if shutil.which(program) is not None:
        return None
    if os.path.dirname(program):
        if not os.path.exists(program):
            return f"{name} does not exist; correct the path, which is relative to {os.getcwd()}"
        if os.path.isdir(program):
            return f"{name} is a folder; name a program"
        return f"{name} cannot be executed; chmod +x {name}"
    if os.path.isfile(program):
        return f"there is no command {name!r} in PATH; for the file in this folder write ./{name}"
    return (
        f"there is no command {name!r} in PATH; give its path. No shell is run: what only a shell knows is written "
        "as sh -c '...'"
    )
