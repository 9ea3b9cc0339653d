"""The link ``latest`` to the newest run's log folder, beside it."""

from __future__ import annotations

import os
import secrets

__all__ = ["NAME", "lead_to", "make_room", "restore"]

NAME = "latest"


def lead_to(log_folder: str) -> bool:
    """Let ``latest``, beside a run's log folder, lead to it.

    The link is relative, so that the folder of log folders may be moved, and replaced in one step. Whatever else has
    that name stays, and where no link can be made there is none.

    Returns:
        Whether it leads there now.
    """
    parent, name = os.path.split(log_folder)
    link, new = os.path.join(parent, NAME), os.path.join(parent, f".{NAME}-{secrets.token_hex(4)}")
    if os.path.lexists(link) and not _is_ours(link):
        return False
    try:
        os.symlink(name, new)
        try:
            os.rename(new, link)
        except OSError:
            os.unlink(new)
            raise
    except OSError:  # read-only, full, no links there
        return False
    return True


def restore(log_folder: str) -> None:
    """Make the link anew where somebody has removed it together with a run's log folder."""
    if not os.path.lexists(os.path.join(os.path.dirname(log_folder), NAME)):
        lead_to(log_folder)


def _is_ours(path: str) -> bool:
    """Return whether it is a link to something beside it: nobody but us makes that under this name."""
    try:
        return not os.path.dirname(os.readlink(path))
    except OSError:  # no link, or none at all
        return False


def make_room(log_folder: str) -> None:
    """Take our link away where a run's own log folder is to have its name (``--rdzv-id latest``).

    Raises:
        OSError: It cannot be removed.
    """
    if os.path.basename(log_folder) == NAME and _is_ours(log_folder):
        os.unlink(log_folder)
