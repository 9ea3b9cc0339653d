"""Encode and decode the typed messages that our processes exchange: JSON with a kind and a version, never pickle.

Each pair of processes has its kinds of message, named tuples, in one module (:mod:`launcher.monitor.messages`,
:mod:`launcher.zygote.protocol`). A message of another version is refused and not guessed at: the package was replaced
while a job ran, and a successor was started from the new files.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

__all__ = ["MessageError", "MessageFormat"]

M = TypeVar("M")


class MessageError(ValueError):
    """What has arrived is no message of this format; the text says what it is instead."""


class MessageFormat(Generic[M]):
    """The kinds of message between two processes.

    Args:
        version: To be raised with every change of a kind or of one of its fields.
        kinds: Named tuples, whose names travel. Fields are of JSON's types; lists become tuples. A kind that holds
            anything else has ``to_json()``, which returns a dictionary, and a class method ``from_json(dictionary)``.
    """

    def __init__(self, version: int, kinds: Sequence[type[M]]) -> None:
        self._version = version
        self._kinds: dict[str, Any] = {kind.__name__: kind for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Return a message as it travels."""
        kind: Any = message
        name = type(message).__name__
        assert name in self._kinds
        fields = kind.to_json() if hasattr(kind, "to_json") else kind._asdict()
        return json.dumps({"version": self._version, "kind": name, **fields}).encode("utf-8")

    def decode(self, raw: bytes) -> M:
        """Return the message that travelled as ``raw``.

        Raises:
            MessageError: It is of another version, of an unknown kind, or lacks a field.
        """
        try:
            fields = json.loads(raw)
            version, name = fields.pop("version"), fields.pop("kind")
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            raise MessageError(f"not a message: {raw[:80]!r}") from None
        if version != self._version:
            raise MessageError(
                f"a message of version {reprlib.repr(version)} where {self._version} is spoken: torch-resilience was "
                "replaced while the job ran; start the job again"
            )
        kind = self._kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MessageError(f"a message of an unknown kind {reprlib.repr(name)}; known are {', '.join(self._kinds)}")
        try:
            if hasattr(kind, "from_json"):
                message: M = kind.from_json(fields)
            else:
                message = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        except (TypeError, LookupError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise MessageError(f"a message of kind {name} that does not fit: {error}") from error
        return message
