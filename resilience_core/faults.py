"""Simulated faults, for tests, demos and chaos runs: which fault, on which rank, when.

A fault is written ``kind:rank=R,step=N``, several are separated by ``;``, and they are given as an option's
text or in the environment variable ``FT_SIMULATED_FAULTS``::

    sigkill:rank=1,step=20
    gil:rank=0,step=3,seconds=2.5;missing_collective:rank=1,step=40,generation=1
    random:delay=30,seed=7

What each kind does is in ``resilience_core/_fault_effects.py``, how a fault is written in ``_fault_settings.py``.

Kinds: ``exception``, ``exit`` (os._exit), ``sigkill``, ``sigstop``, ``segfault``, ``deadlock`` (two threads),
``gil`` (a C call that keeps it), ``busy_loop``, ``missing_collective`` (one rank skips an all_reduce),
``slow_step``, and ``random`` (any of the first eight). ``rank_hung`` is sigstop, ``rank_killed`` sigkill,
``hang`` deadlock.

Keys: ``rank`` (chosen by ``seed`` when left out), ``step`` (the iteration), ``delay`` (seconds after the step,
or after setup when no step is given), ``at`` (step, eval, checkpoint, setup), ``generation`` (0, so that the
restarted run goes on; ``any``), ``seconds`` (how long it lasts; for ever when left out), ``code`` (of exit,
default 1), ``seed`` (default 0). The same text does the same thing in every run.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from resilience_core._fault_effects import EFFECTS, SimulatedFault, missing_collective
from resilience_core._fault_settings import KINDS, Fault, fault_from_params, parse_faults
from resilience_core.environment import FAULTS_VARIABLE
from resilience_core.event_bus import EventBus, bus
from resilience_core.hookspecs import RunContext, hookimpl

__all__ = [
    "KINDS",
    "Fault",
    "FaultInjector",
    "SimulatedFault",
    "fault_from_params",
    "install_faults",
    "parse_faults",
]


# These strike the whole process whichever thread they come from; the others must come from the training's own.
_FROM_ANY_THREAD = frozenset({"exit", "sigkill", "sigstop", "segfault", "gil"})

logger = logging.getLogger(__name__)


class FaultInjector:
    """A bus plugin that strikes when its time has come. It hears each event last, after every monitor.

    Args:
        faults: What to simulate.
    """

    def __init__(self, *faults: Fault) -> None:
        self._faults = faults
        self._pending: list[Fault] = []
        self._due: list[tuple[float, Fault]] = []
        self._stop = threading.Event()
        self._context = RunContext()

    @hookimpl(trylast=True)
    def setup(self, context: RunContext) -> None:
        """Arm this rank's faults that belong to this generation."""
        self._context = context
        self._stop = threading.Event()
        self._due = []
        self._pending = []
        for fault in self._faults:
            struck = fault.struck_rank(context.world_size)
            if fault.generation not in (None, context.restart_count):
                continue
            if context.rank == struck or fault.kind == "missing_collective":
                self._pending.append(fault)
        for fault in list(self._pending):
            if fault.at == "setup" or fault.step is None:
                self._begin(fault)

    @hookimpl(trylast=True)
    def step_start(self, iteration: int) -> None:
        """Run the faults that are due by the clock, and those of this step."""
        now = time.monotonic()
        for due, fault in list(self._due):
            if now >= due:
                self._due.remove((due, fault))
                self._strike(fault)
        self._reach("step", iteration)

    @hookimpl(trylast=True)
    def eval_step_start(self, iteration: int) -> None:
        """Run the faults of this step of an evaluation."""
        self._reach("eval", iteration)

    @hookimpl(trylast=True)
    def checkpoint_start(self, iteration: int) -> None:
        """Run the faults of the save of this checkpoint."""
        self._reach("checkpoint", iteration)

    @hookimpl(trylast=True)
    def teardown(self) -> None:
        """Disarm the faults; those that never came due are named in a warning."""
        self._stop.set()
        for fault in [*self._pending, *(fault for _, fault in self._due)]:
            logger.warning("the run is over and its simulated fault never came due: %s", fault)
        self._pending, self._due = [], []

    def _reach(self, point: str, iteration: int) -> None:
        for fault in list(self._pending):
            if fault.at != point or fault.step is None:
                continue
            # A save or an evaluation need not come at that very iteration: the first from there on.
            if iteration == fault.step or (point != "step" and iteration > fault.step):
                self._begin(fault)

    def _begin(self, fault: Fault) -> None:
        self._pending.remove(fault)
        if not fault.delay:
            self._strike(fault)
        elif fault.kind in _FROM_ANY_THREAD:
            threading.Thread(target=self._wait, args=(fault, self._stop), name="simulated-fault", daemon=True).start()
        else:
            self._due.append((time.monotonic() + fault.delay, fault))

    def _wait(self, fault: Fault, stop: threading.Event) -> None:
        if not stop.wait(fault.delay):
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        rank = self._context.rank
        logger.warning("simulated fault on rank %d (pid %d): %s", rank, os.getpid(), fault)
        if fault.kind == "missing_collective":
            missing_collective(takes_part=rank != fault.struck_rank(self._context.world_size))
        else:
            EFFECTS[fault.kind](fault.seconds, fault.code)


def install_faults(text: str | None = None, *, on: EventBus | None = None) -> FaultInjector | None:
    """Subscribe the faults that an option or the environment asks for.

    Args:
        text: An option's text; the environment variable ``FT_SIMULATED_FAULTS`` when None.
        on: The bus; the process's default one when None.

    Returns:
        The plugin, or None where no fault is asked for.

    Raises:
        ConfigError: The text cannot be used.
    """
    faults = parse_faults(os.environ.get(FAULTS_VARIABLE, "") if text is None else text)
    if not faults:
        return None
    injector = FaultInjector(*faults)
    (bus() if on is None else on).register(injector)
    return injector
