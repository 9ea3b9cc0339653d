"""Errors for wrong arguments of the client; each names the call, the value and the fix. Never on the hot path."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable
from typing import Any, NoReturn

from resilience_core.errors import SectionError
from resilience_core.suggestions import suggestion

__all__ = ["no_iteration", "no_name", "refuse_copy", "selected_names", "unconfigured"]

_LONGEST_SHOWN_BITS = 256


def no_iteration(iteration: object) -> TypeError | ValueError:
    """Return the error for an iteration that the cell has no word for."""
    try:
        number = operator.index(iteration)  # type: ignore[arg-type]
    except TypeError:
        return TypeError(
            f"note_iteration(): iteration is {reprlib.repr(iteration)} ({type(iteration).__name__}); pass a whole "
            "number, for example the number of the step"
        )
    shown = str(number) if number.bit_length() <= _LONGEST_SHOWN_BITS else f"a number of {number.bit_length()} bits"
    return ValueError(f"note_iteration(): iteration is {shown}, which 64 bits cannot hold; pass the number of the step")


def no_name(call: str, name: object) -> SectionError:
    """Return the error for a section whose name is no string, or an empty one."""
    return SectionError(
        f"{call}: a section's name must be a string that is not empty, not {reprlib.repr(name)} "
        f"({type(name).__name__}); pass a name, for example 'step'"
    )


def selected_names(selected_sections: object) -> list[str]:
    """Return the names that a caller of ``calculate_and_set_section_timeouts`` has selected.

    Raises:
        TypeError: They are no names.
    """
    if isinstance(selected_sections, str):  # a sequence of letters, and surely not what was meant
        return [selected_sections]
    names: list[Any] = list(selected_sections) if isinstance(selected_sections, Iterable) else [selected_sections]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"calculate_and_set_section_timeouts(): selected_sections has {reprlib.repr(name)} "
                f"({type(name).__name__}) in it; pass names of sections, or None for all that were used"
            )
    return names


def unconfigured(name: str, configured: Iterable[str]) -> str:
    """Return the error for a section that the configuration does not name although it names others."""
    names = sorted(configured)
    hint = suggestion(name, names) or f"; configured: {', '.join(names)}."
    return (
        f"section '{name}' is used but not in rank_section_timeouts{hint} Add '{name}' with a timeout in seconds, "
        "or null for no limit"
    )


def refuse_copy(self: object) -> NoReturn:
    """Refuse to copy or pickle a client, as its ``__reduce__``: two would write the same words.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        "a RankMonitorClient cannot be copied or pickled, since it belongs to the process that made it; leave it "
        "out of what is copied, or make one in each process"
    )
