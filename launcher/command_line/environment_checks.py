"""Refuse, before anything is started, environment variables that torch or each rank would fail at."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from resilience_core.config.converters import boolean
from resilience_core.environment import FAULTS_VARIABLE, PLUGINS_VARIABLE
from resilience_core.errors import ConfigError

__all__ = ["check_environment"]


def check_environment(environ: Mapping[str, str]) -> None:
    """Check the variables that we, or torch while it is imported, read.

    Raises:
        ConfigError: One of them cannot be used; names it, its value and the fix.
    """
    level = environ.get("LOGLEVEL")
    if level is not None and not isinstance(logging.getLevelName(level), int):  # the name's number, or a text
        raise ConfigError(
            f"LOGLEVEL is {level!r} in the environment, and torch, which reads it, takes only names of Python's "
            "levels: set it to DEBUG, INFO, WARNING, ERROR or CRITICAL, or unset it"
        )
    if (switch := environ.get(PLUGINS_VARIABLE, "")).strip():
        try:
            boolean(switch)
        except ValueError as error:
            raise ConfigError(f"{PLUGINS_VARIABLE} is {switch!r} in the environment: {error}") from None
    if text := environ.get(FAULTS_VARIABLE):
        from resilience_core._fault_settings import parse_faults

        try:
            parse_faults(text)
        except ConfigError as error:
            raise ConfigError(f"{FAULTS_VARIABLE} in the environment: {error}") from None
