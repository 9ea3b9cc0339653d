"""Ask ranks how far they are in the collectives of their process groups.

The rank's part is ``resilience_core.monitoring.group_numbers``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcher.processes.evidence import Evidence
from resilience_core.protocol.group_numbers import ANSWERS, LONGEST_ANSWER, QUESTIONS, GroupNumber, GroupNumbers
from resilience_core.system.plain_files import only_plain, plain_size

__all__ = ["Questions", "ask", "groups_phrase", "put_question", "telling_groups"]

_POLL_SECONDS = 0.002
_MOST_TELLING = 8
_MOST_TOLD = 2
_MOST_CALLED = 3


class Questions(NamedTuple):
    """What was asked."""

    name: str
    answers: dict[int, tuple[str, int]]
    """Key to the file of the answer, and how long that was before."""

    def answered(self, end: float, without: Collection[int] = ()) -> dict[int, GroupNumbers]:
        """Return the answers, by key; one is missing that has not come.

        Args:
            end: How long to wait for those that are not complete, on ``time.monotonic()``.
            without: Keys of whom no answer is waited for.
        """
        found: dict[int, GroupNumbers] = {}
        pending = set(self.answers)
        while pending:
            for key in list(pending):
                for numbers, is_last in _read(*self.answers[key], self.name):
                    found[key] = numbers
                    if is_last:
                        pending.discard(key)
            if pending <= set(without) or time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
        return found


def ask(cells: Mapping[int, str]) -> Questions:
    """Ask ranks, without waiting for anything.

    Args:
        cells: Key (say, a local rank) to the path of its cell. One that answers no questions is left out.
    """
    name = str(time.monotonic_ns())
    answers = {}
    for key, cell in cells.items():
        path = cell + ANSWERS
        before = plain_size(path)
        if before >= 0 and put_question(cell + QUESTIONS, name):
            answers[key] = (path, before)
    return Questions(name, answers)


def telling_groups(numbers: GroupNumbers) -> tuple[GroupNumber, ...]:
    """Return the few groups that tell most: those in which something is not done, then the largest."""
    order = sorted(numbers.groups, key=lambda group: (not group.first_undone, not group.operation, -group.size))
    return tuple(order[:_MOST_TELLING])


def groups_phrase(evidence: Evidence) -> str | None:
    """Return how far a rank is in its process groups; None where that is not known.

    That a collective is not done is said only where NCCL's flight recorder tells. Of gloo torch notes the number of the
    last one that was done as threads come to it, and one that is done may count as not done for ever.
    """
    stuck = [_undone_phrase(group) for group in evidence.groups if group.operation]
    if stuck:
        return " and ".join(stuck[:_MOST_TOLD])
    called = [(group.number, _name(group)) for group in evidence.groups if group.number > 0]
    if not called:
        return None
    more = f" and of {len(called) - _MOST_CALLED} more groups" if len(called) > _MOST_CALLED else ""
    (first, name), *others = called[:_MOST_CALLED]
    return f"has called {first} collectives of {name}" + "".join(f", {n} of {name}" for n, name in others) + more


def _undone_phrase(group: GroupNumber) -> str:
    if group.first_undone is None:
        return f"in {group.operation} of {_name(group)}"
    operation = f" ({group.operation})" if group.operation else ""
    return f"in collective {group.first_undone} of {_name(group)}{operation}"


def _name(group: GroupNumber) -> str:
    return f"group {group.name} '{group.description}'" if group.description else f"group {group.name}"


def put_question(path: str, question: str) -> bool:
    """Put a question into a rank's pipe, without waiting; return whether somebody reads it."""
    with contextlib.suppress(OSError):  # no pipe, nobody who reads it, or full
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, f"{question}\n".encode())
                return True
        finally:
            os.close(descriptor)
    return False


def _read(path: str, before: int, question: str) -> list[tuple[GroupNumbers, bool]]:
    try:
        with open(path, "rb", opener=only_plain) as file:
            file.seek(before)
            text = file.read(4 * LONGEST_ANSWER).decode("utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines(keepends=True):
        with contextlib.suppress(ValueError):  # not written to its end, or by somebody else
            if line.endswith("\n") and (answer := GroupNumbers.from_line(line, question)) is not None:
                found.append(answer)
    return found
