"""The process that warm workers are forked from: it has imported torch, touched no device, and waits.

Sketched, measured and chosen:

* *Spawn* (fork and exec, import torch): about a second per generation, all of it import.
* *Zygote, fork on demand*: two forks per worker (see below) on the path between a death and the next step.
* *Parked workers*: the zygote forks the next generation's workers while the present one trains; each is already
  the leader of its session and a child of the launcher, and blocks in one read. A restart then costs one message
  per worker. Idle, a parked worker owns some megabytes, since it rehearses (:mod:`launcher.zygote.rehearsal`). This
  was chosen; a fork on demand is the same code, asked later.

The zygote is forked from the launcher itself, right after the launcher's own import of torch, before it has a
thread, a socket or a signal handler. So torch is imported once, which is why the first generation is early, too.
Should the zygote die, nothing that runs is touched (its descendants belong to the launcher, see below) and a new
one is made by exec, since a launcher that supervises has threads by then.

Workers become children of the launcher: the launcher is a child subreaper, the zygote forks twice and lets the
process in the middle exit. Only then does the worker arm ``PR_SET_PDEATHSIG``, which fires when the *thread* that
is the parent ends, and looks again whether the launcher is still there.

What the user's modules would import beyond torch is not guessed: importing them here would run code of unknown
side effects in the wrong process, with the wrong arguments. ``--ft-preload`` names what is known to be harmless,
and what it leaves behind is checked (:mod:`launcher.zygote.preloading`) before the first worker is forked.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Collection, Sequence

from launcher.processes.exit_codes import FORK_REFUSED, FORKED, LOST_PARENT, NO_LONGER_NEEDED, UNREADABLE_ORDER
from launcher.processes.message_format import MessageError
from launcher.records import console
from launcher.zygote.import_time import import_environment
from launcher.zygote.module_survey import survey
from launcher.zygote.preloading import Preloading
from launcher.zygote.protocol import (
    SETTINGS,
    Forked,
    Handover,
    Park,
    Parked,
    Refused,
    ZygoteMessage,
    order_from_file,
    packet_pair,
    receive_message,
    send_message,
)
from launcher.zygote.rehearsal import rehearse
from launcher.zygote.worker_bootstrap import run_as_main
from resilience_core.system.distributions import distributions_with
from resilience_core.system.prctl import die_with_parent, set_process_name

__all__ = ["serve"]

_FIRST_HIGH_DESCRIPTOR = 512
_LONGEST_ADOPTION_SECONDS = 10.0
"""How long the process between zygote and worker may take to exit; it takes microseconds, unless it is stopped."""
_ADOPTION_LOOK_SECONDS = 0.0002


def serve(channel: socket.socket, launcher_pid: int, preload: Sequence[str], inherited: Collection[int]) -> Handover:
    """Run as the zygote: fork parked workers whenever the launcher asks for some.

    Args:
        channel: To the launcher; its end is the zygote's end.
        launcher_pid: Who becomes the workers' parent.
        preload: Modules to import first.
        inherited: Descriptors that a spawned worker would not have. Others belong to libraries, and stay.

    Returns:
        Only in a worker: what it is to become.
    """
    _follow_to_death(launcher_pid)
    set_process_name("ft_zygote")
    console.follow(console.state(), "zygote")
    for descriptor in set(inherited) - {channel.fileno()}:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    before = dict(os.environ)
    preloading = Preloading()
    preloading.import_all(preload)
    found = import_environment(before, preloading.reads)
    _tell(channel, preloading.report(found))
    survey(before, found, preloading)
    distributions_with("resilience")  # the answer is remembered; a worker's bus asks for its plugins
    # What is frozen is never walked by the collector, so its pages stay shared with every worker.
    gc.collect()
    gc.freeze()
    while True:
        request = receive_message(channel)
        if request is None:
            os._exit(NO_LONGER_NEEDED)
        for _ in range(request.message.workers if isinstance(request.message, Park) else 0):
            try:
                handover = _park_one(channel, launcher_pid)
            except OSError as error:  # no process, no descriptor or no memory is left at the moment
                handover = None
                _tell(channel, Refused(error.strerror or str(error)))
            if handover is not None:
                return handover


def _park_one(channel: socket.socket, launcher_pid: int) -> Handover | None:
    """Fork one parked worker and hand its end of a socket pair to the launcher. Returns in both processes.

    Raises:
        OSError: It could not be forked.
    """
    ours, theirs = packet_pair()
    with ours:
        with theirs, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 counts OpenBLAS's threads, too
            middle = os.fork()
            if middle == 0:
                middle = os.getpid()
                if (worker := _forked_or_ended()) != 0:
                    _tell(theirs, Forked(worker))  # so that it can be ended, however early it stops
                    os._exit(FORKED)
                channel.close()
                ours.close()
                link = socket.socket(fileno=theirs.detach())
                return _wait_for_order(link, middle, launcher_pid)
        # Without a bound here: the launcher kills this zygote's process group, which the process in the middle is in,
        # when no worker has come for ``STARVED_SECONDS`` (launcher.workers.zygote_handle).
        with contextlib.suppress(ChildProcessError):  # a preloaded module may have set SIGCHLD to be ignored
            if (refused := os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1])) > 0:
                raise OSError(refused, os.strerror(refused))
        _tell(channel, Parked(), [ours.fileno()])
    return None


def _forked_or_ended() -> int:
    """Fork; where that cannot be done, exit with the errno."""
    try:
        return os.fork()
    except OSError as error:
        os._exit(error.errno or FORK_REFUSED)


def _tell(channel: socket.socket, message: ZygoteMessage, descriptors: Sequence[int] = ()) -> None:
    try:
        send_message(channel, message, descriptors)
    except OSError:  # the launcher has closed its end
        os._exit(NO_LONGER_NEEDED)


def _wait_for_order(link: socket.socket, middle: int, launcher_pid: int) -> Handover:
    os.setsid()
    set_process_name("ft_parked")
    end = time.monotonic() + _LONGEST_ADOPTION_SECONDS
    while os.getppid() == middle:  # until the process in the middle has exited; no event tells
        if time.monotonic() >= end:
            os._exit(LOST_PARENT)
        time.sleep(_ADOPTION_LOOK_SECONDS)
    _follow_to_death(launcher_pid)
    link = _out_of_the_way(link)
    rehearse()
    try:
        send_message(link, Parked())
        packet = receive_message(link)
    except OSError:  # the zygote died before it could hand the other end on
        packet = None
    if packet is None or not packet.descriptors:
        os._exit(NO_LONGER_NEEDED)
    try:
        return Handover(order_from_file(packet.descriptors[0]), link)
    except MessageError as error:
        console.announce(f"a parked worker cannot read its order: {error}", level=console.ERROR, event="worker_start")
        os._exit(UNREADABLE_ORDER)


def _out_of_the_way(link: socket.socket) -> socket.socket:
    """Move the link to a high descriptor, so that the script's files get the same numbers as in a spawned worker."""
    try:
        moved = fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH_DESCRIPTOR)
    except OSError:  # so few descriptors are allowed
        return link
    link.close()
    return socket.socket(fileno=moved)


def _follow_to_death(parent: int) -> None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(LOST_PARENT)


def main(home: str | None) -> None:
    """Run as a zygote that was started by exec, since the launcher could no longer be forked.

    Args:
        home: Where our own modules were found, if that is no place where a worker would look for any.
    """
    try:
        settings = SETTINGS.decode(sys.argv[1].encode())
    except MessageError as error:
        console.announce(f"the zygote cannot read its settings: {error}", level=console.ERROR, event="worker_start")
        sys.exit(UNREADABLE_ORDER)
    console.follow(console.State(*settings.console))
    handover = serve(socket.socket(fileno=settings.channel), settings.launcher, settings.preload, ())
    if home is not None:
        sys.path.remove(home)
    run_as_main(handover)
