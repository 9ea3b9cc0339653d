"""The monitor process as its parent sees it: started, told whom to watch, replaced when it dies.

One thread keeps it alive. It looks four times a second rather than sleeping on an event, because what it has to
notice (stopped, dead, or alive and stuck) has no common descriptor, and because looking is how it notices that
it was itself frozen.
"""

from __future__ import annotations

import array
import contextlib
import json
import logging
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher.monitor import MESSAGE_SIZE
from launcher.processes import open_pidfd
from launcher.watch import WatchOrder
from resilience_core.config import FaultToleranceConfig
from resilience_core.errors import ResilienceError

__all__ = ["MonitorProcess", "MonitorStartError"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_STUCK_NS = 3_000_000_000
"""The monitor moves its liveness word at least twice a second, except while it takes stacks."""

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# -I -S: neither environment nor site-packages, which cost it a third of its memory and half of its start.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.monitor import main; main(sys.argv[2])"


class MonitorStartError(ResilienceError):
    """The monitor process could not be started."""


class MonitorProcess:
    """Starts, instructs and replaces the monitor of one node.

    Args:
        config: What the ranks are held to.
        run_folder: Private folder in memory (0700); removed by the monitor if this process dies.
        log_folder: Where incidents go.
        owns_ranks: Whether ranks must die with this process.
        on_replaced: Called from the supervising thread with the reason, after the new monitor has its orders.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        *,
        run_folder: str,
        log_folder: str,
        owns_ranks: bool,
        on_replaced: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._run_folder = run_folder
        self._log_folder = log_folder
        self._owns_ranks = owns_ranks
        self._on_replaced = on_replaced
        self._alive_path = os.path.join(run_folder, "monitor.alive")
        self._alive = _make_word(self._alive_path)
        # Both ends are kept: a monitor that is replaced leaves its end, unread reports and all, to the next one.
        self.channel, self._their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self._parent_pidfd = os.pidfd_open(os.getpid())
        self._orders: dict[tuple[int, int], tuple[WatchOrder, bool]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep_alive, name="ft_monitor_keeper", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        """The monitor's process, as of now."""
        return self._process.pid

    def watch(self, order: WatchOrder, *, is_session_leader: bool = False) -> None:
        """Have a rank watched from now on; of a worker process, ``order.pid`` must not have been reaped."""
        with self._lock:
            self._orders[order.generation, order.local_rank] = (order, is_session_leader)
            self._send_order(order, is_session_leader)

    def forget(self, generation: int, *, is_over: bool = False) -> None:
        """Stop watching the ranks of a generation.

        Args:
            generation: Which.
            is_over: Nothing of it runs any more. Until then its sessions still end should this process be killed.
        """
        with self._lock:
            self._orders = {key: order for key, order in self._orders.items() if key[0] != generation}
            self._send({"forget": generation, "is_over": is_over})

    def read_reports(self) -> list[dict[str, Any]]:
        """What the monitor has said since the last time; never waits."""
        reports: list[dict[str, Any]] = []
        while True:
            try:
                raw = self.channel.recv(1 << 20)
            except BlockingIOError:
                return reports
            if not raw:
                return reports
            reports.append(json.loads(raw))

    def close(self) -> None:
        """End the monitor and wait for it."""
        self._closing.set()
        self._keeper.join()
        with self._lock:
            self._send({"stop": True})
            try:
                self._process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.channel.close()
        self._their_end.close()
        os.close(self._parent_pidfd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._alive_path)

    # ---- the process ------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {
            "channel": self._their_end.fileno(),
            "parent_pidfd": self._parent_pidfd,
            "alive": self._alive_path,
            "run_folder": self._run_folder,
            "log_folder": self._log_folder,
            "owns_ranks": self._owns_ranks,
            "py_spy": _find_py_spy(),
            "config": json.loads(self._config.to_json()),
        }
        self._alive[0] = time.monotonic_ns()
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _HOME, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                pass_fds=(self._their_end.fileno(), self._parent_pidfd),
                start_new_session=True,
            )
        except OSError as error:
            raise MonitorStartError(f"cannot start the monitor process with {sys.executable}: {error}") from error

    def _keep_alive(self) -> None:
        last_look_ns = time.monotonic_ns()
        while not self._closing.wait(_LOOK_SECONDS):
            now_ns = time.monotonic_ns()
            overslept = now_ns - last_look_ns > 2 * int(_LOOK_SECONDS * 1e9)
            last_look_ns = now_ns
            reason = self._what_is_wrong(now_ns, overslept)
            if reason is not None:
                self._replace(reason)
                last_look_ns = time.monotonic_ns()

    def _what_is_wrong(self, now_ns: int, overslept: bool) -> str | None:
        if self._process.returncode is not None:
            return "could not be started"
        state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if state is not None and state.si_code == os.CLD_STOPPED:
            # A whole tree that was stopped and continued wakes one by one; perhaps it is only our turn.
            return None if overslept else "was stopped"
        if state is not None:
            return f"ended ({'signal' if state.si_code != os.CLD_EXITED else 'exit code'} {state.si_status})"
        # Whoever was frozen with us needs a moment to wake; only one that stays silent while we run is stuck.
        if overslept:
            self._alive[0] = now_ns
        elif now_ns - self._alive[0] > _STUCK_NS:
            return f"was stuck for {(now_ns - self._alive[0]) / 1e9:.1f} s"
        return None

    def _replace(self, reason: str) -> None:
        with self._lock:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            try:
                self._process = self._start()
            except MonitorStartError as error:
                logger.error("%s; trying again", error)
                return
            for order, is_session_leader in self._orders.values():
                self._send_order(order, is_session_leader)
        if self._on_replaced is not None:
            self._on_replaced(reason)

    # ---- orders -----------------------------------------------------------------------------------------

    def _send_order(self, order: WatchOrder, is_session_leader: bool) -> None:
        message = {"watch": order._asdict(), "is_leader": is_session_leader}
        if not order.pid:
            self._send(message)
            return
        pidfd = open_pidfd(order.pid)
        if pidfd is None:
            return
        try:
            self._send(message, pidfd)
        finally:
            os.close(pidfd)

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        raw = json.dumps(message).encode("utf-8")
        assert len(raw) < MESSAGE_SIZE
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
        try:
            self.channel.sendmsg([raw], ancillary if descriptors else [])
        except BlockingIOError:
            # Only a monitor that has not read for long fills its socket; it is about to be replaced, and the
            # next one is told everything anew.
            logger.warning("the monitor does not read its orders; it will be replaced")


def _make_word(path: str) -> memoryview:
    """A file of one shared word; its memory is reserved, so that a full tmpfs is an error and no SIGBUS."""
    try:
        with open(path, "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, 8)
            return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
    except OSError as error:
        raise MonitorStartError(
            f"cannot make {path}: {error.strerror}; name another folder in memory with --ft-run-dir"
        ) from error


def _find_py_spy() -> str | None:
    """The program named by ``FT_PY_SPY`` (``none``: do without), else the one beside this Python, else on the path."""
    named = os.environ.get("FT_PY_SPY")
    if named:
        return None if named == "none" else named
    beside_python = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside_python if os.access(beside_python, os.X_OK) else shutil.which("py-spy")
