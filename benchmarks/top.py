"""What ``ft_top`` costs beside a run of many ranks: its processor time, by the kernel's account.

    python -m benchmarks.top --ranks 64 --seconds 30
    python -m benchmarks.top --ranks 8 --lines 24          # as in a small terminal

The ranks are cells and figures that this process keeps moving (a step every ``--step`` seconds, a checkpoint after
twenty), in a real run folder with a real event log; their process is this one. ``ft_top`` runs under a pseudo-terminal
whose output is read and thrown away. What it takes to start is left out: its time counts from its first frame on.
Ends with 1 where more than ``--goal`` percent of a core were used.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time

from benchmarks.__main__ import machine
from launcher.records.event_log import EventLog
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import CLOSED, ITERATION, LEFT_SECTION, SMALLEST_LIMIT, STATE, WATCHED
from resilience_core.protocol.figures import (
    DONE,
    FIRST_ITERATION,
    FIRST_STEP,
    create_figures,
    figures_path,
    open_figures,
)
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import process_start_time

_PROGRAM = "import sys; from launcher.top import main; sys.exit(main())"
_LIMIT_NS = 20 * NS_PER_SECOND
_SCHEDULER_TIME = 2
_LONGEST_START_SECONDS = 60.0
_LONGEST_END_SECONDS = 10.0
"""How long ft_top may take to show its table, and to end when it is asked to."""


class Ranks:
    """Cells that move as those of a training do.

    Args:
        folder: The run folder.
        count: How many.
        step_seconds: How long a step takes.
    """

    def __init__(self, folder: RunFolder, count: int, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._began = time.monotonic()
        self._cells = []
        for rank in range(count):
            cell = Cell.create(folder.cell(0, rank), rank=rank)
            cell.claim(os.getpid(), process_start_time(os.getpid()) or 0)
            slots = (cell.add_section("step"), cell.add_section("checkpointing"))
            cell.words[SMALLEST_LIMIT], cell.words[STATE] = _LIMIT_NS, WATCHED
            path = figures_path(folder.cell(0, rank))
            os.close(create_figures(path))
            figures = open_figures(path)
            figures[FIRST_ITERATION], figures[FIRST_STEP] = 0, time.monotonic_ns()
            self._cells.append((cell.words, slots, figures))

    def move(self) -> None:
        """Bring all to where they are now; every twentieth step ends with a checkpoint."""
        now_ns = time.monotonic_ns()
        iteration = int((time.monotonic() - self._began) / self._step_seconds)
        for words, (step, checkpointing), figures in self._cells:
            if words[ITERATION] == iteration:
                continue
            is_saving = iteration % 20 == 19
            opened, closed = (checkpointing, step) if is_saving else (step, checkpointing)
            words[closed] = CLOSED
            words[LEFT_SECTION] = now_ns
            words[ITERATION], figures[DONE] = iteration, iteration - 1
            words[opened + 1] = now_ns
            words[opened] = now_ns + _LIMIT_NS


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse_options()
    print(machine(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = RunFolder(options.parent)
        stack.callback(folder.remove)
        log_folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ft-bench-top-"))
        ranks = Ranks(folder, options.ranks, options.step)
        events = EventLog(log_folder)
        events.write("began", run_folder=folder.path, launcher=os.getpid(), max_restarts=3)
        events.write("rendezvous", generation=0, nodes=1)
        events.write("started", generation=0, restarts=0, pids={str(n): os.getpid() for n in range(options.ranks)})
        events.close()
        used, wall, frames, written = watch(ranks, log_folder, options)
    percent = 100 * used / wall
    print(
        f"{options.ranks} ranks, {options.lines} lines of {options.columns}, a look every {options.interval:g} s: "
        f"{used:.4f} s of processor time in {wall:.1f} s, {percent:.2f} % of a core; {frames} writes, "
        f"{written / max(frames, 1) / 1000:.1f} kB each"
    )
    if percent > options.goal:
        print(f"the goal of {options.goal:g} % is missed")
        return 1
    return 0


def watch(ranks: Ranks, log_folder: str, options: argparse.Namespace) -> tuple[float, float, int, int]:
    """Run ft_top for so long; seconds of processor time and of the clock, and how often and how much it has written."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        command = [sys.executable, "-c", _PROGRAM, log_folder, "--interval", str(options.interval)]
        os.execv(sys.executable, command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", options.lines, options.columns, 0, 0))
    began, used, frames, written, is_shown = time.monotonic(), 0.0, 0, 0, False
    try:
        while not is_shown or time.monotonic() < began + options.seconds:
            ranks.move()
            if not is_shown and time.monotonic() > began + _LONGEST_START_SECONDS:
                raise SystemExit(f"ft_top has shown no table within {_LONGEST_START_SECONDS:g} s")
            if not select.select([terminal], [], [], 0.01)[0]:
                continue
            raw = read_terminal(terminal)
            if not raw:
                raise SystemExit("ft_top has ended by itself")
            if is_shown:
                frames, written = frames + 1, written + len(raw)
            elif b"steps/s" in raw:
                is_shown, began, used = True, time.monotonic(), processor_seconds(pid)
        used, wall = processor_seconds(pid) - used, time.monotonic() - began
    finally:
        end(pid, terminal)
    return used, wall, frames, written


def end(pid: int, terminal: int) -> None:
    """Ask ft_top to end, and kill it where it does not; read what it writes meanwhile."""
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _LONGEST_END_SECONDS
    while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0] and read_terminal(terminal):
        pass
    os.kill(pid, signal.SIGKILL)  # it is no more than a zombie where it has ended
    os.waitpid(pid, 0)
    os.close(terminal)


def read_terminal(terminal: int) -> bytes:
    """Return what was written to the other end; nothing once that is closed."""
    with contextlib.suppress(OSError):
        return os.read(terminal, 1 << 16)
    return b""


def processor_seconds(pid: int) -> float:
    """Return what all threads of a process have used so far, in nanosecond steps.

    The ticks of ``/proc/PID/stat`` are 10 ms: more than ft_top uses in a short measurement. This is the clock that
    ``clock_getcpuclockid(3)`` returns: the process id, inverted, above three bits that say "scheduler's time, of the
    whole process".
    """
    return time.clock_gettime((~pid << 3) | _SCHEDULER_TIME)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.top", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--interval", type=float, default=1.0, help="between two looks of ft_top")
    parser.add_argument("--step", type=float, default=0.25, help="seconds for each step of a rank")
    parser.add_argument("--lines", type=int, default=72, help="of the terminal; all of 64 ranks fit into 72")
    parser.add_argument("--columns", type=int, default=120)
    parser.add_argument("--goal", type=float, default=2.0, help="percent of a core")
    parser.add_argument("--parent", default="/dev/shm", help="where the run folder is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
