"""When an exception is freed, which tells that nobody handles it any more."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

__all__ = ["call_when_freed"]

_WATCHED = "_ft_is_watched"


class _Watched:
    """Is freed with the exception that it is an attribute of: there are no weak references to built-in ones."""

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (True,)  # where the exception goes to another process, this package may be unknown


def call_when_freed(error: BaseException, call: Callable[..., None], *arguments: object) -> None:
    """Call something once nothing refers to an exception any more, but not when the process exits.

    Of several calls for one exception the first one counts. An exception that refuses attributes is not watched.

    Args:
        error: The exception.
        call: What to call, on whichever thread drops the last reference.
        arguments: For the call.
    """
    with contextlib.suppress(AttributeError, TypeError):
        if not hasattr(error, _WATCHED):
            watched = _Watched()
            setattr(error, _WATCHED, watched)
            weakref.finalize(watched, call, *arguments).atexit = False
