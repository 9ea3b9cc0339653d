"""Learned timeouts in a file: JSON, replaced atomically.

A process that is killed while writing leaves the old file intact; a reader sees the old state or the new one.

The format, ``{"current_timeouts": {...}}``, has no version, since others read it by its keys. A release adds keys
beside that one, as ``evidence`` was added, and changes none. So a key that is not known here is one of a newer release:
it is kept when the file is rewritten, and said once. To leave such a file alone would mean that jobs of this release,
which can read the timeouts in it, would not keep what they learn.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any

from resilience_core.errors import RankMonitorClientError, StateFileError
from resilience_core.monitoring.timeouts import (
    HeartbeatTimeouts,
    SectionTimeouts,
    evidence_from_state,
    timeouts_from_state,
)
from resilience_core.system.plain_files import only_plain

__all__ = ["load_state", "save_state"]

logger = logging.getLogger(__name__)

_OURS = frozenset({"current_timeouts", "evidence"})
"""Keys of a state: what it no longer has is removed from the file."""

_told: set[str] = set()
"""Files whose unknown keys this process has spoken of."""

_DELETE = "delete the file to learn timeouts anew"
_LARGEST_BYTES = 4 * 1024 * 1024
_JSON_NAMES: dict[type, str] = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
}


def save_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state so that the file holds either all of it or what it held before.

    Missing folders are made. The data is on disk before it takes the file's name, and the name before this
    returns. Keys of the old state that this release does not know are kept.

    Args:
        path: The file.
        state: What ``RankMonitorClient.state_dict`` gave.

    Raises:
        StateFileError: It cannot be written, or what is to be kept of the old file cannot; that is unchanged.
        ValueError: A number of the state is not finite.
    """
    name = os.fspath(path)
    folder = os.path.dirname(name) or "."
    text = json.dumps(state, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if kept := _unknown_keys(name):
        try:
            text = json.dumps({**kept, **state}, indent=1, sort_keys=True) + "\n"
        except RecursionError as error:
            raise StateFileError(
                f"learned timeouts cannot be written to {name}: it has keys that this release does not know "
                f"({', '.join(sorted(kept))}), nested too deeply to be kept"
            ) from error
    try:
        os.makedirs(folder, exist_ok=True)
        # Not tempfile: its files are private, and the next job may run as another member of the group.
        temporary = os.path.join(folder, f".{os.path.basename(name)}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)
    except OSError as error:
        raise StateFileError(f"learned timeouts cannot be written to {name}: {error.strerror}") from error


def _unknown_keys(name: str) -> dict[str, Any]:
    """Return what the file has beside a state, and say so once; nothing where it holds no state."""
    try:
        old = load_state(name)
    except StateFileError:
        return {}
    kept = {key: value for key, value in (old or {}).items() if key not in _OURS}
    if kept and name not in _told:
        _told.add(name)
        logger.warning(
            "%s has keys that this release of torch-resilience does not know (%s), perhaps those of a newer one; they "
            "are kept as they are, beside the timeouts that are learned now (said once)",
            name,
            ", ".join(sorted(kept)),
        )
    return kept


def load_state(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read a state.

    Args:
        path: The file.

    Returns:
        The state, or None where there is no file yet.

    Raises:
        StateFileError: There is one and it cannot be used: unreadable, cut off, or not a file of ours.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb", opener=only_plain) as file:
            raw = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateFileError(f"learned timeouts in {name} cannot be read: {error.strerror}") from error
    if len(raw) > _LARGEST_BYTES:
        raise StateFileError(f"{name} is larger than any file of learned timeouts; name another file")
    try:
        state = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StateFileError(f"{name} holds no JSON ({error}); {_DELETE}") from error
    if not isinstance(state, dict):
        raise StateFileError(
            f"{name} holds {_JSON_NAMES.get(type(state), 'null')}, not learned timeouts; name another file"
        )
    try:
        timeouts_from_state(state, HeartbeatTimeouts(), SectionTimeouts())
        evidence_from_state(state)
    except RankMonitorClientError as error:
        raise StateFileError(f"{name}: {error}") from error
    return state


def _sync_folder(folder: str) -> None:
    """Make the new name durable, where the file system can; where not, the file is whole all the same."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
