"""Names as 64-bit hashes.

Kernel names are hundreds of characters and every rank has the same ones: exchanging them cost 392 MB per rank
at 10,000 ranks elsewhere. A rank sends eight bytes per name; strings travel once, and only those that rank 0
does not know from its own sections. With 2**64 values and some thousand names a collision has a chance of
10**-13; it is detected all the same, where both names are known.
"""

from __future__ import annotations

import hashlib
import logging

__all__ = ["NameTable", "hash_name"]

logger = logging.getLogger(__name__)


def hash_name(name: str) -> int:
    """Return the eight bytes that stand for a name, equal on every rank and in every run (unlike ``hash``)."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class NameTable:
    """The names that one process knows, by hash."""

    def __init__(self) -> None:
        self._by_hash: dict[int, str] = {}
        self._by_name: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Add a name and return its hash. Two names with one hash are logged, since their times would be mixed."""
        known = self._by_name.get(name)
        if known is not None:
            return known
        number = hash_name(name)
        other = self._by_hash.setdefault(number, name)
        if other != name:
            logger.error("section names %r and %r have the same hash; rename one, their times are mixed", other, name)
        self._by_name[name] = number
        return number

    def __contains__(self, number: int) -> bool:
        return number in self._by_hash

    def get(self, number: int) -> str:
        """Return the name behind a hash, or a readable stand-in while it is not known here."""
        return self._by_hash.get(number, f"unnamed-{number:016x}")

    def find(self, number: int) -> str | None:
        """Return the name behind a hash, or None."""
        return self._by_hash.get(number)
