"""Checks run by the tests, and programs in namespaces of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher.health.check import Check, Context

PATIENCE = 60.0


class Scripted:
    """A check that answers what it is told to."""

    def __init__(self, name: str = "scripted", bound_seconds: float = PATIENCE) -> None:
        self.name, self.bound_seconds = name, bound_seconds
        self.answer: object = None
        self.answers: list[object] = []
        """What the next looks find, in their order; ``answer`` when there are none left."""
        self.looks = 0
        self.went_on = threading.Event()
        self.went_on.set()
        self.began = threading.Event()

    def check(self, context: Context) -> str | None:
        self.looks += 1
        found = self.answers.pop(0) if self.answers else self.answer
        context.tell("the look")
        self.began.set()
        assert self.went_on.wait(PATIENCE)
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[return-value]


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """Make scripted checks; those that are stuck in the end are let go."""
    made: list[Scripted] = []

    def make(name: str = "scripted", bound_seconds: float = PATIENCE) -> Scripted:
        made.append(Scripted(name, bound_seconds))
        return made[-1]

    yield make
    for each in made:
        each.went_on.set()


@pytest.fixture
def in_namespaces() -> Callable[[str, str, str], str]:
    """Run a shell's set-up and then a program in new namespaces; skip where this user may make none."""

    def run(flags: str, setup: str, program: str) -> str:
        unshare = [shutil.which("unshare") or "", *flags.split()]
        if not unshare[0] or subprocess.run([*unshare, "true"], capture_output=True, timeout=PATIENCE).returncode:
            pytest.skip(f"this user may not run unshare {flags}")
        ready = subprocess.run([*unshare, "sh", "-ec", setup], capture_output=True, text=True, timeout=PATIENCE)
        if ready.returncode:
            pytest.skip(f"this machine refuses the set-up: {ready.stderr.strip()}")
        script = f'{setup}\nexec "$0" -c "$1"'
        done = subprocess.run(
            [*unshare, "sh", "-ec", script, sys.executable, program], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def asked(check: Check, context: Context | None = None) -> str | None:
    """The answer of a check that does not block."""
    return check.check(context or Context())
