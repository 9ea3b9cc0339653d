"""When an exception is freed, which tells that nobody handles it any more."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable

__all__ = ["call_when_freed"]

_WATCHED = "_ft_is_watched"


class _Watched(str):
    """Is freed with the exception that it is an attribute of: there are no weak references to built-in ones.

    A string, for those who write the attributes of an exception as JSON.
    """

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (True,)  # where the exception goes to another process, this package may be unknown


def call_when_freed(error: BaseException, call: Callable[..., None], *arguments: object) -> None:
    """Call something once nothing refers to an exception any more, but not when the process exits.

    The interpreter lets go of a ``SystemExit`` before that, with no frame of Python left. Of several calls for one
    exception the first one counts. An exception that refuses attributes is not watched.

    Args:
        error: The exception.
        call: What to call, on whichever thread drops the last reference.
        arguments: For the call.
    """
    with contextlib.suppress(AttributeError, TypeError):
        if not hasattr(error, _WATCHED):
            watched = _Watched("yes")
            setattr(error, _WATCHED, watched)
            weakref.finalize(watched, _call_from_code, call, arguments).atexit = False


def _call_from_code(call: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        sys._getframe(2)  # beside this function and the finalizer, which is one of Python's own
    except ValueError:
        return
    call(*arguments)
