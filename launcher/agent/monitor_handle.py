"""The monitor process as its parent sees it: started, told whom to watch, replaced when it dies.

One thread keeps it alive. It looks at least four times a second rather than sleeping on an event, because what it has
to notice (stopped, dead, or alive and stuck) has no common descriptor, and because its looks are the second witness of
lost time (``launcher.monitor.lost_time``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from launcher.agent.monitor_orders import OrderBook
from launcher.agent.py_spy import find_py_spy
from launcher.health.nvml import find_bindings
from launcher.incidents.phrases import time_of_day
from launcher.monitor.lost_time import KEEPER, MONITOR, Freeze, LostTime
from launcher.monitor.messages import (
    MESSAGE_SIZE,
    REPORTS,
    Look,
    MonitorConfig,
    MonitorReport,
    MonitorSettings,
    Proceed,
    RunFolders,
    Stop,
    WatchOrder,
)
from launcher.monitor.replacement_rules import ReplacementRules
from launcher.nodes.fence import LeaseWord
from launcher.processes.child_state import state_of
from launcher.processes.evidence import state_phrase
from launcher.processes.message_format import MessageError
from launcher.records import console
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.errors import ResilienceError
from resilience_core.protocol.cell import Cell
from resilience_core.system.installation import HOME

__all__ = ["MonitorHandle", "MonitorStartError"]

logger = logging.getLogger(__name__)

_LONGEST_LOOK_NS = 250_000_000
_LONGEST_END_SECONDS = 1.0

# -I -S: neither environment nor site-packages, which cost it a third of its memory and half of its start.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.monitor.monitor import main; main(sys.argv[2])"


class MonitorStartError(ResilienceError):
    """The monitor process could not be started."""


class MonitorHandle:
    """Starts, instructs and replaces the monitor of one node.

    Args:
        config: What the ranks are held to.
        run_folder: Private folder in memory (0700); removed by the monitor if this process dies.
        log_folder: Where incidents go.
        owns_ranks: Whether ranks must die with this process.
        on_change: Called from the supervising thread with what has happened, and details for people:
            ``monitor_replaced`` after the new monitor has its orders, ``monitor_lost`` when one after the other dies so
            soon that nothing is watched, ``monitor_back`` when one has lived on.
        lease: Where the monitor finds until when this node holds its lease; to be closed after this object.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        *,
        run_folder: str,
        log_folder: str,
        owns_ranks: bool,
        on_change: Callable[[str, str], None] | None = None,
        lease: LeaseWord | None = None,
    ) -> None:
        self._config, self._log_folder, self._owns_ranks = config, log_folder, owns_ranks
        self._on_change = on_change
        self._lease = lease.descriptor if lease is not None else None
        self._lost_descriptor, self._lost = _make_lost_time()
        # Both ends are kept: a monitor that is replaced leaves its end, unread reports and all, to the next one.
        self.channel, self._their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self._parent_pidfd = os.pidfd_open(os.getpid())
        self._orders = OrderBook(self.channel, RunFolders((run_folder,), ()))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._replacement = ReplacementRules(time.monotonic_ns())
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep_alive, name="ft_monitor_keeper", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        """The monitor's process, as of now."""
        return self._process.pid

    @property
    def pids(self) -> set[int]:
        """The monitor's process, and those before it that were killed and are not gone."""
        return {self.pid, *(process.pid for process in list(self._left_behind) if process.poll() is None)}

    @property
    def unprotected_since_ns(self) -> int | None:
        """Since when one monitor after the other has ended (``monitor_lost``); None while one watches."""
        return self._replacement.off_since_ns

    def watch(self, order: WatchOrder, cell: Cell, *, is_session_leader: bool = False) -> None:
        """Have a rank watched from now on.

        Args:
            order: Which. Of a worker process, ``order.pid`` must not have been reaped.
            cell: Its cell, as :meth:`Cell.create` made it: the monitor is given the descriptor, and looks up no path.
            is_session_leader: Whether that worker leads a session, to be ended should this process be killed.
        """
        with self._lock:
            self._orders.add(order, cell, is_session_leader=is_session_leader)

    def forget(self, generation: int, *, is_over: bool = False) -> None:
        """Stop watching the ranks of a generation.

        Args:
            generation: Which.
            is_over: Nothing of it runs any more. Until then its sessions still end should this process be killed.
        """
        with self._lock:
            self._orders.forget(generation, is_over=is_over)

    def pass_on(self, order: Look | Proceed) -> None:
        """Tell the monitor what the other nodes of the job want of it, or have done."""
        with self._lock:
            self._orders.send(order)

    def show_run_folders(self, paths: list[str], parts: list[str]) -> None:
        """Tell the monitor where the run folder is, and have it report whatever is missing from it.

        Args:
            paths: To be removed should this process be killed; the last one is in use.
            parts: Paths that must exist.
        """
        with self._lock:
            self._orders.run_folders = RunFolders(tuple(paths), tuple(parts))
            self._orders.send(self._orders.run_folders)

    def freezes(self, now_ns: int) -> list[Freeze]:
        """Return when everybody here lost time, oldest first; decisions of the launcher's own must heed it, too."""
        return self._lost.freezes(now_ns)

    def read_reports(self) -> list[MonitorReport]:
        """Return what the monitor has said since the last time; never wait."""
        reports: list[MonitorReport] = []
        while True:
            try:
                raw = self.channel.recv(1 << 20)
            except BlockingIOError:
                return reports
            if not raw:
                return reports
            try:
                reports.append(REPORTS.decode(raw))
            except MessageError as error:
                logger.error("a report of the monitor could not be read: %s", error)

    def close(self) -> None:
        """End the monitor and wait for it."""
        self._closing.set()
        # Bounded already: one turn starts at most two monitors and waits ``_LONGEST_END_SECONDS`` for the former one.
        self._keeper.join()
        with self._lock:
            self._orders.send(Stop())
            if not _has_ended(self._process):
                self._process.kill()
                _has_ended(self._process)
        self.channel.close()
        self._their_end.close()
        os.close(self._parent_pidfd)
        self._orders.close()
        os.close(self._lost_descriptor)

    # ---- the process ------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        settings = MonitorSettings(
            channel=self._their_end.fileno(),
            parent_pidfd=self._parent_pidfd,
            lost_time=self._lost_descriptor,
            log_folder=self._log_folder,
            config=MonitorConfig.from_document(json.loads(self._config.to_json())),
            run_folders=self._orders.run_folders.run_folders,
            parts=self._orders.run_folders.parts,
            owns_ranks=self._owns_ranks,
            py_spy=find_py_spy(),
            nvml_bindings=find_bindings(),
            lease=self._lease,
            names_node=console.state().names_node,
            console=console.shared_descriptor(),
        )
        named = (settings.channel, settings.parent_pidfd, settings.lost_time, settings.lease, settings.console)
        self._replacement.started(time.monotonic_ns())
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, HOME, settings.to_text()],
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor for descriptor in named if descriptor is not None],
                start_new_session=True,
            )
        except OSError as error:
            raise MonitorStartError(f"cannot start the monitor process with {sys.executable}: {error}") from error

    def _keep_alive(self) -> None:
        self._lost.beat(KEEPER, time.monotonic_ns())
        while not self._closing.wait(min(self._lost.beat_period_ns, _LONGEST_LOOK_NS) / 1e9):
            now_ns = time.monotonic_ns()
            self._lost.beat(KEEPER, now_ns)
            state = state_of(self._process)
            reason = self._replacement.what_is_wrong(
                now_ns, state, self._lost.last_beat_ns(MONITOR), self._lost.busy_until_ns
            )
            if reason is not None:
                self._replace(reason, now_ns)
            elif (recovery := self._replacement.recovered(now_ns, state)) is not None:
                off_seconds = (recovery.on_ns - recovery.off_ns) / 1e9
                since = time_of_day(recovery.on_ns, now_ns)
                self._tell_change("monitor_back", f"since {since}, after it was off for {off_seconds:.1f} s")
            if self._orders.must_send_anew:
                with self._lock:
                    self._orders.send_all()

    def _replace(self, reason: str, now_ns: int) -> None:
        change = self._replacement.ended(now_ns)
        with self._lock:
            former = self._process
            self._left_behind.append(former)  # until it is gone it is no process that a rank has left
            # The new one is there before the former one, which may be stopped only, is killed: should this process be
            # killed at any moment, there is always one to end the ranks.
            failure = self._start_successor()
            former.send_signal(signal.SIGKILL)
            if _has_ended(former):
                self._left_behind.remove(former)
            else:
                reason = f"{reason}; it was killed and is not gone ({state_phrase(former.pid)}), and left behind"
            # Again, for the former one may have read them, even in its last moment.
            self._orders.send_all()
            if failure is not None:
                failure = self._start_successor()  # there may have been room for one only
            if failure is not None:
                reason = f"{reason}; {failure}"
                change = None if change == "monitor_replaced" else change  # it was not
        if change is not None:
            self._tell_change(change, reason)

    def _start_successor(self) -> MonitorStartError | None:
        # What nobody has read is told again, or is over. Left there while no monitor can be started, it would fill the
        # channel, and a generation that is forgotten then would be watched by the next monitor for good.
        with contextlib.suppress(BlockingIOError):
            while self._their_end.recv(MESSAGE_SIZE, socket.MSG_DONTWAIT):
                pass
        # They wait in the channel: should this process be killed now, the new monitor still knows whom to end.
        self._orders.send_all()
        try:
            self._process = self._start()
        except MonitorStartError as error:
            return error
        return None

    def _tell_change(self, change: str, reason: str) -> None:
        if self._on_change is not None:
            self._on_change(change, reason)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Collect a monitor; False where it is not gone within a second, as in uninterruptible sleep."""
    try:
        process.wait(timeout=_LONGEST_END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _make_lost_time() -> tuple[int, LostTime]:
    try:
        descriptor = LostTime.create()
        lost = LostTime(descriptor)
    except OSError as error:
        raise MonitorStartError(f"cannot make a page of shared memory: {error.strerror}") from error
    lost.beat(MONITOR, time.monotonic_ns())  # none yet, but the first gap begins here
    return descriptor, lost
