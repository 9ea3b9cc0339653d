"""ft_top: a live table of the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a run.

    Args:
        arguments: The command line; that of the process when None.

    Returns:
        The exit code.
    """
    from launcher.top.command import run

    return run(arguments)
