"""A second fence, in a process of its own, for when the first one is gone and nobody replaces it.

The monitor fences its node (:mod:`launcher.monitor.fencing`), and the launcher replaces a monitor that has ended. Where
the launcher is stopped and the monitor is killed, ranks would outlive their lease, and write beside those that others
have started in their place. This process does nothing but read the same lease, and kill what is left a moment after the
monitor should have.
"""

from __future__ import annotations

import logging
import os
import signal

from launcher.monitor.fencing import start_fence
from launcher.records.console import set_level
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.prctl import die_with_parent, set_process_name

__all__ = ["main"]

_LATER_NS = NS_PER_SECOND // 10
"""The monitor goes first, since it tells the launcher; it has a second, or a fifth of the lease."""


def main(arguments: list[str]) -> None:
    """Fence until the launcher ends, with which its ranks end, too.

    Args:
        arguments: The lease's descriptor, the launcher's pid, and the run folders, which mark the ranks.
    """
    lease, launcher, run_folders = int(arguments[0]), int(arguments[1]), tuple(arguments[2:])
    set_process_name("ft_fence")
    die_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:
        return
    set_level(logging.CRITICAL)  # the monitor says all there is to say
    start_fence(lease, lambda _: None, lambda: run_folders, later_ns=_LATER_NS)
    while True:
        signal.pause()
