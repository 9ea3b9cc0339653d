"""The plane with its thread, over real sockets of this machine."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from launcher.nodes.membership import Phase
from launcher.nodes.plane import Plane, PlaneSettings
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, Farewell
from launcher.nodes.session import Address
from launcher.nodes.session_messages import Doing, Status, View
from launcher.nodes.transport import Transport

SECRET = b"0123456789abcdef"
PATIENCE = 60.0
SECOND = 1_000_000_000


class Node:
    """A plane and what it has called."""

    def __init__(self, name: str, contact: Address | None, least: int = 2, most: int | None = None) -> None:
        self.transport = Transport("run", SECRET, name, ("127.0.0.1", 0), lambda _: None)
        self.address: Address = ("127.0.0.1", self.transport.address[1])
        self.leases: list[int] = []
        self.farewells: list[tuple[Sequence[Address], bytes]] = []
        policy = Policy(least, most or least, False, 3, 20 * SECOND, 0, 60 * SECOND)
        settings = PlaneSettings(
            run_id="run",
            secret=SECRET,
            name=name,
            host=f"host {name}",
            address="127.0.0.1",
            order=name,
            slots=2,
            contacts=(contact or self.address,),
            policy=policy,
            founds=contact is None,
        )
        self.plane = Plane(
            settings, self.transport, self.leases.append, lambda to, what: self.farewells.append((to, what))
        )
        self.plane.start(Status(Doing.IDLE, -1, store_port=99))

    def wait(self, is_seen: Callable[[View], bool]) -> View:
        """Return the first view that fits, woken by the descriptor alone."""
        end = time.monotonic() + PATIENCE
        while True:
            view = self.plane.take_view()
            if view is not None and is_seen(view):
                return view
            left = end - time.monotonic()
            assert left > 0, view
            select.select([self.plane.descriptor], [], [], left)


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def one(name: str, contact: Address | None = None, least: int = 2, most: int | None = None) -> Node:
        nodes.append(Node(name, contact, least, most))
        return nodes[-1]

    yield one
    for node in nodes:
        with contextlib.suppress(OSError):  # closed by the test
            node.plane.close(0)


def runs(generation: int) -> Callable[[View], bool]:
    return lambda view: (view.generation, view.phase) == (generation, Phase.RUNNING)


def test_two_planes_make_a_generation_and_after_a_failure_the_next(start: Callable[..., Node]) -> None:
    first = start("a")
    second = start("b", first.address)
    nodes = (first, second)
    for rank, node in enumerate(nodes):
        view = node.wait(runs(0))
        assert (view.group_rank, view.group_size, view.first_rank, view.world_size) == (rank, 2, 2 * rank, 4)
        assert (view.store_host, view.store_port) == ("127.0.0.1", 99)
        assert node.plane.holds_lease
        assert node.leases == sorted(set(node.leases))
        node.plane.say(Status(Doing.RUNNING, 0))
    failed_ns = time.monotonic_ns()
    assert all(0 < node.plane.changed_ns < failed_ns for node in nodes)
    second.plane.say(Status(Doing.FAILED, 0, "it broke"))
    for node in nodes:
        view = node.wait(lambda view: view.phase == Phase.STOPPING)
        assert (view.why, view.failures) == ("it broke", 1)
        assert failed_ns < node.plane.changed_ns < time.monotonic_ns()
        node.plane.say(Status(Doing.IDLE, 0, store_port=98))
    for node in nodes:
        assert node.wait(runs(1)).store_port == 98


def test_a_node_that_leaves_hands_over_and_goes(start: Callable[..., Node]) -> None:
    first = start("a", least=1, most=2)
    second = start("b", first.address, least=1, most=2)
    for node in (first, second):
        node.wait(lambda view: view.group_size == 2)
        node.plane.say(Status(Doing.RUNNING, 0))
    first.plane.say(Status(Doing.LEAVING, 0, "asked to"))
    first.plane.say(Status(Doing.LEFT, 0, "asked to"))
    first.plane.close(PATIENCE)
    view = second.wait(lambda view: view.phase == Phase.STOPPING or view.generation == 1 or view.group_size == 1)
    if view.phase == Phase.STOPPING:
        second.plane.say(Status(Doing.IDLE, view.generation))
        view = second.wait(lambda view: view.phase == Phase.RUNNING)
    assert view.group_size == 1


def test_the_end_is_told_to_all_before_the_leader_goes(start: Callable[..., Node]) -> None:
    first = start("a")
    second = start("b", first.address)
    for node in (first, second):
        node.wait(runs(0))
        node.plane.say(Status(Doing.FINISHED, 0))
    for node in (first, second):
        assert node.wait(lambda view: view.phase == Phase.ENDED).exit_code == 0
    for node in (first, second):
        node.plane.close(PATIENCE)


def test_where_a_farewell_goes_is_told_with_its_text(start: Callable[..., Node]) -> None:
    first = start("a")
    second = start("b", first.address)
    second.wait(runs(0))
    end = time.monotonic() + PATIENCE
    while not second.farewells:
        assert time.monotonic() < end
        second.plane.say(Status(Doing.RUNNING, 0))
        time.sleep(0.01)
    to, what = second.farewells[-1]
    assert first.address in to
    assert second.address not in to
    assert FORMAT.decode(what) == Farewell("b", "the launcher of node host b was killed")


def test_what_is_no_message_is_passed_over(start: Callable[..., Node], caplog: pytest.LogCaptureFixture) -> None:
    first = start("a", least=1)
    first.wait(runs(0))
    stranger = Transport("run", SECRET, "x", ("127.0.0.1", 0), lambda _: None)
    end = time.monotonic() + PATIENCE
    while "node x has sent" not in caplog.text:
        assert time.monotonic() < end
        stranger.send(None, first.address, b"nonsense")
        stranger.poll(0.05)
    stranger.close()
    assert first.plane.holds_lease


def test_a_failure_of_the_thread_is_told_to_who_takes_the_view(
    start: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start("a", least=1)
    first.wait(runs(0))

    def fail(*_: object) -> None:
        raise OSError("no sockets any more")

    monkeypatch.setattr(first.transport, "send", fail)
    monkeypatch.setattr(first.transport, "poll", fail)
    first.plane.say(Status(Doing.RUNNING, 0))
    with pytest.raises(RuntimeError, match="no sockets any more"):
        first.wait(lambda view: view.generation == 99)
    first.plane.close(PATIENCE)


def test_nobody_holds_a_lease_before_it_is_granted_and_a_plane_may_be_closed_alone(start: Callable[..., Node]) -> None:
    alone = start("b", ("127.0.0.1", 1))
    assert alone.plane.take_view() is None
    assert not alone.plane.holds_lease
    assert alone.leases == []
    alone.plane.close(0)
    with pytest.raises(OSError, match="descriptor"):
        alone.plane.take_view()
