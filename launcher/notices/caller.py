"""The process that calls a command or a URL for each event of a job, one after the other.

Two shapes were considered:

* *A thread of the launcher* that starts the command with :mod:`subprocess`. Nothing more to start, and nothing that
  could be killed by itself. But fork and exec hold the interpreter's lock of a process that has torch loaded, and so
  does all that the thread does in Python, a TLS handshake included: a restart, which takes some tens of milliseconds,
  would wait for it in turns. And the launcher is the subreaper of the ranks: what a command leaves behind would become
  the launcher's child, beside what ranks leave, and could neither be told from it nor be ended with its command.
* *A small process of its own*, started with the job where the setting is used: the launcher sends it a datagram and
  goes on. It has one thread, so it may fork; it is the subreaper of the commands, so it finds all that they start; and
  no descriptor of the launcher or of a rank gets into a command.

The process was chosen. It ends when the launcher's end of the socket is closed, by the launcher's death, too, after it
has told what is waiting for at most :data:`LAST_SECONDS`. Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from launcher.notices.call import Call, CannotCallError
from launcher.notices.target import parse_target
from resilience_core.redaction import redacted
from resilience_core.system import prctl
from resilience_core.system.proc import set_session_priority

__all__ = ["LAST_SECONDS", "MESSAGE_SIZE", "MOST_WAITING", "TOLD", "main"]

LAST_SECONDS = 2.0
"""How long events that are not told yet may hold up the end of the launcher."""
MOST_WAITING = 8
"""How many events may wait for the one that is being told; beyond that the oldest are dropped."""
MESSAGE_SIZE = 1 << 17
TOLD = b"\0"
"""What a message to the launcher begins with that is no text but the number of an event whose call is over."""
_NAME = "ft_on_event"
_NICENESS = 10


class _Caller:
    """Makes the calls, each when the one before it is over.

    Args:
        channel: To the launcher.
        target: What to call.
        timeout_seconds: How long a call may take.
        last_number: Of the event that was told last, by this process or by one before it.
        niceness: What to take on again once the launcher ends.
    """

    def __init__(
        self, channel: socket.socket, target: str, timeout_seconds: float, last_number: int, niceness: int
    ) -> None:
        self._channel = channel
        self._target = parse_target(target)
        self._timeout = timeout_seconds
        self._niceness = niceness
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._last_number = last_number
        self._call: Call | None = None
        self._end_at: float | None = None
        """When to stop, once the launcher has ended; on ``time.monotonic()``."""
        self._said: set[str] = set()

    def run(self) -> None:
        """Tell events until the launcher has ended and all is told, or the time for that is up."""
        while True:
            if self._end_at is not None and time.monotonic() >= self._end_at:
                break
            if self._call is None and self._waiting:
                self._begin(self._waiting.popleft())
            elif self._call is None and self._end_at is not None:
                return
            else:
                self._step()
        left = [] if self._call is None else [self._call.event]
        left += [document["event"] for document in self._waiting]
        if self._call is not None:
            self._call.end(has_ended=False)
        if left:
            self._report(
                "last",
                f"{len(left)} event(s) could not be told within {LAST_SECONDS:g} s of the end of the job: "
                f"{', '.join(left)}",
            )

    def _step(self) -> None:
        poller = select.poll()
        due = []
        if self._end_at is None:
            poller.register(self._channel, select.POLLIN)
        else:
            due.append(self._end_at)
        if (call := self._call) is not None:
            poller.register(call.pidfd, select.POLLIN)
            if not call.output.has_ended:
                poller.register(call.output.descriptor, select.POLLIN)
            due.append(call.deadline)
        timeout = max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None
        ready = {descriptor for descriptor, _ in poller.poll(timeout)}
        if self._channel.fileno() in ready:
            self._receive()
        if call is None:
            return
        if call.output.descriptor in ready:
            call.output.read()
        has_ended = call.pidfd in ready
        if has_ended or time.monotonic() >= call.deadline:
            self._call = None
            if (problem := call.end(has_ended=has_ended)) is not None:
                self._report("failed" if has_ended else "slow", f"{problem} (event '{call.event}')")
            self._send(TOLD + str(self._last_number).encode())

    def _receive(self) -> None:
        while True:
            try:
                raw = self._channel.recv(MESSAGE_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:  # said once, where the launcher has ended without reading what we said
                continue
            if not raw:
                self._end_at = time.monotonic() + LAST_SECONDS
                _give_way_no_more(self._niceness, self._call.pid if self._call is not None else None)
                return
            if (document := _document(raw)) is None:
                self._report("damaged", f"a message of {len(raw)} bytes is no event and is not told")
            else:
                self._take(document)

    def _take(self, document: dict[str, Any]) -> None:
        self._waiting.append(document)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._report(
                "dropped",
                f"more than {MOST_WAITING} events wait to be told; the oldest are dropped, and the next document says "
                "how many",
            )

    def _begin(self, document: dict[str, Any]) -> None:
        number = document["number"]
        document["dropped"] = number - self._last_number - 1
        self._last_number = number
        raw = json.dumps(document).encode("ascii") + b"\n"
        try:
            self._call = Call(self._target, raw, document["event"], self._timeout)
        except CannotCallError as error:
            self._report("start", f"{error} (event '{document['event']}')")

    def _report(self, kind: str, text: str) -> None:
        """Say what went wrong, once for each kind; a launcher that does not listen is not waited for."""
        if kind in self._said:
            return
        self._said.add(kind)
        # What a server answers, or a command has written, may repeat the URL.
        self._send(f"--ft-on-event {self._target}: {redacted(text)} (said once)".encode(errors="replace"))

    def _send(self, raw: bytes) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(raw, socket.MSG_DONTWAIT)


def _document(raw: bytes) -> dict[str, Any] | None:
    """Return the event that a message holds; None where it holds none, as one that was cut off."""
    try:
        document = json.loads(raw)
    except ValueError:
        return None
    is_event = isinstance(document, dict) and type(document.get("number")) is int
    return document if is_event and isinstance(document.get("event"), str) else None


def _give_way() -> int:
    """Get less of a busy machine than the launcher and the ranks; commands inherit that.

    A datagram wakes this process in the middle of a restart. The kernel may let who wakes up run at once, in place of
    the launcher; not so under ``SCHED_BATCH``. Where the kernel forbids either, it is left.

    Returns:
        The niceness until then.
    """
    niceness = os.nice(0)
    with contextlib.suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    set_session_priority(os.nice(0))
    return niceness


def _give_way_no_more(niceness: int, call: int | None) -> None:
    """Take part as others do: the ranks have ended, and what is to be told of that has two seconds.

    Args:
        niceness: The launcher's. Without a right to it, sessions get it alone, where the kernel divides by those.
        call: The process of the call under way, which leads a group of processes and a session; None without one.
    """
    for pid in (os.getpid(), call):
        if pid is not None:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, pid, niceness)
            set_session_priority(niceness, pid)


def main(arguments: list[str]) -> None:
    """Call until the launcher has ended.

    Args:
        arguments: The descriptor of the socket, what to call, how long a call may take, seconds, and the number of the
            event that was told last.
    """
    # A signal to all processes of a job is none to us. Handlers, since a command would inherit that one is ignored.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    niceness = _give_way()
    prctl.load()
    prctl.set_process_name(_NAME)
    prctl.become_subreaper()
    prctl.die_with_parent(signal.SIGCONT)  # no end: it has events to tell, and would never do so if it was stopped
    with socket.socket(fileno=int(arguments[0])) as channel:
        os.set_inheritable(channel.fileno(), False)
        _Caller(channel, arguments[1], float(arguments[2]), int(arguments[3]), niceness).run()
