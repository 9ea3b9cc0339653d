"""What a launcher's command line says of its log, read before, or by somebody who does not parse it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from launcher.records.console import State
from resilience_core.config.cli_options import FILE_OPTIONS
from resilience_core.config.converters import level
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.config.words import log_format
from resilience_core.errors import ConfigError

__all__ = ["log_settings", "value_of"]

_LAUNCHER = "ft_launcher"
_FLAGS = frozenset(
    {"-h", "--help", "--version", "-m", "--module", "--no-python", "--run-path", "--standalone", "--virtual-local-rank"}
)
"""Options of the launcher that take no value."""


def log_settings(command: Sequence[str]) -> State:
    """Return ``log_level`` and ``log_format`` of a launcher's command line, its file included.

    Where they are not given, or not valid, they are those of the default: the launcher refuses them, and says why.

    Args:
        command: The launcher's command line; words before and after its options may belong to others.
    """
    state = State()
    if path := value_of(command, *(option.lstrip("-").replace("-", "_") for option in FILE_OPTIONS)):
        with contextlib.suppress(ConfigError):
            config = FaultToleranceConfig.from_yaml_file(path)
            state = State(config.log_level, config.log_format)
    with contextlib.suppress(ValueError):
        if text := value_of(command, "ft_log_level", "ft_param_log_level"):
            state = state._replace(level=level(text))
    with contextlib.suppress(ValueError):
        if text := value_of(command, "ft_log_format", "ft_param_log_format"):
            state = state._replace(format=log_format(text))
    return state


def value_of(command: Sequence[str], *options: str) -> str | None:
    """Return the value of an option, in whichever spelling; None where it is not given.

    Given several times, the last one counts, as where the launcher parses it.

    Args:
        command: The launcher's command line.
        options: The option's names, without leading dashes and with underscores.
    """
    found = None
    words = _up_to_the_script(command)
    for index, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in options:
            if has_value:
                found = value
            elif index + 1 < len(words):
                found = words[index + 1]
    return found


def _up_to_the_script(command: Sequence[str]) -> Sequence[str]:
    """Return the words that the launcher parses; all of them where it is called by another name."""
    called_at = (
        index
        for index, word in enumerate(command)
        if os.path.basename(word) == _LAUNCHER or (word == "launcher" and command[index - 1 : index] == ["-m"])
    )
    begin = next(called_at, None)
    if begin is None:
        return command
    end = begin = begin + 1
    while end < len(command) and command[end].startswith("-"):
        word = command[end]
        is_alone = "=" in word or word.replace("_", "-") in _FLAGS or (word[1:2] != "-" and len(word) > 2)  # -r3
        end += 1 if is_alone else 2
    return command[begin:end]
