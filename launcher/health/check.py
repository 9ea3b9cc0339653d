"""What a health check is, and what it gets. Checks of other distributions need nothing from here but the shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

__all__ = ["Check", "Context", "Machine", "Unhealthy"]


class Machine(NamedTuple):
    """Where the kernel shows the machine; tests have others."""

    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"


def _nobody(step: str) -> None:
    pass


def _never() -> bool:
    return False


class Context(NamedTuple):
    """What a check may know.

    Args:
        log_dir: The log folder, which exists; None where there is none.
        machine: Where the kernel shows the machine.
        environment: Returns variables that the user's command gets in addition, as of now. One that begins with
            ``FT_`` and is a path in the run folder lets the monitor find the command when the launcher was killed.
        arguments: What the user has written after the check's name, as ``ib0`` in ``nic:ib0``.
        tell: Called by a check with what it does next. It is part of the reason if there is no answer.
        is_cancelled: Whether nobody waits for the answer any more. A check that can end early asks now and then.
    """

    log_dir: str | None = None
    machine: Machine = Machine()
    environment: Callable[[], Mapping[str, str]] = dict
    arguments: tuple[str, ...] = ()
    tell: Callable[[str], object] = _nobody
    is_cancelled: Callable[[], bool] = _never


class Check(Protocol):
    """One check. It may block: it runs in a thread of its own, and no answer within the bound is a failure."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def bound_seconds(self) -> float:
        """How long an answer may take."""
        ...

    def check(self, context: Context) -> str | None:
        """Look once. What this raises is a failure, too.

        Returns:
            None where the node is healthy; otherwise what is wrong, where, the value, and what to do.
        """
        ...


class Unhealthy(NamedTuple):
    """Why a node should not take part.

    Args:
        check: The name of the check.
        reason: What is wrong, where, the value, and what to do; one line.
    """

    check: str
    reason: str

    def __str__(self) -> str:
        return f"health check '{self.check}': {self.reason}"
