"""The numbers that a training gives its steps: whole ones, whatever type they come in.

A number is of use and nothing more, so one that is none must neither end the training nor switch its protection off.
"""

from __future__ import annotations

import logging
import operator
import reprlib

__all__ = ["whole_number"]

logger = logging.getLogger(__name__)

_told: set[str] = set()


def whole_number(what: str, given: object, counted: int) -> int:
    """Return a number as ``int``, or the one that was counted, where it is none.

    Args:
        what: What is numbered, for the warning.
        given: What the training has passed; None where it leaves the counting to us.
        counted: What it would be by our own count.
    """
    if given is None:
        return counted
    if isinstance(given, float) and given.is_integer():
        return int(given)
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # torch: a tensor of one whole number is one, of several is none
        if what not in _told:
            _told.add(what)
            logger.warning(
                "the %s is %s (%s), which is no whole number; it is counted from the last one instead, and limits "
                "apply all the same (said once). Pass the number of training steps",
                what,
                reprlib.repr(given),
                type(given).__name__,
            )
        return counted
