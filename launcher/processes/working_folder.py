"""The working folder of this process. Where it was deleted, ``os.getcwd()`` and ``os.path.abspath()`` raise."""

from __future__ import annotations

import contextlib
import os

from launcher.processes.proc import link_to_working_folder

__all__ = ["completed", "said_where_deleted", "working_folder", "working_folder_phrase"]

_DELETED = " (deleted)"  # as proc(5) shows it


def working_folder() -> str | None:
    """Return its path; None where it was deleted, or may not be looked up."""
    try:
        return os.getcwd()
    except OSError:
        return None


def working_folder_phrase() -> str:
    """Return its path for people, also of one that was deleted."""
    here = working_folder()
    return f"working folder {here}" if here is not None else f"working folder {_former()}, which was deleted"


def completed(path: str) -> str:
    """Return a path made absolute; as it is where it is relative and there is no working folder."""
    return path if working_folder() is None and not os.path.isabs(path) else os.path.abspath(path)


def said_where_deleted() -> list[str]:
    """Return a note for people before a restart, where the working folder was deleted; otherwise no line."""
    if working_folder() is not None:
        return []
    return [
        f"the working folder {_former()} was deleted: what has a relative path, the script too, may not be "
        "found any more; start the job in a folder that stays"
    ]


def _former() -> str:
    with contextlib.suppress(OSError):
        return link_to_working_folder().removesuffix(_DELETED)
    return "of this job"
