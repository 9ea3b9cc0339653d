"""The control plane of one node: the protocol with sockets, a clock and a thread of its own.

The thread alone touches the protocol and the sockets, so that a lease is renewed while the agent starts workers, waits
for them, or is stuck in a file system. The agent says what its node is doing, and reads what the job is doing; neither
call blocks.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from launcher.nodes.failure_messages import Story
from launcher.nodes.gathering import Gathered, Heard
from launcher.nodes.membership import NodeInfo
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, Farewell, NodeProtocol
from launcher.nodes.session import Address
from launcher.nodes.session_messages import Doing, Status, View
from launcher.nodes.transport import Transport
from launcher.processes.message_format import MessageError

__all__ = ["FailureListener", "Plane", "PlaneSettings"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_LOOK_SECONDS = 0.2
_LONGEST_LAST_SECONDS = 0.5


class PlaneSettings(NamedTuple):
    """What a node needs to take part.

    Args:
        run_id: Of the job.
        secret: That its launchers share.
        name: Of this incarnation; unique for all time.
        host: What the node calls itself.
        address: Where other nodes find it.
        order: What nodes are sorted by; empty for the order in which they join.
        slots: Ranks that it runs.
        contacts: Where to find the job.
        policy: The user's.
        founds: Whether this node begins the job.
        last_stop_ns: How long its ranks may take to end once the job has.
    """

    run_id: str
    secret: bytes
    name: str
    host: str
    address: str
    order: str
    slots: int
    contacts: tuple[Address, ...]
    policy: Policy
    founds: bool
    last_stop_ns: int = 0


class FailureListener(Protocol):
    """Whom the control plane tells of failures, in its thread; neither call may block or raise."""

    def heard(self, heard: Heard) -> None:
        """Take what the leader says to this node."""

    def gathered(self, gathered: Gathered) -> None:
        """Take the accounts of all nodes, as this node leads; :meth:`Plane.decided` is to follow, from any thread."""


class Plane:
    """Made, started, spoken to, closed.

    Args:
        settings: See there.
        transport: Already listening; closed with the plane.
        on_lease: Called by the thread with the monotonic time at which ranks are to be killed, whenever it changes.
        on_voters: Called by the thread with where a farewell is to be sent, and what, whenever that changes.

    Attributes:
        descriptor: Readable when the view has changed; see :meth:`take_view`.
    """

    def __init__(
        self,
        settings: PlaneSettings,
        transport: Transport,
        on_lease: Callable[[int], object],
        on_voters: Callable[[Sequence[Address], bytes], object],
    ) -> None:
        self._settings, self._transport = settings, transport
        self._on_lease, self._on_voters = on_lease, on_voters
        info = NodeInfo(settings.host, settings.address, transport.address[1], settings.order, settings.slots)
        self._protocol = NodeProtocol(
            settings.name,
            info,
            settings.contacts,
            settings.policy,
            random.Random(settings.name),
            time.monotonic_ns(),
            founds=settings.founds,
        )
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._status = Status(Doing.IDLE, -1)
        self._view: View | None = None
        self.changed_ns = 0
        """When what is known of the job has changed last, on ``CLOCK_MONOTONIC``."""
        self._fence_ns: int | None = None
        self._deadline_ns: int | None = None
        self._refusal = ("", False)
        self._is_released = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._listener: FailureListener | None = None
        self._of_failures: collections.deque[Callable[[int], object]] = collections.deque()
        """What is to be said of failures; called by the thread with the monotonic time."""
        self._farewell: tuple[Sequence[Address], bytes] = ((), b"")
        self._thread = threading.Thread(target=self._run, name="ft_nodes", daemon=True)

    def listen(self, listener: FailureListener) -> None:
        """Have failures told to somebody; before :meth:`start`."""
        self._listener = listener

    def start(self, status: Status) -> None:
        """Begin to take part."""
        self._status = status
        self._thread.start()

    # ---- for the agent ----------------------------------------------------------------------------------

    def say(self, status: Status) -> None:
        """Take this node's new status; it is told at once, and repeated until the next one."""
        with self._lock:
            self._status = status
            self._is_released = False  # until the thread has taken it, and found that nothing follows from it
        self._transport.wake()

    def take_view(self) -> View | None:
        """Return what is known of the job, None before anything is; ``descriptor`` is quiet until it changes again.

        Raises:
            RuntimeError: The thread has failed.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        with self._lock:
            if self._failure is not None:
                raise RuntimeError(f"the control plane of this node has failed: {self._failure!r}") from self._failure
            return self._view

    def suspect(self, generation: int) -> None:
        """Say that a rank of this node is late, so that the other nodes look at theirs."""
        self._say_of_failure(lambda now_ns: self._protocol.accounts.suspect(generation))

    def looked(self, generation: int, came_back: tuple[int, ...] = (), **how: bool) -> None:
        """See :meth:`.NodeAccounts.looked`."""
        self._say_of_failure(lambda now_ns: self._protocol.accounts.looked(generation, came_back, **how))

    def give_account(self, generation: int, text: str) -> None:
        """Say what this node has seen of its ranks in a generation that is over."""

        def give(now_ns: int) -> None:
            size = self._protocol.view.group_size if self._protocol.view is not None else 1
            self._protocol.accounts.give(generation, text, now_ns, size)

        self._say_of_failure(give)

    def decided(self, generation: int, text: str) -> None:
        """Tell all nodes what has happened."""
        self._say_of_failure(lambda now_ns: self._protocol.decided(generation, text))

    def _say_of_failure(self, say: Callable[[int], object]) -> None:
        self._of_failures.append(say)
        self._transport.wake()

    def wake_agent(self) -> None:
        """Make ``descriptor`` readable, from any thread."""
        os.eventfd_write(self.descriptor, 1)

    @property
    def holds_lease(self) -> bool:
        """Return whether ranks may be started now."""
        with self._lock:
            return self._fence_ns is not None and time.monotonic_ns() < self._fence_ns

    @property
    def refusal(self) -> tuple[str, bool]:
        """Why whoever leads does not let this node in, empty where it does; and whether that is for good."""
        with self._lock:
            return self._refusal

    def close(self, longest_seconds: float) -> None:
        """Stop taking part, once the others can do without this node, or the time is up."""
        end = time.monotonic() + longest_seconds
        while self._thread.is_alive() and not self._is_released and time.monotonic() < end:
            self._thread.join(0.01)
        self._is_closing = True
        self._transport.wake()
        if self._thread.ident is not None:
            self._thread.join(_LONGEST_LAST_SECONDS)
        if not self._thread.is_alive():
            os.close(self.descriptor)

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
        except Exception as error:  # the outermost loop of this thread
            logger.exception("the control plane of this node has failed")
            with self._lock:
                self._failure = error
            os.eventfd_write(self.descriptor, 1)
        finally:
            self._transport.close()

    def _turn(self) -> None:
        protocol = self._protocol
        due_seconds = (protocol.due_ns - time.monotonic_ns()) / 1e9
        received = self._transport.poll(min(max(0.0, due_seconds), _LONGEST_LOOK_SECONDS))
        now_ns = time.monotonic_ns()
        with self._lock:
            status = self._status
        protocol.say(status, now_ns)
        for sender, payload in received:
            try:
                message = FORMAT.decode(payload)
            except MessageError as error:
                logger.warning("node %s has sent %s", sender, error)
                continue
            protocol.receive(sender, message, now_ns)
        while self._of_failures:
            self._of_failures.popleft()(now_ns)
        protocol.flush(now_ns)
        story, encoded = None, b""
        for name, address, message in protocol.outbox:
            if isinstance(message, Story):  # all members get the same one, which may be long
                if message != story:
                    story, encoded = message, FORMAT.encode(message)
                self._send(name, address, encoded)
            else:
                self._send(name, address, FORMAT.encode(message))
        protocol.outbox.clear()
        self._publish(status)
        self._tell_of_failures()

    def _send(self, name: str | None, address: Address | None, payload: bytes) -> None:
        try:
            self._transport.send(name, address, payload)
        except ValueError as error:  # no message of ours is that long; if one is, it is the one thing that is lost
            logger.error("a message to %s is not sent: %s", name or address, error)

    def _tell_of_failures(self) -> None:
        heard, self._protocol.accounts.heard = self._protocol.accounts.heard, []
        gathered = self._protocol.take_gathered()
        if self._listener is not None:
            for each in heard:
                _tell(self._listener.heard, each)
            for one in gathered:
                _tell(self._listener.gathered, one)

    def _publish(self, taken: Status) -> None:
        protocol = self._protocol
        view, fence_ns = protocol.view, protocol.session.fence_ns
        deadline_ns = protocol.session.deadline_ns(self._settings.last_stop_ns)
        if deadline_ns is not None and deadline_ns != self._deadline_ns:
            self._deadline_ns = deadline_ns
            self._on_lease(deadline_ns)
        with self._lock:
            has_changed = view != self._view
            self._view, self._fence_ns = view, fence_ns
            self.changed_ns = time.monotonic_ns() if has_changed else self.changed_ns
            self._refusal = (protocol.session.refusal, protocol.session.is_excluded)
            self._is_released = protocol.is_released and self._status is taken
        if has_changed:
            os.eventfd_write(self.descriptor, 1)
        addresses = tuple(address for name, address in protocol.session.voters.items() if name != protocol.name)
        if addresses != self._farewell[0]:
            farewell = Farewell(protocol.name, f"the launcher of node {self._settings.host} was killed")
            self._farewell = addresses, FORMAT.encode(farewell)
            self._on_voters(*self._farewell)


def _tell(listener: Callable[[T], object], what: T) -> None:
    try:
        listener(what)
    except Exception:  # a story that cannot be told must not end the job
        logger.exception("what was said of a failure could not be dealt with; please report this")
