"""What a node remembers of a job in its log folder, for the launcher that may be started after this one.

With it a launcher that is started again finds the job although the node of ``--rdzv-endpoint`` is gone, and one on that
very node knows that the job was begun before. Nothing is decided by it: it may be old, lost, or on another node.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["MEMORY_FILE", "NodeMemory", "MemoryWriter", "forget", "read_memory", "remember"]

MEMORY_FILE = "nodes.json"
_VERSION = 1

Address = tuple[str, int]


class NodeMemory(NamedTuple):
    """What was remembered.

    Args:
        was_begun: A launcher has taken part in a job of this run here, and has not seen its end.
        contacts: Where the voters of that job were found last.
    """

    was_begun: bool
    contacts: tuple[Address, ...]


def read_memory(log_folder: str) -> NodeMemory:
    """Read what is remembered; nothing where the file is not there or damaged.

    Args:
        log_folder: Of the run.
    """
    path = os.path.join(log_folder, MEMORY_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document["version"] != _VERSION:
            return NodeMemory(True, ())
        return NodeMemory(True, tuple((str(host), int(port)) for host, port in document["contacts"]))
    except FileNotFoundError:
        return NodeMemory(False, ())
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return NodeMemory(True, ())


def remember(log_folder: str, contacts: Sequence[Address]) -> None:
    """Write where the voters are found, in place of what was written before.

    Raises:
        OSError: It cannot be written.
    """
    path = os.path.join(log_folder, MEMORY_FILE)
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, "contacts": [list(contact) for contact in contacts]}, file)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


class MemoryWriter:
    """Writes what a node remembers, and says once where that cannot be written.

    Args:
        log_folder: Of the run.
        say: Called with a line for people.
    """

    def __init__(self, log_folder: str, say: Callable[[str], object]) -> None:
        self._log_folder, self._say = log_folder, say
        self._has_said = False

    def remember(self, contacts: Sequence[Address]) -> None:
        """Write what :func:`remember` does; raise nothing."""
        try:
            remember(self._log_folder, contacts)
        except OSError as error:
            if not self._has_said:
                self._has_said = True
                path = os.path.join(self._log_folder, MEMORY_FILE)
                self._say(
                    f"{path} cannot be written: {error.strerror}. The job goes on; "
                    "a launcher that is started again on this node asks the nodes of --rdzv-endpoint alone (said once)"
                )


def forget(log_folder: str) -> None:
    """Remove what is remembered: the job has ended."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(log_folder, MEMORY_FILE))
