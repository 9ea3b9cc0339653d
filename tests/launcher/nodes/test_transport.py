"""Messages between launchers over real sockets: with strangers, cuts and peers that go and come back."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from launcher.nodes import pool
from launcher.nodes.connection import QUEUE_BYTES, Connection
from launcher.nodes.frames import Handshake
from launcher.nodes.one_shot import send_once
from launcher.nodes.transport import Received, Transport

SECRET = b"0123456789abcdef"
PATIENCE = 60.0
LOOPBACK = ("127.0.0.1", 0)


class Nodes:
    """Transports that the thread of the test polls in turn."""

    def __init__(self) -> None:
        self.all: dict[str, Transport] = {}
        self.remarks: dict[str, list[str]] = {}
        self.got: dict[str, list[Received]] = {}

    def start(
        self, name: str, run_id: str = "run", secret: bytes = SECRET, listen: tuple[str, int] = LOOPBACK
    ) -> Transport:
        remarks = self.remarks.setdefault(name, [])
        self.got.setdefault(name, [])
        self.all[name] = Transport(run_id, secret, name, listen, remarks.append)
        return self.all[name]

    def poll_until(self, is_done: Callable[[], object], each_round: Callable[[], None] = lambda: None) -> None:
        end = time.monotonic() + PATIENCE
        while not is_done():
            assert time.monotonic() < end, (self.got, self.remarks)
            each_round()
            for name, transport in self.all.items():
                self.got[name] += transport.poll(min(0.01, 0.1 / len(self.all)))

    def payloads(self, name: str) -> list[bytes]:
        return [each.payload for each in self.got[name]]

    def is_remarked(self, name: str, words: str) -> bool:
        return any(words in each for each in self.remarks[name])


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    for each in started.all.values():
        each.close()


class Proxy:
    """Forwards bytes between those who connect to it and a target; holds them while ``open`` is not set."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.listener = socket.create_server(LOOPBACK)
        self.address: tuple[str, int] = self.listener.getsockname()
        self.open = threading.Event()
        self.open.set()
        self.accepted = 0
        self.recorded = b""
        self.tamper: Callable[[bytes], bytes] = lambda data: data
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                far = socket.create_connection(self.target)
                self.sockets += [near, far]
                self.accepted += 1
                threading.Thread(target=self._copy, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._copy, args=(far, near, False), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, is_forth: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.open.wait(PATIENCE)
                if is_forth:
                    self.recorded += data
                    data = self.tamper(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.open.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy(nodes: Nodes) -> Iterator[Proxy]:
    """A proxy in front of the node ``b``."""
    started = Proxy(nodes.start("b").address)
    yield started
    started.close()


def is_cut(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def introduced(address: tuple[str, int], name: str) -> socket.socket:
    """Return a connection that has authenticated as a node that never reads or says anything again."""
    sock = socket.create_connection(address, timeout=PATIENCE)
    handshake = Handshake("run", SECRET, name, initiates=True)
    sock.sendall(handshake.begin())
    while handshake.session is None:
        sock.sendall(handshake.feed(sock.recv(4096)))
    return sock


def test_messages_go_both_ways_over_one_connection(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    a.send("b", b.address, b"one")
    a.send("b", b.address, b"two")
    nodes.poll_until(lambda: len(nodes.got["b"]) == 2)
    b.send("a", None, b"back")  # no address: the connection that a has opened
    nodes.poll_until(lambda: nodes.got["a"])
    assert nodes.got == {"a": [("b", b"back")], "b": [("a", b"one"), ("a", b"two")]}
    assert nodes.remarks == {"a": [], "b": []}


def test_both_may_open_a_connection_at_once(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    a.send("b", b.address, b"from a")
    b.send("a", a.address, b"from b")
    nodes.poll_until(lambda: nodes.got["a"] and nodes.got["b"])
    a.send("b", b.address, b"more")
    b.send("a", a.address, b"more")
    nodes.poll_until(lambda: len(nodes.got["a"]) + len(nodes.got["b"]) == 4)


def test_a_message_for_whoever_answers(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    for payload in (b"one", b"two"):
        a.send(None, b.address, payload)
        nodes.poll_until(lambda payload=payload: payload in nodes.payloads("b"))
    a.send(None, a.address, b"myself")
    nodes.poll_until(lambda: nodes.got["a"])
    assert nodes.got["a"] == [("a", b"myself")]


def test_large_messages_pass_whole(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    large = bytes(range(256)) * (1 << 16)
    a.send("b", b.address, large)
    nodes.poll_until(lambda: nodes.got["b"])
    b.send("a", None, large)
    nodes.poll_until(lambda: nodes.got["a"])
    assert nodes.payloads("a") == nodes.payloads("b") == [large]
    with pytest.raises(ValueError, match="at most"):
        a.send("b", b.address, large + b"x")


@pytest.mark.parametrize(
    ("run_id", "secret", "who", "words"),
    [("run", b"another", "a", "another secret"), ("other", SECRET, "b", "another run")],
)
def test_nodes_of_other_jobs_are_refused(nodes: Nodes, run_id: str, secret: bytes, who: str, words: str) -> None:
    a, b = nodes.start("a", run_id, secret), nodes.start("b")
    nodes.poll_until(lambda: nodes.is_remarked(who, words), lambda: a.send("b", b.address, b"psst"))
    for _ in range(3):  # connects again, and is refused again without another remark
        a.send("b", b.address, b"psst")
        nodes.poll_until(lambda: not a.poll(0.3))
    assert not nodes.got["b"]
    assert len([each for each in nodes.remarks[who] if words in each]) == 1


def test_an_address_where_another_node_answers(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    a.send("c", b.address, b"for c")
    a.send("b", b.address, b"for b")
    nodes.poll_until(lambda: nodes.got["b"])
    assert nodes.payloads("b") == [b"for b"]
    assert nodes.is_remarked("a", "is node b, not c")


def test_garbage_is_cut_at_once_and_remarked(nodes: Nodes) -> None:
    b = nodes.start("b")
    with socket.create_connection(b.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        nodes.poll_until(lambda: is_cut(stranger))
        port = stranger.getsockname()[1]
    assert [f"127.0.0.1:{port}" in each for each in nodes.remarks["b"]] == [True]


@pytest.mark.parametrize("words", [b"", b"ft-no"])
def test_silent_strangers_are_cut_within_a_bound(nodes: Nodes, words: bytes) -> None:
    b = nodes.start("b")
    with socket.create_connection(b.address) as stranger:
        stranger.sendall(words)
        nodes.poll_until(lambda: is_cut(stranger))
    assert nodes.is_remarked("b", "has not authenticated in time")


def test_many_nodes_connect_at_once(nodes: Nodes) -> None:
    leader = nodes.start("leader")
    names = [f"node-{number}" for number in range(200)]
    for name in names:
        nodes.start(name).send("leader", leader.address, name.encode())
        nodes.all[name].poll(0)
    for _ in range(10):  # all have connected before the first of them can answer
        nodes.got["leader"] += leader.poll(0)
    nodes.poll_until(lambda: len(nodes.got["leader"]) == len(names))
    assert sorted(nodes.payloads("leader")) == sorted(name.encode() for name in names)
    assert not any(nodes.remarks.values())


def test_strangers_cannot_keep_nodes_out(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_STRANGERS", 64)  # so that the descriptors of a usual process are enough
    a, b = nodes.start("a"), nodes.start("b")
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(500):
            strangers.append(stack.enter_context(socket.create_connection(b.address, PATIENCE)))
            nodes.got["b"] += b.poll(0)
        a.send("b", b.address, b"hello")
        nodes.poll_until(lambda: nodes.got["b"])
        nodes.poll_until(lambda: sum(map(is_cut, strangers)) >= len(strangers) - 64)
    assert nodes.is_remarked("b", "have not authenticated either")


def test_a_shortage_of_descriptors_is_survived(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    calls = []
    with socket.create_connection(b.address) as stranger:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            a.send("b", b.address, b"lost, or late")
            nodes.poll_until(lambda: nodes.is_remarked("a", "can be opened") and nodes.is_remarked("b", "can connect"))
            select = b._pool.selector.select
            monkeypatch.setattr(b._pool.selector, "select", lambda timeout: calls.append(timeout) or select(timeout))
            b.poll(0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(calls) < 20  # it does not spin
        nodes.poll_until(lambda: is_cut(stranger))
    nodes.poll_until(lambda: b"again" in nodes.payloads("b"), lambda: a.send("b", b.address, b"again"))


def test_recorded_bytes_are_of_no_use(nodes: Nodes, proxy: Proxy) -> None:
    a, b = nodes.start("a"), nodes.all["b"]
    a.send("b", proxy.address, b"order")
    nodes.poll_until(lambda: nodes.got["b"])
    with socket.create_connection(b.address) as stranger:
        stranger.sendall(proxy.recorded)
        nodes.poll_until(lambda: is_cut(stranger))
    assert nodes.payloads("b") == [b"order"]
    assert nodes.is_remarked("b", "another secret")


@pytest.mark.parametrize(
    ("tamper", "arrives"),
    [(lambda data: data + data, True), (lambda data: data[:-1] + bytes([data[-1] ^ 1]), False)],
    ids=["repeated", "altered"],
)
def test_a_man_in_the_middle_is_noticed(
    nodes: Nodes, proxy: Proxy, tamper: Callable[[bytes], bytes], arrives: bool
) -> None:
    a = nodes.start("a")
    a.send("b", proxy.address, b"first")
    nodes.poll_until(lambda: nodes.got["b"])
    proxy.tamper = tamper
    a.send("b", proxy.address, b"second")
    nodes.poll_until(lambda: nodes.is_remarked("b", "altered, repeated or out of order"))
    proxy.tamper = lambda data: data
    nodes.poll_until(lambda: b"third" in nodes.payloads("b"), lambda: a.send("b", proxy.address, b"third"))
    assert nodes.payloads("b").count(b"second") == arrives


def test_an_announced_size_beyond_the_bound_closes_the_connection(nodes: Nodes, proxy: Proxy) -> None:
    a = nodes.start("a")
    a.send("b", proxy.address, b"first")
    nodes.poll_until(lambda: nodes.got["b"])
    proxy.tamper = lambda data: b"\xff" + data[1:]
    a.send("b", proxy.address, b"second")
    nodes.poll_until(lambda: nodes.is_remarked("b", "has announced a message of"))


def test_messages_flow_again_after_a_cut(nodes: Nodes, proxy: Proxy) -> None:
    """The proxy's system still acknowledges bytes: only that nothing comes back shows that the link is cut."""
    a = nodes.start("a")
    a.send("b", proxy.address, b"before")
    nodes.poll_until(lambda: nodes.got["b"])
    proxy.open.clear()
    nodes.poll_until(lambda: proxy.accepted >= 2, lambda: a.send("b", proxy.address, b"during"))
    proxy.open.set()
    nodes.poll_until(lambda: b"after" in nodes.payloads("b"), lambda: a.send("b", proxy.address, b"after"))
    nodes.all["b"].send("a", None, b"back")
    nodes.poll_until(lambda: b"back" in nodes.payloads("a"))


def test_a_peer_that_only_listens_keeps_its_connection(nodes: Nodes, proxy: Proxy) -> None:
    a = nodes.start("a")
    until = time.monotonic() + 3.5
    nodes.poll_until(lambda: time.monotonic() > until, lambda: a.send("b", proxy.address, b"."))
    assert proxy.accepted == 1


def test_a_peer_may_close_and_come_back(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    a.send("b", b.address, b"first")
    nodes.poll_until(lambda: nodes.got["b"])
    b.close()
    b = nodes.start("b", listen=b.address)
    nodes.poll_until(lambda: b"second" in nodes.payloads("b"), lambda: a.send("b", b.address, b"second"))


def test_a_peer_that_comes_later_is_found(nodes: Nodes) -> None:
    with socket.create_server(LOOPBACK) as reserved:
        address = reserved.getsockname()
    a = nodes.start("a")
    a.send("b", address, b"early")
    a.poll(0.1)
    nodes.start("b", listen=address)
    nodes.poll_until(lambda: nodes.got["b"], lambda: a.send("b", address, b"again"))


def test_what_waits_for_a_peer_is_bounded(nodes: Nodes) -> None:
    a = nodes.start("a")
    payload = bytes(1 << 20)
    sock = None
    connecting = threading.Thread(target=lambda: setattr(connecting, "sock", introduced(a.address, "mute")))
    connecting.start()
    nodes.poll_until(lambda: not connecting.is_alive())
    sock = connecting.sock  # type: ignore[attr-defined]
    nodes.poll_until(lambda: a._pool.newest("mute"))
    with sock:
        for _ in range(100):
            a.send("mute", None, payload)
        connection = a._pool.newest("mute")
        assert connection is not None
        assert (QUEUE_BYTES >> 1) < len(connection.out) <= QUEUE_BYTES + 100
        assert nodes.is_remarked("a", "too much waits")
        nodes.poll_until(lambda: a._pool.newest("mute") is None)  # it does not read: given up, with its queue
    assert not connection.out


def test_what_waits_for_a_connection_is_bounded(nodes: Nodes) -> None:
    a = nodes.start("a")
    with socket.create_server(LOOPBACK) as silent:
        for _ in range(40):
            a.send("b", silent.getsockname(), bytes(1 << 20))
    assert nodes.is_remarked("a", "too much waits")
    nodes.poll_until(lambda: not a._dialer._routes)


def test_another_thread_wakes_a_poll(nodes: Nodes) -> None:
    a = nodes.start("a")
    started = threading.Timer(0.05, a.wake)
    started.start()
    assert a.poll(None) == []
    started.join()
    for _ in range(100_000):
        a.wake()  # never blocks
    assert a.poll(None) == []


def test_after_close_nothing_happens(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    a.close()
    a.close()
    a.wake()
    a.send("b", b.address, b"lost")
    assert a.poll(None) == []


def test_a_name_server_that_does_not_answer_holds_up_nothing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = nodes.start("a"), nodes.start("b"), nodes.start("c")
    answers, real = threading.Event(), socket.getaddrinfo

    def resolve(host: str, *others: object, **named: object) -> object:
        if host != "node-b":
            return real(host, *others, **named)  # type: ignore[arg-type]
        if named.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        answers.wait(PATIENCE)
        return real("127.0.0.1", *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    a.send("c", c.address, b"numeric")
    named = ("node-b", b.address[1])
    nodes.poll_until(lambda: nodes.got["c"], lambda: a.send("b", named, b"by name"))
    assert not nodes.got["b"]
    answers.set()
    nodes.poll_until(lambda: nodes.got["b"], lambda: a.send("b", named, b"by name"))


def test_addresses_that_are_none_are_no_error(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    a = nodes.start("a")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    nodes.poll_until(lambda: nodes.is_remarked("a", "cannot be resolved"), lambda: a.send("x", ("nowhere", 1), b"x"))


@pytest.mark.parametrize("address", [("127.0.0.1", 1 << 20), ("127.0.0.1", 0), ("\ud800", 1), ("a" * 300, 1), ("", 1)])
def test_impossible_addresses_are_no_error(nodes: Nodes, address: tuple[str, int]) -> None:
    a = nodes.start("a")
    a.send("x", address, b"x")
    for _ in range(20):
        assert a.poll(0.01) == []


@pytest.mark.parametrize("host", ["::1", ""])
def test_ipv6(nodes: Nodes, host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    a, b = nodes.start("a"), nodes.start("b", listen=(host, 0))
    a.send("b", ("::1", b.address[1]), b"six")
    nodes.poll_until(lambda: nodes.got["b"])


@contextlib.contextmanager
def polled(nodes: Nodes, name: str) -> Iterator[None]:
    """Poll a transport in a thread."""
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            nodes.got[name] += nodes.all[name].poll(None)

    thread = threading.Thread(target=poll)
    thread.start()
    yield
    done.set()
    nodes.all[name].wake()
    thread.join(PATIENCE)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_last_message_is_delivered_and_confirmed(nodes: Nodes, host: str) -> None:
    b = nodes.start("b")
    with polled(nodes, "b"):
        assert send_once((host, b.address[1]), "run", SECRET, "a", b"the end" * 100_000, PATIENCE)
    assert nodes.got["b"] == [("a", b"the end" * 100_000)]


def test_a_last_message_is_confirmed_only_after_the_caller_has_dealt_with_it(nodes: Nodes) -> None:
    b = nodes.start("b")
    results: list[bool] = []
    sender = threading.Thread(
        target=lambda: results.append(send_once(b.address, "run", SECRET, "a", b"the end", PATIENCE))
    )
    sender.start()
    while not (received := b.poll(PATIENCE)):
        pass
    assert received == [("a", b"the end")]
    sender.join(0.2)
    assert not results
    nodes.poll_until(lambda: results)
    assert results == [True]


def test_a_last_message_does_not_draw_others(nodes: Nodes) -> None:
    """The monitor of a node may speak in its name while its launcher is still connected."""
    a, b = nodes.start("a"), nodes.start("b")
    a.send("b", b.address, b"hello")
    nodes.poll_until(lambda: nodes.got["b"])
    results: list[bool] = []
    sender = threading.Thread(
        target=lambda: results.append(send_once(b.address, "run", SECRET, "a", b"the end", PATIENCE))
    )
    sender.start()
    nodes.poll_until(lambda: b"the end" in nodes.payloads("b"))
    b.send("a", None, b"to the launcher")
    nodes.poll_until(lambda: nodes.got["a"] and results)
    assert results == [True]


def test_a_last_message_to_nobody_fails_within_its_bound() -> None:
    with socket.create_server(LOOPBACK) as reserved:
        address = reserved.getsockname()
    assert not send_once(address, "run", SECRET, "a", b"the end", 5.0)


def test_a_last_message_to_one_that_is_silent_fails_within_its_bound() -> None:
    with socket.create_server(LOOPBACK) as silent:
        assert not send_once(silent.getsockname(), "run", SECRET, "a", b"the end", 0.2)


def test_a_last_message_of_a_stranger_is_refused(nodes: Nodes) -> None:
    b = nodes.start("b")
    with polled(nodes, "b"):
        assert not send_once(b.address, "run", b"another", "a", b"the end", PATIENCE)
        assert not send_once(b.address, "other", SECRET, "a", b"the end", PATIENCE)
    assert not nodes.got["b"]


def test_a_last_message_is_not_held_up_by_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()

    def resolve(*_: object, **named: object) -> object:
        if not named.get("flags"):
            ends.wait(PATIENCE)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert not send_once(("node-b", 1), "run", SECRET, "a", b"the end", 0.2)
    ends.set()


def test_a_socket_connected_to_itself_is_no_peer(nodes: Nodes) -> None:
    """The system may give an attempt at a free port that very port; it would then keep the peer from listening."""
    a = nodes.start("a")
    with socket.create_server(LOOPBACK) as reserved:
        address = reserved.getsockname()
    with socket.socket() as own:
        own.bind(address)
        own.connect(address)
        connection = Connection(own, Handshake("run", SECRET, "a", initiates=True), "", 0.0, address)
        with pytest.raises(OSError, match="itself"):
            connection.connected(0.0)
    assert a.poll(0) == []
