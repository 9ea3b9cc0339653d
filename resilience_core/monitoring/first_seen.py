"""When and where an exception was noted first, which it carries along on its way out."""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

from resilience_core.monitoring.error_words import tells_of_loss
from resilience_core.monitoring.exception_links import chain_of
from resilience_core.protocol.cell_view import CellView

__all__ = ["FirstSeen", "first_seen", "links_of", "mark_seen", "root_of", "seen_at"]

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


def links_of(error: BaseException, view: CellView) -> list[BaseException]:
    """Return an exception and what it was raised in the course of, as far as the rank has not gone on since.

    A loop that goes on in the handler of one, as with ``except MemoryError: train(smaller)``, raises all later ones in
    the course of that. The exception itself comes first in any case.
    """
    chain = chain_of(error)
    stale = (number for number, link in enumerate(chain) if number and _has_gone_on(_mark_of(link), view))
    return chain[: next(stale, None)]


def first_seen(links: list[BaseException], view: CellView) -> FirstSeen | None:
    """Return when an exception, or one that it was raised in the course of, was noted for the first time.

    Args:
        links: Of :func:`links_of`.
        view: Of the cell. One that was kept, and is raised again after the rank has gone on, is seen anew.
    """
    found = None
    for link in links:
        mark = _mark_of(link)
        found = mark if mark is not None and not _has_gone_on(mark, view) else found
    return found


def seen_at(error: BaseException) -> int | None:
    """Return when this very exception was noted for the first time, or what it was raised in the course of."""
    mark = _mark_of(error)
    return mark.at_ns if mark is not None else None


def root_of(links: list[BaseException]) -> BaseException:
    """Return what it comes from: the exception noted first, or named by ``raise ... from``, or of a peer that was lost.

    What a rank raises while it handles the loss of a peer, in a clean-up that fails or by ``sys.exit(1)``, comes from
    that loss, also where ``from None`` hides it.

    Args:
        links: Of :func:`links_of`.
    """
    root = links[0]
    for link, following in itertools.pairwise(links):
        is_of_loss = tells_of_loss(following)
        if (link.__cause__ is not None and root is link) or hasattr(following, _SEEN) or is_of_loss:
            root = following
    return root


def _mark_of(error: BaseException) -> FirstSeen | None:
    found = getattr(error, _SEEN, None)
    return FirstSeen(*found) if isinstance(found, tuple) else None


def _has_gone_on(mark: FirstSeen | None, view: CellView) -> bool:
    """Return whether the rank has begun another step since, or tries the same one again.

    What else it has begun may be part of handling the exception: it saves, or cleans up in a section of its own.
    """
    if mark is None:
        return False
    is_again = any(each.name == mark.section and each.opened_ns > mark.at_ns for each in view.sections)
    return is_again or view.iteration not in (-1, mark.iteration)
