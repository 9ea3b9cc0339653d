"""What an exception says, also one whose own text cannot be made."""

from __future__ import annotations

__all__ = ["text_of"]


def text_of(error: BaseException) -> str:
    """Return ``str(error)``; what stands in the way of it where that raises, as it may in foreign code."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - foreign code, and a message must not end a training
        return f"<its text cannot be made: {type(problem).__name__}>"
