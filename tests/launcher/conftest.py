"""Processes that the tests of the launcher's parts look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python on a program that prints a line when it is ready; killed at the end of the test."""
    started = []

    def spawn(program: str, *arguments: str, session: bool = False) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=session,
        )
        started.append(process)
        assert process.stdout is not None
        process.ready = process.stdout.readline().strip()  # type: ignore[attr-defined]
        return process

    yield spawn
    for process in started:
        with process:
            process.kill()
