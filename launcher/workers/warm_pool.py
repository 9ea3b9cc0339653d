"""Keep parked workers and the zygote that forks them ready, and replace those that are lost.

Every part may be killed, stopped or stuck. Each loss is seen at the latest at the next look (``_LOOK_SECONDS``), or
when a generation starts. Nothing waits without a bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.workers.parked import ParkedWorker, Stage, wait_for_any
from launcher.workers.running import RunningWorkers
from launcher.workers.script_settings import ImportSettings
from launcher.workers.zygote_handle import STARVED_SECONDS, ZygoteHandle
from launcher.zygote.import_time import import_environment
from launcher.zygote.protocol import WorkerOrder

__all__ = ["PATIENCE_SECONDS", "WarmPool"]

_LOOK_SECONDS = 0.5
_FIRST_IMPORT_SECONDS = 10.0
"""How long the first start may wait for the zygote: its import is what spawning would do, too. Nothing runs yet that
would have to be restarted, so forking may take its time then, too (``STARVED_SECONDS``)."""
PATIENCE_SECONDS = 1.0
"""How long a start waits for parked workers, and for those that were handed over to reach their first line."""
_MOST_FAILURES = 3
_RETRY_SECONDS = 2.0
"""How long to wait after the system has refused a process: there are too many of them, or too little memory."""


class WarmPool:
    """The parked workers of one launcher.

    Args:
        zygote: The first one.
        preload: What a new zygote must import.
        announce: Called once with why warm start is not possible, and with each loss that was replaced.
        settings: What the script sets before it imports torch.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        zygote: ZygoteHandle,
        preload: Sequence[str],
        announce: Callable[[str], None],
        settings: ImportSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zygote: ZygoteHandle | None = zygote
        self._preload = list(preload)
        self._announce = announce
        self._settings = ImportSettings() if settings is None else settings
        self._clock = clock
        self._environment: dict[str, str] = dict(os.environ)
        self._making: list[ParkedWorker] = []
        self._idle: list[ParkedWorker] = []
        self._running = RunningWorkers(self._settings, announce)
        self._wanted = 0
        self._failures = 0
        self._lost_unready = 0  # parked workers in a row that ended before they were ready
        self._has_started = False
        self._is_off = False
        self._next_look = 0.0
        self._refused: str | None = None
        self._next_try = 0.0

    def ensure_ready(self, count: int) -> None:
        """Ask for as many parked workers as are missing, without waiting for them."""
        self._wanted = count
        zygote = self._zygote
        if zygote is not None and zygote.has_reported and self._clock() >= self._next_try:
            missing = count - len(self._idle) - len(self._making) - zygote.asked
            if missing > 0:
                zygote.ask(missing, self._clock())

    def descriptors(self) -> list[int]:
        """Return what becomes readable when there is something to tend to."""
        # What runs has time: two links that close while a group is being formed would wake the launcher twice.
        found = [d for parked in (*self._making, *self._idle) for d in parked.descriptors()]
        if self._zygote is not None:
            found += [self._zygote.channel.fileno(), self._zygote.pidfd]
        return found

    def due_seconds(self) -> float | None:
        """Return in how many seconds to tend to the pool at the latest; None when it is off."""
        return None if self._is_off else max(0.0, self._next_look - self._clock())

    def maintain(self) -> None:
        """Read what zygote and workers have sent, and replace what is lost or stopped."""
        self._receive()
        self._drop_lost_workers()
        if self._zygote is not None and self._zygote.has_reported and not self._zygote.finds(self._environment):
            self._renew_environment()
        is_due = self._clock() >= self._next_look
        if is_due:
            self._next_look = self._clock() + _LOOK_SECONDS
            self._drop_stopped_workers()
        if self._zygote is not None:
            problem = self._zygote_problem(is_due)
            if problem is not None:
                self._replace_zygote(f"the zygote {problem}; a new one is being made, no rank was touched")
        elif not self._is_off and self._clock() >= self._next_try:
            self._make_zygote()
        self.ensure_ready(self._wanted)

    def children(self) -> set[int]:
        """Return the pids of processes that are ours to collect."""
        own = {parked.pid for parked in (*self._idle, *self._making) if parked.pid > 0}
        return own | ({self._zygote.pid} if self._zygote is not None else set())

    def close(self) -> None:
        """End the zygote and every parked worker, and none of those that run."""
        self._is_off = True
        self._wanted = 0
        self._running.receive()
        if self._zygote is not None:
            self._making += self._zygote.close()
            self._zygote = None
        self._discard_parked()
        self._running.drop()

    def gather(self, count: int, environment: Mapping[str, str]) -> None:
        """Wait for so many parked workers for a generation, and return with fewer when the time is up.

        Args:
            count: How many.
            environment: The variables of one of the workers; what is read at import is the same for all.
        """
        self._receive()
        self._running.drop()
        self._gather(count, environment)
        self._has_started = True
        self._wanted = 0  # until ensure_ready() is called: to fork now would delay the group that is being formed

    def _gather(self, count: int, environment: Mapping[str, str]) -> None:
        self._environment = self._settings.applied_to(environment)
        seconds = PATIENCE_SECONDS if self._has_started else _FIRST_IMPORT_SECONDS
        end = self._clock() + seconds
        while True:
            self._receive()
            self._drop_lost_workers()
            zygote = self._zygote
            if zygote is None:
                return
            if zygote.has_reported and not zygote.finds(self._environment):
                self._renew_environment()
                continue
            if len(self._idle) >= count:
                return
            if (problem := self._zygote_problem(is_due=False, at_once=True)) is not None:
                self._replace_zygote(f"the zygote {problem}; spawning where no parked worker is left")
                continue
            self.ensure_ready(max(count, self._wanted))
            left = end - self._clock()
            if self._clock() < self._next_try or (zygote.was_waited_for and not zygote.has_reported):
                return  # it was refused, or is stuck in an import: not again a second at each restart
            if zygote.has_reported and not self._has_started:
                left = min(left, STARVED_SECONDS - (self._clock() - zygote.asked_at))
            if left <= 0:
                self._say_that_it_is_late(zygote)
                return
            wait_for_any(self.descriptors(), min(left, 0.1))

    def _say_that_it_is_late(self, zygote: ZygoteHandle) -> None:
        if not zygote.was_waited_for:
            zygote.was_waited_for = True
            what = "has not forked enough workers" if zygote.has_reported else "is still importing"
            self._announce(f"the zygote {what}; until it is ready, workers are spawned")

    def hand_over(self, order: WorkerOrder) -> ParkedWorker | None:
        """Hand an order to a parked worker that can take it.

        Returns:
            The worker, which has yet to say that it starts; None where none is left.
        """
        while self._idle:
            parked = self._idle.pop(0)
            why_lost = parked.why_lost
            if why_lost is None and parked.hand_over(order):
                return parked
            self._announce(f"a parked worker {why_lost or 'did not take its order'}; another takes its place")
            parked.discard()
        return None

    def let_run(self, parked: ParkedWorker) -> None:
        """Note that a worker has started: its process is collected elsewhere, and its report on imports is read."""
        self._running.add(parked)

    # ---- messages ---------------------------------------------------------------------------------------

    def _receive(self) -> None:
        if self._zygote is not None:
            had_reported = self._zygote.has_reported
            self._making += self._zygote.receive(self._clock())
            if self._zygote.refused is not None:
                self._was_refused(f"a parked worker cannot be forked: {self._zygote.refused}")
                self._zygote.refused = None
            if self._zygote.has_reported and not had_reported:
                self._read_report(self._zygote)
        for parked in self._making:
            parked.receive()
        for parked in [parked for parked in self._making if parked.stage is Stage.PARKED]:
            self._making.remove(parked)
            self._idle.append(parked)
            self._failures, self._lost_unready, self._refused = 0, 0, None
        for parked in self._idle:
            parked.receive()
        if self._running.receive():
            self._environment = self._settings.applied_to(self._environment)
        if self._settings.why_not is not None:
            self.switch_off(self._settings.why_not)

    def _read_report(self, zygote: ZygoteHandle) -> None:
        if zygote.left_out:
            for name, why in zygote.left_out.items():
                self._announce(f"--ft-preload: '{name}' is left out: {why}")
                self._preload.remove(name)
            self._make_zygote()
        elif zygote.unsafe is not None:
            self.switch_off(zygote.unsafe)

    # ---- losses -----------------------------------------------------------------------------------------

    def _drop_lost_workers(self) -> None:
        for parked in [p for p in (*self._idle, *self._making) if p.has_exited]:
            self._lost_unready += parked in self._making
            if self._lost_unready <= _MOST_FAILURES:
                self._drop(parked, "was lost")
            else:  # with too few descriptors, say; not hundreds of them a minute
                self._drop(parked)
                self._was_refused("parked workers end before they are ready", "one does not")

    def _drop_stopped_workers(self) -> None:
        for parked in (*self._idle, *self._making):
            is_stopped = parked.is_stopped
            if is_stopped and parked.was_seen_stopped:
                self._drop(parked, "was stopped")
            parked.was_seen_stopped = is_stopped

    def _drop(self, parked: ParkedWorker, what: str | None = None) -> None:
        (self._idle if parked in self._idle else self._making).remove(parked)
        parked.discard()
        if what is not None:
            self._announce(f"a parked worker {what}; another takes its place")

    def _zygote_problem(self, is_due: bool, at_once: bool = False) -> str | None:
        assert self._zygote is not None
        return self._zygote.problem(self._clock(), bool(self._making), is_due=is_due, at_once=at_once)

    def _replace_zygote(self, said: str) -> None:
        """Make a new one; switch off after several in a row that have produced no worker."""
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            self.switch_off("the zygote does not come up")
            return
        self._announce(said)
        self._make_zygote()

    def _renew_environment(self) -> None:
        """Make a new one, where variables that are read at import have changed."""
        self._discard_parked()
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            self.switch_off("the zygote does not get the variables that are read at import")
            return
        self._make_zygote()

    def _make_zygote(self) -> None:
        if self._zygote is not None:
            self._making += self._zygote.close()
        while self._making:
            self._making.pop().discard()
        import_time = {**import_environment(self._environment), **self._settings.values}
        try:
            self._zygote = ZygoteHandle.by_exec(self._preload, import_time)
        except OSError as error:
            self._zygote = None
            self._was_refused(f"a zygote cannot be started: {error.strerror}")

    def _was_refused(self, why: str, until: str = "it can") -> None:
        """Try again later, and announce a reason that is new."""
        self._next_try = self._clock() + _RETRY_SECONDS
        if self._refused != why:
            self._refused = why
            self._announce(f"{why}; workers are spawned until {until}")

    def _discard_parked(self) -> None:
        for parked in (*self._idle, *self._making):
            parked.discard()
        self._idle, self._making = [], []

    def switch_off(self, why: str) -> None:
        """Have no more parked workers, and say once why."""
        if not self._is_off:
            self._announce(f"warm start is off: {why}; workers are spawned instead (said once)")
        self.close()
