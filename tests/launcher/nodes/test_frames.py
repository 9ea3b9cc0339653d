"""Bytes between launchers: two sides that know the secret understand each other, and nobody else gets a word in."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.frames import CONFIRM, DATA, MAX_PAYLOAD, VERSION, Handshake, RefusedError, Session

SECRET = b"0123456789abcdef"


def pair(**others: object) -> tuple[Handshake, Handshake]:
    """Return an initiator, with some arguments of its own, and a responder."""
    given = {"run_id": "run", "secret": SECRET, "node_id": "a", "initiates": True, **others}
    return Handshake(**given), Handshake("run", SECRET, "b", initiates=False)  # type: ignore[arg-type]


def shake(initiator: Handshake, responder: Handshake) -> tuple[Session, Session]:
    responder.feed(initiator.feed(responder.feed(initiator.begin())))
    assert initiator.session is not None
    assert responder.session is not None
    return initiator.session, responder.session


def refused(initiator: Handshake, responder: Handshake) -> str:
    with pytest.raises(RefusedError) as caught:
        shake(initiator, responder)
    return caught.value.sort


def test_both_sides_know_each_other_and_exchange_messages() -> None:
    initiator, responder = pair()
    there, back = shake(initiator, responder)
    assert (initiator.peer, responder.peer) == ("b", "a")
    assert list(back.frames(there.seal(b"one") + there.seal(b"", CONFIRM))) == [(DATA, b"one"), (CONFIRM, b"")]
    assert list(there.frames(back.seal(b"two"))) == [(DATA, b"two")]


def test_a_handshake_may_arrive_byte_by_byte_with_messages_behind_it() -> None:
    initiator, responder = pair()

    def bytewise(side: Handshake, data: bytes) -> bytes:
        return b"".join(side.feed(data[i : i + 1]) for i in range(len(data)))

    proof = bytewise(initiator, bytewise(responder, initiator.begin()))
    assert initiator.session is not None
    assert responder.feed(proof + initiator.session.seal(b"early")) == b""
    assert responder.session is not None
    assert list(responder.session.frames(b"")) == [(DATA, b"early")]


def test_one_who_sends_a_single_message_says_so() -> None:
    initiator, responder = pair(one_shot=True)
    shake(initiator, responder)
    assert responder.peer_is_one_shot
    assert not initiator.peer_is_one_shot


def test_another_secret_is_refused_by_the_initiator_before_it_proves_anything() -> None:
    assert refused(*pair(secret=b"another")) == "secret"


def test_another_secret_is_refused_by_the_responder() -> None:
    initiator, responder = pair()
    responder.feed(initiator.begin())
    with pytest.raises(RefusedError) as caught:
        responder.feed(bytes(32))
    assert caught.value.sort == "secret"
    assert responder.session is None


def test_another_run_is_refused() -> None:
    assert refused(*pair(run_id="other")) == "run"


def test_another_version_is_refused() -> None:
    initiator, responder = pair()
    hello = bytearray(initiator.begin())
    hello[8] = VERSION + 1
    with pytest.raises(RefusedError) as caught:
        responder.feed(bytes(hello))
    assert caught.value.sort == "version"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"x"])
def test_strangers_are_refused_at_their_first_bytes(data: bytes) -> None:
    responder = pair()[1]
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            responder.feed(data)
        assert caught.value.sort == "garbage"


def test_an_answer_cannot_be_reflected() -> None:
    """A stranger answers an initiator with what that node, as a responder, has said to the stranger's own hello."""
    victim = Handshake("run", SECRET, "a", initiates=True)
    hello = victim.begin()
    with pytest.raises(RefusedError):
        victim.feed(hello + hello[-32:])
    same_node = Handshake("run", SECRET, "a", initiates=False)
    answer = same_node.feed(hello)  # made for the role of a responder
    with pytest.raises(RefusedError) as caught:
        same_node.feed(answer[-32:])
    assert caught.value.sort == "secret"


def test_a_recorded_handshake_fits_no_other_one() -> None:
    initiator, responder = pair()
    hello = initiator.begin()
    proof = initiator.feed(responder.feed(hello))
    again = pair()[1]
    again.feed(hello)
    with pytest.raises(RefusedError):
        again.feed(proof)


def test_an_altered_hello_is_noticed() -> None:
    initiator, responder = pair()
    hello = bytearray(initiator.begin())
    hello[-1] ^= 1  # the node id
    with pytest.raises(RefusedError):
        initiator.feed(responder.feed(bytes(hello)))


def test_a_repeated_frame_is_refused() -> None:
    there, back = shake(*pair())
    frame = there.seal(b"once")
    assert list(back.frames(frame)) == [(DATA, b"once")]
    with pytest.raises(RefusedError):
        list(back.frames(frame))


def test_frames_out_of_order_are_refused() -> None:
    there, back = shake(*pair())
    first, second = there.seal(b"first"), there.seal(b"second")
    with pytest.raises(RefusedError):
        list(back.frames(second + first))


def test_a_frame_cannot_be_sent_back_to_its_sender() -> None:
    there, _ = shake(*pair())
    with pytest.raises(RefusedError):
        list(there.frames(there.seal(b"mine")))


def test_a_frame_of_another_connection_is_refused() -> None:
    there, _ = shake(*pair())
    _, other = shake(*pair())
    with pytest.raises(RefusedError):
        list(other.frames(there.seal(b"elsewhere")))


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    _, back = shake(*pair())
    with pytest.raises(RefusedError) as caught:
        list(back.frames(struct.pack(">IB16s", MAX_PAYLOAD + 1, DATA, b"")))
    assert caught.value.sort == "size"


def test_the_largest_message_passes_and_a_larger_one_is_not_made() -> None:
    there, back = shake(*pair())
    payload = bytes(MAX_PAYLOAD)
    assert list(back.frames(there.seal(payload))) == [(DATA, payload)]
    with pytest.raises(ValueError, match="at most"):
        there.seal(payload + b"x")


def test_after_a_refusal_nothing_is_accepted() -> None:
    there, back = shake(*pair())
    good = there.seal(b"good")
    for data in (b"\xff" * 21, good):
        with pytest.raises(RefusedError):
            list(back.frames(data))


@pytest.mark.parametrize(("secret", "node_id"), [(b"", "a"), (b"s", ""), (b"s", "x" * 256)])
def test_useless_identities_are_errors(secret: bytes, node_id: str) -> None:
    with pytest.raises(ValueError, match=r"empty|bytes"):
        Handshake("run", secret, node_id, initiates=True)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(st.binary(max_size=60), max_size=6), st.lists(st.integers(0, 2000), max_size=12))
def test_frames_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    there, back = shake(*pair())
    data = b"".join(there.seal(each) for each in payloads)
    assert [got for piece in pieces(data, cuts) for _, got in back.frames(piece)] == payloads


@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    st.lists(st.integers(0, 2000), max_size=8),
    st.integers(0, 2000),
    st.one_of(st.integers(1, 255), st.binary(max_size=40)),
    st.integers(0, 30),
)
def test_corrupted_bytes_never_become_a_message(
    payloads: list[bytes], cuts: list[int], where: int, change: int | bytes, removed: int
) -> None:
    """Flip a byte, or put others in place of some: what is yielded is what was sent, from the first on."""
    there, back = shake(*pair())
    data = b"".join(there.seal(each) for each in payloads)
    where %= len(data)
    put = bytes([data[where] ^ change]) if isinstance(change, int) else change
    damaged = data[:where] + put + data[where + (1 if isinstance(change, int) else removed) :]
    got: list[bytes] = []
    try:
        for piece in pieces(damaged, cuts):
            got += [payload for _, payload in back.frames(piece)]
    except RefusedError:
        pass
    assert got == payloads[: len(got)]
    assert damaged.startswith(data) or len(got) < len(payloads)


@given(st.binary(max_size=300), st.integers(0, 200), st.booleans())
def test_no_bytes_raise_anything_else_in_a_handshake(noise: bytes, kept: int, initiates: bool) -> None:
    initiator, responder = pair()
    answer = responder.feed(initiator.begin())
    real, side = (answer, initiator) if initiates else (initiator.begin(), pair()[1])
    sent = real[:kept] + noise
    try:
        side.feed(sent)
    except RefusedError:
        pass
    assert side.session is None or sent.startswith(real)


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_no_bytes_raise_anything_else_after_it(data: list[bytes]) -> None:
    _, back = shake(*pair())
    for each in data:
        try:
            assert list(back.frames(each)) == []
        except RefusedError:
            pass
