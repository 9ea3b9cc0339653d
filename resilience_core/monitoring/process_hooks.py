"""What monitoring needs of the rank's process as a whole: fork, ptrace, faulthandler, the exception hook."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from resilience_core.errors import ConfigError, RankMonitorClientError
from resilience_core.protocol.cell_layout import STACK_SIGNAL

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig

from resilience_core.protocol.stack_question import STACK
from resilience_core.system.plain_files import only_plain
from resilience_core.system.prctl import allow_tracer
from resilience_core.system.proc import is_listed, restricts_ptrace

__all__ = [
    "UNCAUGHT_EXIT_CODE",
    "allow_stack_dumps",
    "register_stack_dump",
    "detach_clients",
    "detach_in_forked_children",
    "exit_on_uncaught_exception",
    "read_config",
    "unregister_stack_dump",
    "wait_for_files",
]

logger = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 2.0

UNCAUGHT_EXIT_CODE = 1
"""What a rank exits with after an uncaught exception under ``install_exception_hook``; Python's own code."""


class _Detachable(Protocol):
    def detach(self) -> None:
        """Go on without effect."""


_clients: weakref.WeakSet[_Detachable] = weakref.WeakSet()
_fork_hook: Callable[[], None] | None = None


def detach_in_forked_children(client: _Detachable) -> None:
    """Detach a client from its cell in every process that is forked from this one."""
    global _fork_hook
    _clients.add(client)
    if _fork_hook is None:
        _fork_hook = detach_clients
        os.register_at_fork(after_in_child=_fork_hook)


def detach_clients() -> None:
    """Detach every client, in a process that was forked from the one they belong to."""
    for client in list(_clients):
        client.detach()


def wait_for_files(paths: Collection[str], launcher: int) -> None:
    """Wait briefly for files that somebody has removed: a running launcher makes them anew within a second."""
    end = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not all(map(os.path.exists, paths)) and launcher and time.monotonic() < end:
        if not is_listed(launcher):
            return
        time.sleep(0.01)


def read_config(path: str, variable: str) -> FaultToleranceConfig:
    """Read the configuration that the launcher has handed over. Never waits for the other end of a pipe.

    Args:
        path: Where it is.
        variable: The environment variable that says so, for messages.

    Raises:
        RankMonitorClientError: It is gone, or somebody has damaged it. Not a ConfigError, since a restart fixes it.
    """
    from resilience_core.config.schema import FaultToleranceConfig

    try:
        with open(path, "rb", opener=only_plain) as file:
            raw = file.read()
        return FaultToleranceConfig.from_json(raw.decode("utf-8"))
    except FileNotFoundError as error:
        raise RankMonitorClientError(
            f"{variable} leads to {path}, which cannot be read: {error.strerror}; the launcher that set it has ended, "
            "or its run folder was removed"
        ) from error
    except PermissionError as error:
        raise RankMonitorClientError(
            f"{variable} leads to {path}, which this user (uid {os.geteuid()}) may not read. It belongs to whoever "
            "started ft_launcher; change the user after init_workload_monitoring(), or start ft_launcher as this user"
        ) from error
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise RankMonitorClientError(
            f"{variable} leads to {path}, which is not what was written there: "
            f"{error.strerror if isinstance(error, OSError) else error}. Somebody has damaged it; ft_launcher makes it "
            "anew before it restarts the ranks"
        ) from error


def allow_stack_dumps(launcher: int) -> None:
    """Let the launcher's descendants read this process's stacks where Yama restricts ptrace (ptrace_scope 1)."""
    if launcher and restricts_ptrace():
        allow_tracer(launcher)


_of_fatal_signals: list[TextIO] = []
"""Where faulthandler writes on a fatal signal; open for as long as the process lives."""


def register_stack_dump(cell_path: str) -> TextIO | None:
    """Write this process's stacks beside the cell when the monitor asks, where it cannot read them from outside.

    The signal tells the stack of the main thread alone: to read those of others while they run may end the process.
    Where the thread of :mod:`resilience_core.monitoring.group_numbers` can run, it is asked before, and tells all.

    So does a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), unless faulthandler is in use already: then it
    writes where the script wants it.

    Returns:
        What they are written to; None where no file can be made, which costs the stacks and nothing else.
    """
    try:
        # Open as long as monitoring lasts.
        # At its end, whatever an earlier descriptor of this process has written there.
        file = open(cell_path + STACK, "a", encoding="utf-8", opener=only_plain)  # noqa: SIM115
        file.truncate(0)
    except OSError as error:
        logger.warning("no stacks of this rank can be had without py-spy: %s: %s", error.filename, error.strerror)
        return None
    # unregister_stack_dump() restores this: a request that comes a moment too late must not kill the process.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=False, chain=False)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=file, all_threads=True)
        _of_fatal_signals.append(file)
    return file


def unregister_stack_dump(file: TextIO) -> None:
    """Undo :func:`register_stack_dump`, but for fatal signals: a process may also die of one while it ends."""
    faulthandler.unregister(STACK_SIGNAL)
    if file not in _of_fatal_signals:
        file.close()


def exit_on_uncaught_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print the traceback and exit without teardown: the exception hook of ``install_exception_hook``.

    An orderly interpreter exit may wait for ever, for instance in a collective library's destructor.
    """
    sys.stderr.write("".join(traceback.format_exception(kind, error, trace)))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(UNCAUGHT_EXIT_CODE)
