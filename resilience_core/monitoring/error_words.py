"""How a record names an exception, and whether that only says that a peer was lost."""

from __future__ import annotations

from resilience_core.monitoring.exception_links import chain_of, leaves_of
from resilience_core.protocol.error_record import is_consequence

__all__ = ["LONGEST_MESSAGE", "message_of", "tells_of_loss", "type_name"]

LONGEST_MESSAGE = 2000


def tells_of_loss(error: BaseException) -> bool:
    """Return whether it only says that a peer was lost; a group of exceptions does so if all of them do."""
    leaves = leaves_of(error)
    if len(leaves) == 1 and leaves[0] is error:
        return is_consequence(type_name(error), message_of(error))
    return bool(leaves) and all(
        any(is_consequence(type_name(link), message_of(link)) for link in chain_of(leaf)) for leaf in leaves
    )


def type_name(error: BaseException) -> str:
    """Return the name of its class, with the module unless everybody knows that."""
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def message_of(error: BaseException) -> str:
    """Return its message, shortened to ``LONGEST_MESSAGE`` characters; never raises."""
    try:
        return str(error)[:LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001 - whatever its __str__ raises, sys.exit() too: type and place are worth it
        return "<no message: str() of the exception failed>"
