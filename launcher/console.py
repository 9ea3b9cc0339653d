"""What the launcher says to people, on standard error: short, prefixed, never interleaved."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(*lines: str) -> None:
    """Print lines to standard error in one write; a terminal that went away is no reason to stop a job."""
    text = "".join(f"ft_launcher: {line}\n" for line in lines)
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
