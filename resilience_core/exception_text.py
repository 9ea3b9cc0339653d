"""What an exception says, also one whose own text cannot be made, or is too long for a message."""

from __future__ import annotations

__all__ = ["LONGEST_TEXT", "text_of"]

LONGEST_TEXT = 2000
"""In characters; an exception may have a whole tensor or file in its text."""


def text_of(error: BaseException) -> str:
    """Return ``str(error)``, for a message.

    A text beyond :data:`LONGEST_TEXT` is cut, and says so. Where the text cannot be made, as may happen in foreign
    code, the type of the exception that prevented it is returned instead.
    """
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - foreign code, and a message must not end a training
        return f"<its text cannot be made: {type(problem).__name__}>"
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} ... (cut; {len(text) - LONGEST_TEXT} characters more)"
