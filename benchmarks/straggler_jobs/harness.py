"""Starts the ranks of one run as forks of this process, which has imported torch, and waits for their words."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.straggler_jobs.rank import Rank
from benchmarks.straggler_jobs.words import Run, read

_MOST_SECONDS = 60.0
"""How much longer than it was meant to take a run may take before its ranks are killed."""


def run(
    body: Callable[[Rank], None],
    *,
    world_size: int,
    slow_rank: int | None,
    neighbours: int = 0,
    seconds: float = 0.0,
    **settings: Any,
) -> Run:
    """Run a job once.

    Args:
        body: What a rank does; called with it.
        world_size: How many ranks.
        slow_rank: Which is slow; None: nobody.
        neighbours: Busy processes that come and go beside the job.
        seconds: How long the job goes on; 0: until its steps are done.
        **settings: Of ``Rank``.
    """
    with tempfile.TemporaryDirectory(prefix="straggler-jobs-") as scratch, busy(neighbours):
        folder, port = Path(scratch), free_port()

        def rank(number: int) -> None:
            environment = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world_size, "GROUP_RANK": 0}
            environment |= {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in environment.items()}, TORCHELASTIC_RUN_ID="jobs")
            with open(folder / f"stderr-{number}", "w") as stderr, open(os.devnull, "w") as nothing:
                os.dup2(stderr.fileno(), 2)
                os.dup2(nothing.fileno(), 1)
            warnings.simplefilter("ignore")
            logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", force=True)
            made = Rank(number, world_size, slow=number == slow_rank, seconds=seconds, folder=folder, **settings)
            body(made)
            made.write_word()

        wait_for([fork(rank, number) for number in range(world_size)], seconds + _MOST_SECONDS)
        return read(folder, world_size, slow_rank)


def free_port() -> int:
    """Return a port that nobody listens on just now; for what takes its port from the environment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def fork(work: Callable[[int], None], number: int) -> int:
    """Run something in a process of its own, which ends when it returns and with this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) != 0:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        work(number)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Without a farewell: rank 0 serves the store, and the others would wait for it or complain.
        os._exit(status)


def wait_for(pids: Sequence[int], seconds: float) -> None:
    """Wait for processes of ours, and kill those that do not end in time, or all after one of them failed."""
    deadline, left, failed = time.monotonic() + seconds, set(pids), False
    while left:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.remove(pid)
                if status and not failed:
                    failed, deadline = True, min(deadline, time.monotonic() + 3.0)
        if left and time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return
        time.sleep(0.01)


@contextmanager
def busy(count: int) -> Any:
    """Compete for the processors from outside, by processes that are busy and idle at random."""

    def neighbour(number: int) -> None:
        chance = random.Random()
        while True:
            end = time.monotonic() + chance.uniform(0.1, 3.0)
            while time.monotonic() < end:
                pass
            time.sleep(chance.uniform(0.1, 3.0))

    pids = [fork(neighbour, number) for number in range(count)]
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
