"""Counts healthy ranks that are killed under disturbances which hit everybody alike; there should be none.

    python -m benchmarks.false_kills                          10 rank-hours, about half an hour
    python -m benchmarks.false_kills --rank-hours 0.5 --seed 3

Plain Python ranks (no torch) with limits of 1.5 times their longest true duration run side by side, some under
ft_launcher, the others under launcher.start_monitor, in jobs of four. Meanwhile whole jobs are frozen for 0.1 to 5 s
(by the cgroup freezer, or SIGSTOP and SIGCONT to all), monitors are killed and stopped, at times right after a freeze,
busy processes compete for the processors, and the ranks collect garbage. Any incident, death or restart is a false
kill. Runs in a PID namespace of its own, as benchmarks.chaos does. Ends with 1 when there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.chaos.__main__ import unshare_command
from benchmarks.false_kills.trees import MODES, Tree

_ROOT = Path(__file__).parents[2]
_SECONDS = (0.3, 0.6, 1.0, 2.0)
_MEAN_PAUSE_SECONDS = 6.0
"""Between two disturbances of one job."""
_BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


class Soak:
    """The jobs and what is done to them.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self.counts: Counter[str] = Counter()
        self._known: set[tuple[str, str]] = set()
        self._history: dict[str, list[str]] = {}
        self._folder = Path(options.inside)
        self.trees: list[Tree] = []
        self._thaw_at: dict[int, tuple[float, bool, int, bool]] = {}

    def run(self) -> int:
        """Disturb until the rank-hours are reached; print, and return the exit code."""
        jobs = max(1, self._options.ranks // 4)
        for number in range(jobs):
            mode, seconds = MODES[number % len(MODES)], self._chance.choice(_SECONDS)
            self.trees.append(
                Tree(self._folder / f"job{number}", 4, mode, seconds, is_launcher=number < self._options.launchers)
            )
            time.sleep(1)  # not all of them import at once
        self._wait_for_all_to_train()
        began = said = time.monotonic()
        wanted = self._options.rank_hours * 3600
        next_at = {number: began + self._pause() for number in range(jobs)}
        while (done := self._rank_seconds(time.monotonic() - began)) < wanted:
            now = time.monotonic()
            for number, tree in enumerate(self.trees):
                if number in self._thaw_at:
                    if now >= self._thaw_at[number][0]:
                        self._thaw(number, tree)
                        next_at[number] = now + self._pause()
                elif now >= next_at[number]:
                    self._disturb(number, tree)
                    next_at[number] = now + self._pause()
            if now - said > 30:
                said = now
                self._look()
                print(f"{done / 3600:.2f} rank-hours, {self.counts.total()} disturbances, "
                      f"load {os.getloadavg()[0]:.1f}, {len(self._known)} false kill(s)", flush=True)  # fmt: skip
            time.sleep(0.01)
        for number in list(self._thaw_at):
            self._thaw(number, self.trees[number])
        self._look()
        for tree in self.trees:
            tree.stop()
        return self._summary(done)

    def _wait_for_all_to_train(self) -> None:
        end = time.monotonic() + 300
        while any(len(list((tree.folder / "notes").iterdir())) < tree.ranks for tree in self.trees):
            if time.monotonic() > end:
                raise SystemExit(f"the ranks did not start within 300 s; see {self._folder}")
            time.sleep(0.1)

    def _pause(self) -> float:
        return self._chance.expovariate(1 / _MEAN_PAUSE_SECONDS)

    def _rank_seconds(self, seconds: float) -> float:
        return sum(tree.ranks * (seconds - tree.frozen_seconds) for tree in self.trees)

    # ---- disturbing -------------------------------------------------------------------------------------

    def _disturb(self, number: int, tree: Tree) -> None:
        what = self._chance.choices(
            ("freeze", "freeze by signals", "monitor killed", "monitor stopped", "busy processes"), (5, 3, 2, 2, 2)
        )[0]
        seconds = 0.1 * 50 ** self._chance.random()  # 0.1 to 5, as many below 0.7 as above
        kills_monitor = self._chance.random() < 0.25
        if what.startswith("freeze"):
            by_signals = what != "freeze" or not tree.freezer
            now_ns = time.monotonic_ns()
            tree.freeze(by_signals)
            self._thaw_at[number] = (now_ns / 1e9 + seconds, by_signals, now_ns, kills_monitor)
            what += ", then the monitor killed" if kills_monitor else ""
        elif what.startswith("monitor"):
            self._signal_monitor(tree, signal.SIGKILL if what == "monitor killed" else signal.SIGSTOP)
        else:
            for _ in range(4):
                subprocess.Popen([sys.executable, "-S", "-c", _BUSY, str(seconds)])
        self.counts[what] += 1
        self._history.setdefault(tree.name, []).append(f"{time.monotonic():.2f} {what} {seconds:.2f} s")

    def _thaw(self, number: int, tree: Tree) -> None:
        _, by_signals, began_ns, kills_monitor = self._thaw_at.pop(number)
        tree.thaw(by_signals)
        now_ns = time.monotonic_ns()
        tree.frozen.append((began_ns, now_ns))
        tree.frozen_seconds += (now_ns - began_ns) / 1e9
        if kills_monitor:
            time.sleep(self._chance.random() * 0.7)
            self._signal_monitor(tree, signal.SIGKILL)

    def _signal_monitor(self, tree: Tree, how: int) -> None:
        pid = tree.monitor()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    # ---- looking ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:  # orphans, and busy processes that are done; the jobs are their Popen's to collect
                state = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if state is None or state.si_pid in {tree.process.pid for tree in self.trees}:
                    break
                os.waitpid(state.si_pid, os.WNOHANG)
        for tree in self.trees:
            for found in tree.false_kills():
                if (tree.name, found) not in self._known:
                    self._known.add((tree.name, found))
                    print(f"FALSE KILL at {time.monotonic():.2f} in {tree.name}: {found}", flush=True)
                    for line in self._history.get(tree.name, [])[-6:]:
                        print(f"    before: {line}", flush=True)

    def _summary(self, rank_seconds: float) -> int:
        overruns = [overrun for tree in self.trees for overrun in tree.overruns()]
        beyond = [overrun for overrun in overruns if overrun.net_seconds >= overrun.limit_seconds]
        closest = max((overrun.net_seconds / overrun.limit_seconds for overrun in overruns), default=0.0)
        print(f"{rank_seconds / 3600:.2f} rank-hours of {sum(tree.ranks for tree in self.trees)} ranks in "
              f"{len(self.trees)} jobs, {sum(tree.steps() for tree in self.trees)} steps; "
              f"{self.counts.total()} disturbances:")  # fmt: skip
        for what, count in sorted(self.counts.items()):
            print(f"  {count:5} {what}")
        print(f"near misses that a launcher reported: {sum(tree.near_misses() for tree in self.trees)}")
        print(f"steps of more than 1.15 times their true duration, what was frozen taken off: "
              f"{sum(o.net_seconds > 1.15 / 1.5 * o.limit_seconds for o in overruns)}; "
              f"the longest took {closest:.0%} of its limit; {len(beyond)} truly exceeded it")  # fmt: skip
        print(f"false kills: {len(self._known)}")
        return 1 if self._known else 0


def main() -> int:
    """Run in a namespace of its own; the exit code."""
    options = parse_options()
    if options.inside:
        return Soak(options).run()
    namespace = unshare_command()
    if namespace is None:
        print("skipped: this user may make no PID namespace, so nothing can be killed safely", file=sys.stderr)
        return 2
    scratch = tempfile.mkdtemp(prefix="false-kills-")
    command = [*namespace, sys.executable, "-m", "benchmarks.false_kills", *sys.argv[1:], "--inside", scratch]
    print(f"files in {scratch}", flush=True)
    code = subprocess.run(command, cwd=_ROOT, check=False).returncode
    if code == 0:
        shutil.rmtree(scratch, ignore_errors=True)
    return code


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.false_kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rank-hours", type=float, default=10.0, metavar="HOURS", help="summed over all ranks (10)")
    parser.add_argument("--ranks", type=int, default=24, help="in jobs of four (24)")
    parser.add_argument("--launchers", type=int, default=2, help="how many of the jobs run under ft_launcher (2)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (1)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
