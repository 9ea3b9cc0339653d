"""Collect what is known about a local rank without disturbing it: process (proc(5)), cell, exception on record.

Monitor and launcher both collect it; ``launcher.incidents.attribution`` draws the conclusions. Nothing here waits or
raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.processes.plain_types import check_types
from launcher.processes.proc import open_files, process_status, status_of, wait_channel
from resilience_core.protocol.cell_layout import SHUT_DOWN
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumber
from resilience_core.system.proc import ENDED_STATES, PF_EXITING, STOPPED_STATES

__all__ = [
    "UNREADABLE",
    "Evidence",
    "ProcessLook",
    "evidence_from_json",
    "evidence_to_json",
    "kernel_wait",
    "look_at",
    "state_phrase",
    "unmonitored",
    "uses_a_gpu",
]

UNREADABLE = -1
"""The state in the view of a cell that is damaged."""

_OF_WAITS = re.compile("futex|ep_poll")
"""Kernel functions of a thread that waits for another one of its process, or for any event."""
_GPU_DEVICES = ("nvidia", "kfd", "dri")
_GPU_PATHS = tuple(f"/dev/{name}" for name in _GPU_DEVICES)


class ProcessLook(NamedTuple):
    """A process at one moment."""

    state: str
    """One letter of proc(5); ``Z`` when it has ended."""
    exit_status: int = 0
    """Once it is ending: its wait status."""
    is_exiting: bool = False
    is_dumping_core: bool = False

    @property
    def is_stopped(self) -> bool:
        """Stopped by a signal or by a tracer."""
        return self.state in STOPPED_STATES

    @property
    def exit_code(self) -> int | None:
        """Once it is ending: its exit code, negative for a signal."""
        if not (self.is_exiting or self.is_dumping_core or self.state in ENDED_STATES):
            return None
        number = self.exit_status & 0x7F
        return -number if number else self.exit_status >> 8


def look_at(pid: int) -> ProcessLook | None:
    """Look at a process; None when there is none, or it may not be looked at."""
    # First: while it dumps core, and from then on, its exit status is there, which is read next.
    is_dumping_core = status_of(pid).get("CoreDumping") == "1"
    status = process_status(pid)
    if status is None:
        return None
    return ProcessLook(
        state=status.state,
        exit_status=status.exit_status,
        is_exiting=bool(status.flags & PF_EXITING),
        is_dumping_core=is_dumping_core,
    )


def kernel_wait(pid: int) -> str | None:
    """Return the kernel function that a process sleeps in, where there is one and it may be read."""
    return wait_channel(pid)


def state_phrase(pid: int) -> str:
    """Say what keeps a process that was killed and is not gone."""
    look = look_at(pid)
    if look is None:
        return "state unknown"
    state = "uninterruptible sleep" if look.state == "D" else f"state {look.state}"
    wait = kernel_wait(pid)
    return f"{state} in {wait}" if wait else state


def uses_a_gpu(pid: int) -> bool:
    """Return whether the process has a device of a GPU open."""
    with contextlib.suppress(OSError):
        if not any(name.startswith(_GPU_DEVICES) for name in os.listdir("/dev")):
            return False  # the usual case on a machine without one; a process has many descriptors
        return any(path.startswith(_GPU_PATHS) for _, path in open_files(pid))
    return False


def unmonitored(view: CellView) -> str | None:
    """Return why a rank's cell does not tell where the rank is, in words; None where it does."""
    if view.state == UNREADABLE:
        return "its monitor cell cannot be read"
    if view.state == SHUT_DOWN:
        return "has shut monitoring down"
    return "has not initialised monitoring" if view.pid == 0 else None


class Evidence(NamedTuple):
    """What is known of one local rank. Times are ``CLOCK_MONOTONIC`` nanoseconds; a default stands for: not known."""

    local_rank: int
    is_condemned: bool = False
    iteration: int = -1
    state: str = ""
    kernel_wait: str = ""
    """The kernel function in which it slept when another rank had failed, where that may be read."""
    exit_code: int | None = None
    """Of a rank that has ended, or is ending."""
    ended_ns: int = 0
    """When its end was noticed; 0 while it is still ending."""
    is_dumping_core: bool = False
    has_left: bool = False
    """It has shut monitoring down, or ended with 0; of one that the launcher has waited for, the latter alone."""
    has_begun: bool = True
    """It has initialised monitoring."""
    is_monitored: bool = False
    """Its exceptions would be on record."""
    error: ErrorRecord | None = None
    asked_ns: int = 0
    """When a signal asked it for its stack; a wait in C may end with an error because of that."""
    waits: bool | None = None
    """Whether it waits for others in a collective, going by its stack."""
    is_finalizing: bool = False
    """Its stack is that of an interpreter that ends, by itself or after an exception that nobody has kept."""
    may_wait: bool = False
    """It may wait for others although its stack shows nothing of it."""
    waits_by_source: bool = False
    """Nothing but the source of its line tells that."""
    waits_at: str = ""
    """Where in the user's own code, if it waits."""
    stands_at: str = ""
    """Where in the user's own code, whether it waits or not."""
    waits_for_all: bool = False
    """Whether that is a collective which nobody can leave before everybody has entered it."""
    waits_for_one: bool = False
    """Whether that is no collective, but a message to or from one other rank."""
    waits_for_store: bool = False
    """Whether that is no collective, but the making of a process group's store."""
    open_sections: tuple[str, ...] = ()
    closed: tuple[tuple[str, int], ...] = ()
    """How often it has closed each section."""
    is_busy: bool | None = None
    """Whether its main thread uses the processor; None also where waiting for a GPU looks the same."""
    has_gpu: bool = False
    groups: tuple[GroupNumber, ...] = ()
    """How far it is in the collectives of its process groups, as far as torch has told in time."""
    is_idle: bool | None = None
    """Whether all collectives that it has called are done, as torch tells."""
    last_sign_ns: int = 0
    is_lively: bool = False
    """It has reported shortly before it was looked at."""
    silent_ns: int = -1
    """How long before the verdict it had reported last. A duration, which may be compared between machines."""
    hangs_in_kernel: bool = False
    """It was in uninterruptible sleep both before and after its stack was asked for."""
    limit_ns: int = 0
    """Of a condemned one: the limit."""
    left_group_ns: int = 0
    """When it destroyed its default process group; 0 also where it has begun a section since."""

    @classmethod
    def of_cell(cls, local_rank: int, view: CellView, look: ProcessLook | None, error: ErrorRecord | None) -> Evidence:
        """Return what cell and process tell."""
        exit_code = look.exit_code if look is not None else None
        return cls(
            local_rank=local_rank,
            iteration=view.iteration,
            state=look.state if look is not None else "",
            exit_code=exit_code,
            is_dumping_core=look is not None and look.is_dumping_core,
            has_left=view.state == SHUT_DOWN or exit_code == 0,
            has_begun=view.pid != 0,
            is_monitored=view.pid != 0 and view.state != SHUT_DOWN,
            error=error if error is not None and error.may_be_why(view, exit_code) else None,
            open_sections=tuple(section.name for section in view.sections),
            last_sign_ns=view.last_sign_ns,
            left_group_ns=view.left_group_ns if view.last_sign_ns <= view.left_group_ns else 0,
        )

    @property
    def sleeps_apart(self) -> bool:
        """It sleeps where no main thread waits for other ranks: in a timer, a pipe, a file, for a child."""
        return self.exit_code is None and self.kernel_wait != "" and not _OF_WAITS.search(self.kernel_wait)

    @property
    def has_gone_out(self) -> bool:
        """It has destroyed its process group, and has neither ended since, nor told that it has finished or failed."""
        return self.left_group_ns > 0 and self.exit_code is None and self.error is None and not self.has_left

    @property
    def is_victim(self) -> bool:
        """Its exception says no more than that a peer was lost or did not answer."""
        return self.error is not None and self.error.is_consequence

    @property
    def has_lost_a_thread(self) -> bool:
        """Its exception has ended a thread, not the main one, and has not ended the process."""
        return self.error is not None and self.error.thread is not None and (self.exit_code or 0) <= 0

    @property
    def has_raised(self) -> bool:
        """It fails by an exception of its own."""
        return self.error is not None and not self.is_victim and not self.has_lost_a_thread

    @property
    def has_left_program(self) -> bool:
        """Its exception has left the outermost frame of its program, so that nothing can handle it any more."""
        return self.error is not None and self.error.is_uncaught

    @property
    def may_be_upset(self) -> bool:
        """It failed or ended after a signal had asked it for its stack, which may be why; it was alive then."""
        if not self.asked_ns or self.is_victim:
            return False
        if self.error is not None and not self.has_lost_a_thread:
            return self.asked_ns < self.error.at_ns
        return self.exit_code is not None and self.exit_code >= 0

    @property
    def was_killed(self) -> bool:
        """It died of SIGKILL, or is dying of it."""
        return self.exit_code == -signal.SIGKILL

    @property
    def has_crashed(self) -> bool:
        """It died of another fatal signal, or is dying of it."""
        return self.fatal_signal is not None and not self.was_killed

    @property
    def asking_signal(self) -> signal.Signals | None:
        """The signal that it was asked to end with, and died of."""
        asks = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        return next((number for number in asks if self.exit_code == -number), None)

    @property
    def fatal_signal(self) -> signal.Signals | None:
        """The signal that it died of, or dies of, where no peer and no exception can have caused that."""
        if self.exit_code is None or self.exit_code >= 0:
            return None
        with contextlib.suppress(ValueError):
            number = signal.Signals(-self.exit_code)
            # Asked to end, or an abort that may follow from a lost peer (a watchdog, a destructor that throws).
            if number not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
                return number
        return None


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    """Return what is known, in JSON types, without what is not; the exception is left to who keeps it already."""
    defaults = Evidence._field_defaults
    known = evidence._asdict()
    return {
        name: known[name]
        for name in known
        if name != "error" and (name not in defaults or known[name] != defaults[name])
    }


def evidence_from_json(document: Mapping[str, Any], error: ErrorRecord | None) -> Evidence:
    """Return what :func:`evidence_to_json` took apart; keys that are not known are ignored.

    Raises:
        TypeError: It is no evidence: the rank is missing, or a value has the wrong type.
    """
    known = {name: document[name] for name in Evidence._fields if name in document}
    known["open_sections"] = tuple(known.get("open_sections", ()))
    known["closed"] = tuple((name, count) for name, count in known.get("closed", ()))
    known["groups"] = tuple(GroupNumber.from_json(list(group)) for group in known.get("groups", ()))
    if not all(type(name) is str and type(count) is int for name, count in known["closed"]):
        raise TypeError(f"closed is {known['closed']!r}")
    evidence = Evidence(**known, error=error)
    check_types(evidence)
    return evidence
