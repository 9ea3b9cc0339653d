"""Workers from parked processes that a zygote has forked ahead; spawned ones wherever that cannot be had in time.

Every part may be killed, stopped or stuck. Each loss is seen at the latest at the next look (``_LOOK_SECONDS``), or
when a generation starts; it costs at most a second then, and the worker in question is spawned. Nothing waits
without a bound.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.workers.parked import ParkedWorker, Stage
from launcher.workers.script_settings import ImportSettings
from launcher.workers.spawn import Launch
from launcher.workers.starters import spawn_all
from launcher.workers.zygote_handle import Zygote
from launcher.zygote.import_time import import_environment
from launcher.zygote.protocol import WorkerOrder

__all__ = ["WarmStarter"]

_LOOK_SECONDS = 0.5
_FIRST_IMPORT_SECONDS = 10.0
"""How long the first start may wait for the zygote: its import is what spawning would do, too. Nothing runs yet that
would have to be restarted, so forking may take its time then, too (``_STARVED_SECONDS``)."""
_PATIENCE_SECONDS = 1.0
"""How long a start waits for parked workers, and for those that were handed over to reach their first line."""
_STARVED_SECONDS = 5.0
"""The same for one that is about to run and gets no processor; and how long forking one may take."""
_MOST_FAILURES = 3
_RETRY_SECONDS = 2.0
"""How long to wait after the system has refused a process: there are too many of them, or too little memory."""


class WarmStarter:
    """Parked workers from a zygote.

    Args:
        zygote: The first one.
        preload: What a new zygote must import.
        say: Told once why warm start is not possible, and of every loss that was mended.
        settings: What the script sets before it imports torch.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        zygote: Zygote,
        preload: Sequence[str],
        say: Callable[[str], None],
        settings: ImportSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zygote: Zygote | None = zygote
        self._preload = list(preload)
        self._say = say
        self._settings = ImportSettings() if settings is None else settings
        self._clock = clock
        self._environment: dict[str, str] = dict(os.environ)
        self._making: list[ParkedWorker] = []
        self._idle: list[ParkedWorker] = []
        self._running: list[ParkedWorker] = []
        self._wanted = 0
        self._failures = 0
        self._stillborn = 0  # in a row
        self._has_started = False
        self._is_off = False
        self._next_look = 0.0
        self._refused: str | None = None
        self._next_try = 0.0

    # ---- see WorkerStarter ------------------------------------------------------------------------------

    def start_all(self, launches: Mapping[int, Launch]) -> dict[int, int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        around = dict(os.environ)
        orders = {n: order for n, launch in launches.items() if (order := _order(launch, around)) is not None}
        if len(orders) < len(launches):
            self._switch_off("the workers are not started with this launcher's own Python")
            return spawn_all(launches, {})
        self._hear()
        self._drop_links()
        self._gather(len(orders), next(iter(orders.values())).environment)
        self._has_started = True
        self._wanted = 0  # until prepare() is called: to fork now would delay the group that is being formed
        handed = {}
        for local_rank, order in orders.items():
            parked = self._hand_over(order)
            if parked is not None:
                handed[local_rank] = parked
        pids = spawn_all(launches, {local_rank: parked.pid for local_rank, parked in handed.items()})
        late = self._await_first_lines(handed)
        if late:
            for local_rank in late:
                handed[local_rank].discard()
                del pids[local_rank]
            for why in sorted(set(late.values())):
                ranks = ", ".join(str(local_rank) for local_rank in sorted(late) if late[local_rank] == why)
                self._say(f"local rank(s) {ranks}: the parked worker {why}; spawned instead")
            pids = spawn_all(launches, pids)
        return pids

    def prepare(self, count: int) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._wanted = count
        zygote = self._zygote
        if zygote is not None and zygote.has_reported and self._clock() >= self._next_try:
            missing = count - len(self._idle) - len(self._making) - zygote.asked
            if missing > 0:
                zygote.ask(missing, self._clock())

    def descriptors(self) -> list[int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        # What runs has time: two links that close while a group is being formed would wake the launcher twice.
        found = [d for parked in (*self._making, *self._idle) for d in parked.descriptors()]
        if self._zygote is not None:
            found += [self._zygote.channel.fileno(), self._zygote.pidfd]
        return found

    def due_seconds(self) -> float | None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        return None if self._is_off else max(0.0, self._next_look - self._clock())

    def tend(self) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._hear()
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
        self.prepare(self._wanted)

    def children(self) -> set[int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        own = {parked.pid for parked in (*self._idle, *self._making) if parked.pid > 0}
        return own | ({self._zygote.pid} if self._zygote is not None else set())

    def close(self) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._is_off = True
        self._wanted = 0
        self._hear_imports()
        if self._zygote is not None:
            self._making += self._zygote.close()
            self._zygote = None
        self._discard_parked()
        self._drop_links()

    # ---- one generation ---------------------------------------------------------------------------------

    def _gather(self, count: int, environment: Mapping[str, str]) -> None:
        """Have so many parked workers for this environment, or be content with fewer when time is up."""
        self._environment = self._settings.applied_to(environment)
        seconds = _PATIENCE_SECONDS if self._has_started else _FIRST_IMPORT_SECONDS
        end = self._clock() + seconds
        while True:
            self._hear()
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
            self.prepare(max(count, self._wanted))
            left = end - self._clock()
            if self._clock() < self._next_try or (zygote.was_waited_for and not zygote.has_reported):
                return  # it was refused, or is stuck in an import: not again a second at each restart
            if zygote.has_reported and not self._has_started:
                left = min(left, _STARVED_SECONDS - (self._clock() - zygote.asked_at))
            if left <= 0:
                self._say_that_it_is_late(zygote)
                return
            self._wait(self.descriptors(), min(left, 0.1))

    def _say_that_it_is_late(self, zygote: Zygote) -> None:
        if not zygote.was_waited_for:
            zygote.was_waited_for = True
            what = "has not forked enough workers" if zygote.has_reported else "is still importing"
            self._say(f"the zygote {what}; until it is ready, workers are spawned")

    def _hand_over(self, order: WorkerOrder) -> ParkedWorker | None:
        while self._idle:
            parked = self._idle.pop(0)
            fate = parked.fate
            if fate is None and parked.hand_over(order):
                return parked
            self._say(f"a parked worker {fate or 'did not take its order'}; another takes its place")
            parked.discard()
        return None

    def _await_first_lines(self, handed: Mapping[int, ParkedWorker]) -> dict[int, str]:
        """Wait for all at once.

        Returns:
            Those that will not get there, by local rank: dead, stopped, or too late, in words.
        """
        begin = self._clock()
        pending = dict(handed)
        late = {}
        while pending:
            for local_rank, parked in list(pending.items()):
                parked.hear()
                if parked.stage is Stage.STARTED:
                    self._running.append(parked)
                    parked.let_go()
                    del pending[local_rank]
                elif (why := self._why_lost(parked, self._clock() - begin)) is not None:
                    late[local_rank] = why
                    del pending[local_rank]
            if pending:
                self._wait([d for parked in pending.values() for d in parked.descriptors()], 0.1)
        return late

    def _why_lost(self, parked: ParkedWorker, seconds: float) -> str | None:
        why = parked.fate
        if why is not None:
            why = f"{why} before the script began"
        elif seconds > (limit := _STARVED_SECONDS if parked.is_runnable else _PATIENCE_SECONDS):
            why = f"did not start within {limit:g} s"
        return why if why is not None and parked.refuse() else None

    # ---- what the others say ----------------------------------------------------------------------------

    def _hear(self) -> None:
        if self._zygote is not None:
            had_reported = self._zygote.has_reported
            self._making += self._zygote.hear(self._clock())
            if self._zygote.refused is not None:
                self._was_refused(f"a parked worker cannot be forked: {self._zygote.refused}")
                self._zygote.refused = None
            if self._zygote.has_reported and not had_reported:
                self._read_report(self._zygote)
        for parked in self._making:
            parked.hear()
        for parked in [parked for parked in self._making if parked.stage is Stage.PARKED]:
            self._making.remove(parked)
            self._idle.append(parked)
            self._failures, self._stillborn, self._refused = 0, 0, None
        for parked in self._idle:
            parked.hear()
        self._hear_imports()
        if self._settings.why_not is not None:
            self._switch_off(self._settings.why_not)

    def _hear_imports(self) -> None:
        for parked in self._running:
            parked.hear()
            for found in parked.imports:
                self._settings.learn(found.differences, found.applied, self._say)
                self._environment = self._settings.applied_to(self._environment)
            parked.imports.clear()
        for parked in [parked for parked in self._running if parked.is_gone]:
            self._running.remove(parked)
            parked.close()

    def _read_report(self, zygote: Zygote) -> None:
        if zygote.left_out:
            for name, why in zygote.left_out.items():
                self._say(f"--ft-preload: '{name}' is left out: {why}")
                self._preload.remove(name)
            self._make_zygote()
        elif zygote.unsafe is not None:
            self._switch_off(zygote.unsafe)

    def _drop_links(self) -> None:
        """Of a generation that is over nothing more is heard."""
        for parked in self._running:
            parked.close()
        self._running = []

    # ---- losses -----------------------------------------------------------------------------------------

    def _drop_lost_workers(self) -> None:
        for parked in [p for p in (*self._idle, *self._making) if p.has_exited]:
            self._stillborn += parked in self._making
            if self._stillborn <= _MOST_FAILURES:
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
            self._say(f"a parked worker {what}; another takes its place")

    def _zygote_problem(self, is_due: bool, at_once: bool = False) -> str | None:
        """What is wrong with the zygote; a stopped one is believed at the second look, or at once."""
        zygote = self._zygote
        assert zygote is not None
        if zygote.has_exited:
            return "was lost"
        if is_due or at_once:
            is_stopped = zygote.is_stopped
            if is_stopped and (zygote.was_seen_stopped or at_once):
                return "was stopped"
            zygote.was_seen_stopped = is_stopped
        if (zygote.asked or self._making) and self._clock() - zygote.asked_at > _STARVED_SECONDS:
            return f"has not forked a worker for {_STARVED_SECONDS:g} s"
        return None

    def _replace_zygote(self, said: str) -> None:
        """Make a new one; not for ever, where none of them brings a worker about."""
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            self._switch_off("the zygote does not come up")
            return
        self._say(said)
        self._make_zygote()

    def _renew_environment(self) -> None:
        """Make a new one, where variables that are read at import have changed."""
        self._discard_parked()
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            self._switch_off("the zygote does not get the variables that are read at import")
            return
        self._make_zygote()

    def _make_zygote(self) -> None:
        if self._zygote is not None:
            self._making += self._zygote.close()
        while self._making:
            self._making.pop().discard()
        import_time = {**import_environment(self._environment), **self._settings.values}
        try:
            self._zygote = Zygote.by_exec(self._preload, import_time)
        except OSError as error:
            self._zygote = None
            self._was_refused(f"a zygote cannot be started: {error.strerror}")

    def _was_refused(self, why: str, until: str = "it can") -> None:
        """Try again later; say it when it is news."""
        self._next_try = self._clock() + _RETRY_SECONDS
        if self._refused != why:
            self._refused = why
            self._say(f"{why}; workers are spawned until {until}")

    def _discard_parked(self) -> None:
        for parked in (*self._idle, *self._making):
            parked.discard()
        self._idle, self._making = [], []

    def _switch_off(self, why: str) -> None:
        if not self._is_off:
            self._say(f"warm start is off: {why}; workers are spawned instead (said once)")
        self.close()

    def _wait(self, descriptors: Sequence[int], seconds: float) -> None:
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        poller.poll(max(0, round(seconds * 1000 + 0.5)))


def _order(launch: Launch, around: Mapping[str, str]) -> WorkerOrder | None:
    """The launch as an order in the environment ``around``, None where only exec will do."""
    program, *arguments = launch.command
    if program != sys.executable or arguments[:1] != ["-u"] or launch.numa_options is not None:
        return None
    is_module = arguments[1] == "-m"
    argv = tuple(arguments[2:] if is_module else arguments[1:])
    if not argv or argv[0].startswith("-"):
        return None
    environment = {**around, **launch.environment}
    return WorkerOrder(argv, is_module, environment, launch.stdout, launch.stderr)
