"""Authenticated bytes between the launchers of one job; no sockets here.

*Handshake.* Three passes prove to both sides that the other one has the job's secret. The scheme is SKID3 (Bosselaers
and Preneel, RIPE Integrity Primitives, LNCS 1007; the three-pass mutual authentication of ISO/IEC 9798-4 is of the same
kind)::

    initiator -> responder   hello_i                                hello: magic, version, flags, run, nonce, node id
    responder -> initiator   hello_r, HMAC(k, "responder" + hello_i + hello_r)
    initiator -> responder   HMAC(k, "initiator" + hello_i + hello_r)

Both nonces are under both codes, so that a recorded answer fits no other handshake; so is the role, so that an answer
cannot be sent back to whoever gave it. ``k`` is derived from the secret and the run id.

*Frames.* Each direction has its own key, derived by HKDF (RFC 5869) from the secret, the nonces and both hellos. A
frame is the payload's length (4 bytes), a kind (1 byte), a code (16 bytes) and the payload. The code is HMAC-SHA256,
truncated as RFC 2104 section 5 allows, over a sequence number that is counted and not sent, the length, the kind and
the payload.

Nothing is encrypted: who can read the network can read the messages. Whoever has the secret may take any node id. The
secret must be random: with a short one, a stranger could try guesses against a responder's answer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterator
from typing import Final

__all__ = [
    "CONFIRM",
    "DATA",
    "MAX_PAYLOAD",
    "PING",
    "PONG",
    "TAKEN",
    "VERSION",
    "Handshake",
    "RefusedError",
    "Session",
]

VERSION: Final = 1
MAX_PAYLOAD: Final = 16 << 20
"""Bytes; a longer frame is refused before it is read."""
DATA, CONFIRM, TAKEN, PING, PONG = range(5)
"""Kinds of frames: a message; one whose sender waits for TAKEN; and a question whether the peer still reads."""

_MAGIC = b"ft-nodes"
_HELLO = struct.Struct(">8sBB16s32sB")
"""Magic, version, flags, digest of the run id, nonce, length of the node id, which follows."""
_OTHER_TERMS: Final = (
    "has another secret than this job, or another value of --ft-node-lease, --nnodes, --max-restarts, "
    "--ft-membership or --ft-newcomers"
)
"""Which one it is cannot be told: what is compared is a digest of all."""
_ONE_SHOT = 1
"""A flag: the initiator delivers one message and is not to be sent any."""
_NONCE_BYTES, _HASH_BYTES, _CODE_BYTES = 32, 32, 16
_HEADER = struct.Struct(">IB16s")
_COUNTED = struct.Struct(">QIB")
_ROLES = (b"responder", b"initiator")


class RefusedError(Exception):
    """The peer's bytes are not those of a launcher of this job; the connection must be closed.

    Attributes:
        sort: ``garbage``, ``version``, ``run``, ``secret``, ``size`` or ``frame``.
    """

    def __init__(self, sort: str, text: str) -> None:
        super().__init__(text)
        self.sort = sort


class Handshake:
    """One side of a handshake.

    Args:
        run_id: Of the job's run.
        secret: Of the job.
        node_id: Of this side, at most 255 bytes of UTF-8.
        initiates: Whether this side has opened the connection.
        one_shot: Whether this side, an initiator, is not to be sent messages.

    Attributes:
        peer: The other side's node id; None until the handshake is complete.
        peer_is_one_shot: Whether the other side is not to be sent messages.
        session: What seals and opens frames; None until the handshake is complete.

    Raises:
        ValueError: An empty secret or node id, or a node id that is too long.
    """

    def __init__(self, run_id: str, secret: bytes, node_id: str, initiates: bool, one_shot: bool = False) -> None:
        name = node_id.encode()
        if not secret:
            raise ValueError("the job's secret is empty")
        if not 0 < len(name) < 256:
            raise ValueError(f"a node id has 1 to 255 bytes, not {len(name)}: {node_id[:40]!r}")
        self.peer: str | None = None
        self.peer_is_one_shot = False
        self.session: Session | None = None
        self._secret = secret
        self._run = hashlib.sha256(b"ft-nodes run" + run_id.encode()).digest()[:16]
        self._key = _expand(_extract(b"ft-nodes handshake", secret), run_id.encode())
        self._initiates = initiates
        flags = _ONE_SHOT if one_shot else 0
        self._own = _HELLO.pack(_MAGIC, VERSION, flags, self._run, os.urandom(_NONCE_BYTES), len(name)) + name
        self._theirs = b""
        self._their_name = ""
        self._buffer = bytearray()
        self._refused: RefusedError | None = None

    def begin(self) -> bytes:
        """Return the bytes to send first: the initiator's hello, nothing for a responder."""
        return self._own if self._initiates else b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the peer, in pieces of any size, and return the bytes to answer with.

        What follows the handshake in ``data`` is handed to the session: ask it for ``frames(b"")``.

        Raises:
            RefusedError: The peer is refused; each later call raises it again.
        """
        if self._refused is not None:
            raise self._refused
        try:
            return self._feed(data)
        except RefusedError as error:
            self._refused = error
            raise

    def _feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        if not self._theirs:
            if not self._take_hello():
                return b""
            if not self._initiates:
                answer = self._own + self._code(b"responder")
        if len(self._buffer) < _HASH_BYTES:
            return answer
        code = bytes(self._buffer[:_HASH_BYTES])
        del self._buffer[:_HASH_BYTES]
        if not hmac.compare_digest(code, self._code(_ROLES[not self._initiates])):
            raise RefusedError("secret", _OTHER_TERMS)
        if self._initiates:
            answer = self._code(b"initiator")
        self._complete()
        return answer

    def _take_hello(self) -> bool:
        """Take the peer's hello if it is whole; refuse it as soon as a part shows that it is none."""
        buffer = self._buffer
        if not _MAGIC.startswith(bytes(buffer[: len(_MAGIC)])):
            raise RefusedError("garbage", "does not speak the protocol of this job's launchers")
        if len(buffer) > len(_MAGIC) and buffer[len(_MAGIC)] != VERSION:
            raise RefusedError("version", f"speaks version {buffer[len(_MAGIC)]} of the protocol, not {VERSION}")
        if len(buffer) < _HELLO.size:
            return False
        _, _, flags, run, _, length = _HELLO.unpack_from(buffer)
        if run != self._run:
            raise RefusedError("run", "belongs to another run")
        if len(buffer) < _HELLO.size + length:
            return False
        hello = bytes(buffer[: _HELLO.size + length])
        del buffer[: len(hello)]
        try:
            self._their_name = hello[_HELLO.size :].decode()
        except UnicodeDecodeError:
            raise RefusedError("garbage", "has a node id that is no UTF-8") from None
        if not length:
            raise RefusedError("garbage", "has an empty node id")
        self._theirs = hello
        self.peer_is_one_shot = bool(flags & _ONE_SHOT)
        return True

    @property
    def _transcript(self) -> bytes:
        return self._own + self._theirs if self._initiates else self._theirs + self._own

    def _code(self, role: bytes) -> bytes:
        return hmac.digest(self._key, role + self._transcript, "sha256")

    def _complete(self) -> None:
        transcript = self._transcript
        nonces = [hello[_HELLO.size - 1 - _NONCE_BYTES : _HELLO.size - 1] for hello in (self._own, self._theirs)]
        extracted = _extract(b"".join(nonces if self._initiates else nonces[::-1]), self._secret)
        keys = [_expand(extracted, b"ft-nodes frames " + role + transcript) for role in _ROLES]
        self.session = Session(keys[self._initiates], keys[not self._initiates], bytes(self._buffer))
        self.peer = self._their_name
        self._buffer.clear()


class Session:
    """Frames of one connection, after its handshake.

    Args:
        sending_key: Of the frames that this side sends, 32 bytes.
        receiving_key: Of the frames that it receives.
        received: What has been received already.
    """

    def __init__(self, sending_key: bytes, receiving_key: bytes, received: bytes = b"") -> None:
        self._sending_key, self._receiving_key = sending_key, receiving_key
        self._sent, self._received = 0, 0
        self._buffer = bytearray(received)
        self._refused: RefusedError | None = None

    def seal(self, payload: bytes, kind: int = DATA) -> bytes:
        """Return the next frame to send; every frame must be sent, in this order.

        Raises:
            ValueError: The payload is longer than ``MAX_PAYLOAD``.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a message has at most {MAX_PAYLOAD} bytes, not {len(payload)}")
        counted = _COUNTED.pack(self._sent, len(payload), kind)
        code = hmac.digest(self._sending_key, counted + payload, "sha256")[:_CODE_BYTES]
        self._sent += 1
        return _HEADER.pack(len(payload), kind, code) + payload

    def frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take bytes of the peer, in pieces of any size; yield the kind and the payload of each frame that is whole.

        Raises:
            RefusedError: A frame is altered, repeated, out of order or too long; each later call raises it again.
        """
        if self._refused is not None:
            raise self._refused
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            length, kind, code = _HEADER.unpack_from(buffer)
            if length > MAX_PAYLOAD:
                self._refused = RefusedError("size", f"has announced a message of {length} bytes")
                raise self._refused
            end = _HEADER.size + length
            if len(buffer) < end:
                return
            payload = bytes(buffer[_HEADER.size : end])
            counted = _COUNTED.pack(self._received, length, kind)
            due = hmac.digest(self._receiving_key, counted + payload, "sha256")[:_CODE_BYTES]
            if not hmac.compare_digest(code, due):
                self._refused = RefusedError("frame", "has sent a message that is altered, repeated or out of order")
                raise self._refused
            del buffer[:end]
            self._received += 1
            yield kind, payload


def _extract(salt: bytes, secret: bytes) -> bytes:
    """Return the pseudorandom key of HKDF (RFC 5869, section 2.2)."""
    return hmac.digest(salt, secret, "sha256")


def _expand(key: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF's output (RFC 5869, section 2.3: one round is enough)."""
    return hmac.digest(key, info + b"\x01", "sha256")
