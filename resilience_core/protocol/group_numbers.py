"""How far a rank is in the collectives of each process group: asked for by its monitor, answered beside its cell.

The question is a line with any name in the pipe ``<cell>.ask``. The answer is two lines of JSON in ``<cell>.groups``:
the numbers, which can always be had, then the same with what torch's flight recorder knows. Each has the name of its
question, so that the answer to an earlier one is not taken for it.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any, NamedTuple

__all__ = ["ANSWERS", "LONGEST_ANSWER", "MOST_GROUPS", "QUESTIONS", "GroupNumber", "GroupNumbers"]

QUESTIONS = ".ask"
"""What the path of the pipe has behind that of the cell."""
ANSWERS = ".groups"
MOST_GROUPS = 32
LONGEST_ANSWER = 1 << 14
"""Of a line, in bytes."""
_LONGEST_TEXT = 80
_KINDS = tuple((str, int, int, str, str, str, of_first) for of_first in (int, type(None)))


class GroupNumber(NamedTuple):
    """How far a rank is in one process group."""

    name: str
    """The same on all members."""
    number: int
    """How many collectives of the group it has called, going by torch's sequence number; gloo counts sends, too."""
    size: int
    """How many ranks the group has."""
    backend: str = ""
    description: str = ""
    operation: str = ""
    """The first of them that is not done, or what it sends or receives, where the flight recorder of NCCL tells."""
    first_undone: int | None = None
    """The number of the first of them that is not done; 0 where all are; None where that is not known."""

    @classmethod
    def from_json(cls, document: Any) -> GroupNumber:
        """Return the group that ``list(group)`` took apart.

        Raises:
            TypeError: It is none.
        """
        if type(document) is not list or tuple(map(type, document)) not in _KINDS:
            raise TypeError(f"not a group: {reprlib.repr(document)}")
        name, number, size, backend, description, operation, first_undone = document
        name, backend, description, operation = (
            text[:_LONGEST_TEXT] for text in (name, backend, description, operation)
        )
        return cls(name, number, size, backend, description, operation, first_undone)


class GroupNumbers(NamedTuple):
    """How far a rank is in all of its process groups."""

    groups: tuple[GroupNumber, ...] = ()
    is_idle: bool | None = None
    """Whether all that it has called is done, in every group; None where torch does not tell.

    Sends and receives of gloo are not seen."""

    def to_line(self, question: str, *, is_last: bool) -> str:
        """Return a line of an answer."""
        groups = [list(group) for group in self.groups[:MOST_GROUPS]]
        document = {"question": question, "is_last": is_last, "groups": groups, "is_idle": self.is_idle}
        return json.dumps(document) + "\n"

    @classmethod
    def from_line(cls, line: str, question: str) -> tuple[GroupNumbers, bool] | None:
        """Return what a line tells, and whether it is the last one; None where it answers another question.

        Raises:
            ValueError: It is no line of an answer.
        """
        try:
            document = json.loads(line)
            if document["question"] != question:
                return None
            is_idle = document["is_idle"]
            if is_idle is not None and type(is_idle) is not bool:
                raise TypeError(f"is_idle is {is_idle!r}")
            groups = tuple(map(GroupNumber.from_json, document["groups"][:MOST_GROUPS]))
            return cls(groups, is_idle), document["is_last"] is True
        except (TypeError, LookupError, RecursionError) as error:
            raise ValueError(f"no answer: {error}") from error
