"""When and where an exception was noted first, which it carries along on its way out."""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

from resilience_core.monitoring.error_words import tells_of_loss
from resilience_core.monitoring.exception_links import chain_of

__all__ = ["FirstSeen", "first_seen", "mark_seen", "root_of", "seen_at"]

_SEEN = "_ft_first_seen"


class FirstSeen(NamedTuple):
    """What is known of that moment."""

    at_ns: int
    section: str | None
    iteration: int
    is_step_done: bool | None


def mark_seen(error: BaseException, first: FirstSeen) -> None:
    """Let an exception carry it along; one that refuses attributes does not."""
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _SEEN, tuple(first))  # a plain tuple: where it is sent to, this package may be unknown


def first_seen(error: BaseException) -> FirstSeen | None:
    """Return when this exception, or one that it was raised in the course of, was noted for the first time."""
    found = None
    for link in chain_of(error):
        found = getattr(link, _SEEN, found)
    return FirstSeen(*found) if found is not None else None


def seen_at(error: BaseException) -> int | None:
    """Return when this very exception was noted for the first time, or what it was raised in the course of."""
    found = getattr(error, _SEEN, None)
    return found[0] if isinstance(found, tuple) else None


def root_of(error: BaseException) -> BaseException:
    """Return what it comes from: the exception noted first, or named by ``raise ... from``, or of a peer that was lost.

    What a rank raises while it handles the loss of a peer, in a clean-up that fails or by ``sys.exit(1)``, comes from
    that loss, also where ``from None`` hides it.
    """
    root = error
    for link, following in itertools.pairwise(chain_of(error)):
        is_of_loss = tells_of_loss(following)
        if (link.__cause__ is not None and root is link) or hasattr(following, _SEEN) or is_of_loss:
            root = following
    return root
