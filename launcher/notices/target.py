"""Who is told of events: a command or a URL of the user's."""

from __future__ import annotations

import os
import shlex
import shutil
import urllib.parse
from typing import NamedTuple

from resilience_core.config.notice_values import scheme_of

__all__ = ["Target", "parse_target", "problem_with_target"]

_LONGEST_SHOWN = 80


class Target(NamedTuple):
    """A command or a URL."""

    command: tuple[str, ...] = ()
    """The program and its arguments; empty for a URL."""
    url: str = ""

    def __str__(self) -> str:
        """Return what messages call it. The path of a URL is left out: that of a webhook is most often a secret."""
        if self.url:
            parts = urllib.parse.urlsplit(self.url)
            host = parts.netloc.rpartition("@")[2]
            return f"{parts.scheme}://{host}"
        text = shlex.join(self.command)
        return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def parse_target(text: str) -> Target:
    """Return what a checked ``on_event`` means."""
    if scheme_of(text) is not None:
        return Target(url=text)
    return Target(command=tuple(shlex.split(text)))


def problem_with_target(target: Target) -> str | None:
    """Return why a command cannot be started in this process's folder and environment, and what to do.

    Returns:
        None where it may well be started. Whether a URL answers is not tried.
    """
    if target.url:
        return None
    program = target.command[0]
    if shutil.which(program) is not None:
        return None
    if os.path.dirname(program):
        if not os.path.exists(program):
            return f"{program} does not exist; correct the path, which is relative to {os.getcwd()}"
        if os.path.isdir(program):
            return f"{program} is a folder; name a program"
        return f"{program} cannot be executed; chmod +x {program}"
    if os.path.isfile(program):
        return f"there is no command {program!r} in PATH; for the file in this folder write ./{program}"
    return (
        f"there is no command {program!r} in PATH; give its path. No shell is run: what only a shell knows is written "
        "as sh -c '...'"
    )
