"""Which simulated faults there are, and how an option or the parameters of a callback name them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from resilience_core._fault_effects import EFFECTS
from resilience_core.config import converters as values
from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest

__all__ = ["KINDS", "Fault", "fault_from_params", "parse_faults"]

KINDS = (*EFFECTS, "missing_collective")

_ALIASES = {"rank_hung": "sigstop", "rank_killed": "sigkill", "hang": "deadlock"}

_RANDOM = ("exception", "exit", "sigkill", "sigstop", "segfault", "deadlock", "gil", "busy_loop")

_LASTING = frozenset({"deadlock", "gil", "busy_loop", "slow_step"})

_POINTS = ("step", "eval", "checkpoint", "setup")


def _accepted_by(check: Callable[[Any], Any]) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Make a validator of attrs that refuses what a function refuses, or would change."""

    def validate(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        try:
            checked = check(value)
        except ValueError as error:
            raise ConfigError(f"Fault(...): {field.name} is {value!r}: {error}") from None
        if checked != value:
            raise ConfigError(f"Fault(...): {field.name} is {value!r}; write {checked!r}")

    return validate


def _point(value: object) -> str:
    return values.one_of(value, _POINTS)


_count_or_none: Callable[[Any, Any, Any], None] = attrs.validators.optional(_accepted_by(values.count))


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

    Raises:
        ConfigError: A value cannot be used, or the values do not fit together.
    """

    kind: str
    rank: int | None = attrs.field(default=None, validator=_count_or_none)
    step: int | None = attrs.field(default=None, validator=_count_or_none)
    at: str = attrs.field(default="step", validator=_accepted_by(_point))
    delay: float = attrs.field(default=0.0, validator=_accepted_by(values.duration))
    generation: int | None = attrs.field(default=0, validator=_count_or_none)
    seconds: float | None = attrs.field(default=None, validator=_accepted_by(values.timeout))
    code: int = attrs.field(default=1, validator=_accepted_by(values.exit_code))
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"simulated fault '{self.kind}' is not known{nearest(str(self.kind), KINDS)}")
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
        """Return the rank that it strikes; the same answer on every rank.

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
    "at": _point,
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
