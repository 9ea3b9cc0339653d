"""Simulated faults, for tests, demos and chaos runs: which fault, on which rank, when.

A fault is written ``kind:rank=R,step=N``, several are separated by ``;``, and they are given as an option's
text or in the environment variable ``FT_SIMULATED_FAULTS``::

    sigkill:rank=1,step=20
    gil:rank=0,step=3,seconds=2.5;missing_collective:rank=1,step=40,generation=1
    random:delay=30,seed=7

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
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs

from resilience_core._fault_effects import EFFECTS, SimulatedFault, missing_collective
from resilience_core.config import converters as values
from resilience_core.environment import FAULTS_VARIABLE
from resilience_core.errors import ConfigError
from resilience_core.event_bus import EventBus, bus
from resilience_core.hookspecs import RunContext, hookimpl
from resilience_core.suggestions import nearest

__all__ = [
    "KINDS",
    "Fault",
    "FaultInjector",
    "SimulatedFault",
    "fault_from_params",
    "install_faults",
    "parse_faults",
]


KINDS = (*EFFECTS, "missing_collective")
_ALIASES = {"rank_hung": "sigstop", "rank_killed": "sigkill", "hang": "deadlock"}
_RANDOM = ("exception", "exit", "sigkill", "sigstop", "segfault", "deadlock", "gil", "busy_loop")
_LASTING = frozenset({"deadlock", "gil", "busy_loop", "slow_step"})
# These strike the whole process whichever thread they come from; the others must come from the training's own.
_FROM_ANY_THREAD = frozenset({"exit", "sigkill", "sigstop", "segfault", "gil"})
_POINTS = ("step", "eval", "checkpoint", "setup")

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Fault:
    """One fault, checked.

    Args:
        kind: One of :data:`KINDS`.
        rank: The rank that it strikes; None is chosen by the seed.
        step: The iteration that it waits for; None does not wait for one.
        at: The event that it strikes at: ``step``, ``eval``, ``checkpoint``, ``setup``.
        delay: Seconds to wait after that.
        generation: The generation (restart count) that it belongs to; None is every one.
        seconds: How long it lasts; None is for ever.
        code: Exit code of ``exit``.
        seed: Decides whatever is left to chance.
    """

    kind: str
    rank: int | None = None
    step: int | None = None
    at: str = "step"
    delay: float = 0.0
    generation: int | None = 0
    seconds: float | None = None
    code: int = 1
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"simulated fault '{self.kind}' is not known{nearest(self.kind, KINDS)}")
        if self.seconds is not None and self.kind not in _LASTING:
            raise ConfigError(f"simulated fault {self.kind} lasts no 'seconds'; leave them out")
        if self.kind == "slow_step" and self.seconds is None:
            raise ConfigError("simulated fault slow_step needs its 'seconds', for example seconds=2")
        if self.at == "setup" and self.step is not None:
            raise ConfigError(f"simulated fault {self.kind} at=setup comes before any step; leave 'step' out")
        if self.at in ("eval", "checkpoint") and self.step is None:
            raise ConfigError(f"simulated fault {self.kind} at={self.at} needs 'step', the first iteration to strike")
        if self.kind == "missing_collective" and self.delay:
            raise ConfigError("simulated fault missing_collective strikes at a step, not after a delay")

    def struck_rank(self, world_size: int) -> int:
        """The rank that it strikes; the same answer on every rank.

        Raises:
            ConfigError: There is no such rank.
        """
        if self.rank is None:
            return random.Random(f"rank {self.seed}").randrange(world_size)
        if self.rank >= world_size:
            raise ConfigError(f"simulated fault {self.kind} names rank {self.rank}; there are {world_size}")
        return self.rank


_KEYS: dict[str, Any] = {
    "rank": values.count,
    "step": values.count,
    "at": lambda text: values.one_of(text, _POINTS),
    "delay": values.duration,
    "generation": lambda text: None if text.strip() == "any" else values.count(text),
    "seconds": values.timeout,
    "code": values.exit_code,
    "seed": values.count,
}


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read faults as a person writes them; the module's docstring has the grammar.

    Raises:
        ConfigError: A kind or a key is not known, or a value cannot be used; names it and the nearest.
    """
    return tuple(_parse(item.strip()) for item in text.split(";") if item.strip())


def _parse(item: str) -> Fault:
    kind, _, rest = item.partition(":")
    given: dict[str, Any] = {}
    for pair in (p for p in rest.split(",") if p.strip()):
        key, _, text = (part.strip() for part in pair.partition("="))
        if key not in _KEYS:
            raise ConfigError(f"simulated fault '{item}' has no key '{key}'{nearest(key, _KEYS)}")
        if key in given:
            raise ConfigError(f"simulated fault '{item}' has the key '{key}' twice")
        try:
            given[key] = _KEYS[key](text)
        except ValueError as error:
            raise ConfigError(f"simulated fault '{item}': {key} is {text!r}: {error}") from None
    kind = _ALIASES.get(kind.strip(), kind.strip())
    if kind == "random":
        kind = random.Random(f"kind {given.get('seed', 0)}").choice(_RANDOM)
    if kind not in KINDS:
        known = (*KINDS, *_ALIASES, "random")
        raise ConfigError(f"simulated fault '{kind}' in '{item}' is not known{nearest(kind, known)}")
    if not given.keys() & {"step", "delay"} and given.get("at") != "setup":
        raise ConfigError(f"simulated fault '{item}' does not say when: give step=N, delay=SECONDS or at=setup")
    return Fault(kind=kind, **given)


def fault_from_params(params: Any, *, seed: int = 0) -> Fault:
    """Read the ``simulated_fault_params`` of a callback.

    Args:
        params: A mapping or an object with ``fault_type`` (``random``, ``rank_hung``, ``rank_killed`` or any
            kind), ``base_delay`` (seconds), ``rand_delay`` (up to so many seconds more, default 0),
            ``rank_to_fail`` (None: chosen by the seed) and ``seed`` (default: the argument of that name).
        seed: Decides whatever is left to chance: the same seed makes the same fault in every run, on every rank.

    Raises:
        ConfigError: A key is missing or not known, or a value cannot be used.
    """
    known = ("fault_type", "base_delay", "rand_delay", "rank_to_fail", "seed")
    if isinstance(params, Mapping):
        given = dict(params)
        for key in given:
            if key not in known:
                raise ConfigError(f"simulated_fault_params has no key '{key}'{nearest(str(key), known)}")
    else:
        given = {key: getattr(params, key) for key in known if hasattr(params, key)}
    for key in known[:2]:
        if key not in given:
            raise ConfigError(f"simulated_fault_params lacks '{key}'")
    kind = str(getattr(given["fault_type"], "name", given["fault_type"])).lower()
    if given.get("seed") is not None:
        try:
            seed = values.count(given["seed"])
        except ValueError as error:
            raise ConfigError(f"simulated_fault_params: seed is {given['seed']!r}: {error}") from None
    chance = random.Random(f"params {seed}")
    if kind == "random":
        kind = chance.choice(("rank_hung", "rank_killed"))
    kind = _ALIASES.get(kind, kind)
    try:
        delay = values.duration(given["base_delay"]) + chance.random() * values.duration(given.get("rand_delay", 0))
        rank = given.get("rank_to_fail")
        return Fault(kind=kind, rank=None if rank is None else values.count(rank), delay=delay, seed=seed)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"simulated_fault_params {given!r}: {error}") from None


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
        """Strike what is due by the clock, and what is to strike at this step."""
        now = time.monotonic()
        for due, fault in list(self._due):
            if now >= due:
                self._due.remove((due, fault))
                self._strike(fault)
        self._reach("step", iteration)

    @hookimpl(trylast=True)
    def eval_step_start(self, iteration: int) -> None:
        """Strike what is to strike at this step of an evaluation."""
        self._reach("eval", iteration)

    @hookimpl(trylast=True)
    def checkpoint_start(self, iteration: int) -> None:
        """Strike what is to strike while this checkpoint is saved."""
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
