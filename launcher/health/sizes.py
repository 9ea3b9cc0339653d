"""Numbers of bytes as people write and read them."""

from __future__ import annotations

import re

__all__ = ["parse_size", "shown"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Read bytes, or KiB, MiB, GiB or TiB with ``K``, ``M``, ``G`` or ``T`` behind the number.

    Raises:
        ValueError: With the fix.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("give a size as 512M or 10G (K, M, G, T are powers of 1024)")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def shown(size: float) -> str:
    """Return a number of bytes in the largest unit that fits, as ``1.5 GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole = _UNITS[unit[0]]
        if size >= whole:
            return f"{size / whole:.1f} {unit}".replace(".0 ", " ")
    return f"{size:.0f} B"
