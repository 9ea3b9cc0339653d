"""One rank as its monitor sees it: the cell and the process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from launcher.monitor.cell_owner import CellOwner, find_owner
from launcher.monitor.lost_time import Freeze
from launcher.monitor.messages import WatchOrder
from launcher.monitor.verdict import STARTUP, Deadline, HangVerdict, Sighting, sight
from launcher.processes.handles import has_exited
from launcher.processes.proc import process_status
from launcher.records.console import DEBUG, announce
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import ERROR_TEXT, INITIALISED, LIMITS_TEXT, TextArea
from resilience_core.protocol.cell_view import CellView, implausible
from resilience_core.protocol.error_record import ErrorRecord, parse_error
from resilience_core.protocol.limit_kinds import CONFIGURED, LEARNED
from resilience_core.protocol.limit_messages import LimitOrigin, origin_of
from resilience_core.protocol.stack_question import STACK
from resilience_core.system.proc import own_pid_namespace

__all__ = ["RankMonitor"]

_SECOND_READ_SECONDS = 0.001


class RankMonitor:
    """Watches one local rank."""

    def __init__(self, order: WatchOrder, cell: Cell, worker_pidfd: int | None, now_ns: int) -> None:
        self.order = order
        self.kill_at_ns: int | None = None
        self.notes: list[str] = []
        """What people should be told about this rank; each thing once."""
        self._condemned: tuple[int, int] | None = None  # pid and start time
        self._cell = cell
        self._known: CellView | None = None
        self._initialised_ns = 0
        self._names: dict[int, str] = {}
        self._limits: tuple[int, str | None] = (0, None)  # the check word that came with it, and the text
        self._since_ns = now_ns
        self._worker_pidfd = worker_pidfd
        self._owner = CellOwner()
        self._noted: set[str] = set()

    def is_told_again(self, order: WatchOrder, descriptors: Sequence[int]) -> bool:
        """Return whether an order says what this monitor does already; if so, its descriptors are closed.

        Args:
            order: Which.
            descriptors: The cell, and the pidfd of the worker where that is known; fewer where there was no room.
        """
        if order != self.order or not descriptors or not os.path.sameopenfile(descriptors[0], self._cell.descriptor):
            return False
        if len(descriptors) > 1 and self._worker_pidfd is None:
            return False
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    @property
    def known(self) -> CellView | None:
        """Return what it has said last when it was asked; None before that."""
        return self._known

    def view(self) -> CellView | None:
        """Return what the rank says now; None when its cell is damaged. One of a known owner is mended then."""
        problem, view = self._read()
        if problem is not None:
            time.sleep(_SECOND_READ_SECONDS)  # the rank may have been storing
            problem, view = self._read()
        if view is None or problem is not None:
            self._repair(problem or "")
            return None
        if self._known is None or _name(self._known) != _name(view):
            of_whom = f", pid {view.pid}," if view.pid else ", which has not started yet,"
            self._log(f"rank {self.order.rank}{of_whom} is watched")
        self._known = view
        for section in view.sections:
            self._names[section.slot] = section.name
        return view

    def _log(self, text: str) -> None:
        order = self.order
        announce(text, level=DEBUG, event="log", ranks=[order.rank], generation=order.generation)

    def _read(self) -> tuple[str | None, CellView | None]:
        try:
            cell = self._cell.copy()
        except CellError as error:
            return str(error), None
        view = cell.view()
        self._initialised_ns = cell.words[INITIALISED]
        problem = implausible(view, time.monotonic_ns()) or self._usurped(view)
        if problem is None and (check := cell.words[LIMITS_TEXT.check_word]) != self._limits[0]:
            self._limits = check, cell.read_text(LIMITS_TEXT) or self._limits[1]
            self._log(f"rank {self.order.rank} has told its limits: {self._limits[1]}")
        return problem, view

    def _usurped(self, view: CellView) -> str | None:
        """Say which owner the cell names that there is not, while the one that we know lives on; None when all is well.

        Only a process that has found the former owner gone claims a cell, so those words were damaged.
        """
        known = self._known
        if known is None or known.pid == 0 or _name(view) == _name(known):
            return None
        if self._owner.name != _name(known) or self._owner.pidfd is None or has_exited(self._owner.pidfd):
            return None
        pid, pidfd = find_owner(view)
        if pidfd is not None:
            os.close(pidfd)
            return None
        return f"it belongs to pid {pid}, which there is not"

    def _text(self, area: TextArea) -> str | None:
        try:
            return self._cell.copy().read_text(area)
        except CellError:
            return None

    def _repair(self, problem: str) -> None:
        if self._known is None:
            self._note(
                f"rank {self.order.rank} is not watched: its monitor cell is damaged ({problem}), and was so before it "
                "could be read; a restart of the rank mends it"
            )
            return
        try:
            self._cell.restore(self._known, self._names, self._limits[1])
        except OSError as error:
            self._note(
                f"rank {self.order.rank} is not watched: its monitor cell is damaged ({problem}): {error.strerror}"
            )
            return
        self._note(
            f"the monitor cell of rank {self.order.rank} was damaged ({problem}) and has been put in order; the "
            "rank is watched again from its next section or heartbeat on"
        )

    def _note(self, text: str) -> None:
        kind = text.partition("(")[0]
        if kind not in self._noted:
            self._noted.add(kind)
            self.notes.append(text)

    def sight(self, view: CellView, now_ns: int, freezes: Sequence[Freeze] = ()) -> Sighting:
        """Return what follows from it."""
        return sight(view, now_ns, freezes, startup=self.order.startup, watched_since_ns=self._since_ns)

    def is_condemned(self, view: CellView) -> bool:
        """Return whether this very process has been condemned; its successor, if it has one, is watched anew."""
        return self._condemned == (view.pid, view.start_time)

    def condemn(self, view: CellView) -> None:
        """Expect nothing more from this process than its end."""
        self._condemned = (view.pid, view.start_time)

    def withdraw(self) -> None:
        """Watch it on: the verdict was withdrawn."""
        self._condemned = None

    def is_watched(self, view: CellView) -> bool:
        """Return whether there is a process to be terminated, and it has not been condemned yet."""
        return not self.is_condemned(view) and not self.is_gone(view)

    def limit_origin(self, verdict: HangVerdict) -> LimitOrigin | None:
        """Return where the limit of a verdict comes from, as far as rank or launcher have said it."""
        if verdict.cause != STARTUP:
            text = self._text(LIMITS_TEXT) or self._limits[1]
            return self._origin_of(text, verdict, verdict.limit_seconds)
        order = self.order
        if order.startup_origin is None:
            return None
        source = LEARNED if order.startup_is_learned else CONFIGURED
        return LimitOrigin(STARTUP, source, order.startup_origin, order.startup_advice or "")

    def basis(self, deadline: Deadline) -> str | None:
        """Return what the limit of one of its deadlines rests on, for :mod:`launcher.monitor.withheld_verdicts`.

        None also where that is not known.
        """
        if deadline.cause == STARTUP:
            return None if self.order.startup_is_learned else CONFIGURED
        seconds = (deadline.at_ns - deadline.since_ns) / 1e9
        origin = self._origin_of(self._limits[1], deadline, seconds)
        return origin.basis if origin is not None else None

    def _origin_of(self, text: str | None, of: HangVerdict | Deadline, seconds: float) -> LimitOrigin | None:
        # Before the first heartbeat its word says when monitoring was initialised.
        return origin_of(text, of.cause, of.section, seconds, has_beaten=of.since_ns != self._initialised_ns)

    def pidfd(self, view: CellView) -> int | None:
        """Return the process to terminate: the one that initialised monitoring, else the worker that was started.

        They differ where the worker is a wrapper (a shell, numactl) around the training. None when it is gone.
        """
        if view.pid == 0:
            return self._worker_pidfd
        return self._found(view).pidfd

    def pidfds(self) -> list[int]:
        """Return those that are known: of the worker, and of the process that initialised monitoring."""
        view = self.view()
        known = {self._worker_pidfd, self.pidfd(view) if view is not None else None}
        return [pidfd for pidfd in known if pidfd is not None]

    def _found(self, view: CellView) -> CellOwner:
        name = _name(view)
        if self._owner.name != name:
            self._release_owner()
            self._owner = CellOwner(name, *find_owner(view))
            if self._owner.pidfd is None and view.pid_namespace not in (0, own_pid_namespace()):
                self._note(
                    f"rank {self.order.rank} is not watched: it runs as pid {view.pid} of a PID namespace that cannot "
                    "be seen from here; start ft_launcher inside of that namespace"
                )
        return self._owner

    def is_gone(self, view: CellView) -> bool:
        """Return whether there is nobody left to terminate."""
        if self._worker_pidfd is not None and has_exited(self._worker_pidfd):
            return True
        pidfd = self.pidfd(view)
        if pidfd is None:
            return view.pid != 0
        return has_exited(pidfd)

    def pid(self, view: CellView) -> int:
        """Return the number of that process, for people; 0 when it is not known yet."""
        return self._found(view).pid if view.pid else self.order.pid

    def is_stopped(self, view: CellView) -> bool:
        """Return whether that process is stopped by a signal."""
        status = process_status(self.pid(view)) if self.pid(view) else None
        return status is not None and status.is_stopped

    def error(self) -> ErrorRecord | None:
        """Return the exception that it has put on record, if any."""
        return parse_error(self._text(ERROR_TEXT))

    def sections_closed(self) -> dict[str, int]:
        """Return how often it has closed each of its sections; empty where its cell cannot be read."""
        try:
            return self._cell.copy().sections_closed()
        except CellError:
            return {}

    @property
    def stack_file(self) -> str:
        """Where the rank's own faulthandler writes when asked."""
        return self.order.cell + STACK

    def close(self) -> None:
        """Let go of cell and descriptors."""
        self._release_owner()
        if self._worker_pidfd is not None:
            os.close(self._worker_pidfd)
            self._worker_pidfd = None
        self._cell.close()

    def _release_owner(self) -> None:
        if self._owner.pidfd is not None:
            os.close(self._owner.pidfd)
        self._owner = CellOwner()


def _name(view: CellView) -> tuple[int, int, int]:
    return view.pid, view.start_time, view.pid_namespace
