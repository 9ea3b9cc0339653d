"""The versions of the files that a run leaves, and the refusal of an unknown one.

A file of another version is refused and not guessed at: a field may mean something else there. A file without a version
is of version 1, in which the first releases wrote none into ``events.jsonl``.
"""

from __future__ import annotations

from resilience_core.errors import ResilienceError

__all__ = ["UnknownVersionError", "check_version"]


class UnknownVersionError(ResilienceError, ValueError):
    """A file of a run is of a version that this installation cannot read; the message names both versions."""


def check_version(what: str, version: object, known: int) -> None:
    """Refuse a file that another release of torch-resilience has written in another format.

    Args:
        what: The file, for people.
        version: What it says of itself.
        known: The version that is read here.

    Raises:
        UnknownVersionError: They differ.
    """
    if version != known or isinstance(version, bool):
        raise UnknownVersionError(
            f"{what} has version {version!r}, and this torch-resilience reads version {known}; read it with the "
            "release that wrote it"
        )
