"""The scenarios: which noise, which fault and how many ranks make a row of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from benchmarks.fleet.faults import Drift, Fault, Healthy, Intermittent, Steady, Victims
from benchmarks.fleet.jobs import Row, Spec
from benchmarks.fleet.lasting import Ar1, Experts, HealthyDrift, Natural, Nodes, Pink
from benchmarks.fleet.noise import (
    Bursts,
    Checkpoints,
    Lengths,
    Lognormal,
    Noise,
    Pareto,
    StudentT,
    White,
)

__all__ = ["FAULTS", "NOISES", "clean", "faulty", "remembers", "surroundings"]

_CLEAN_WINDOWS = 120
_SIZES = (8, 64, 512)
_FEW_RANKS = (4, 16)
_LARGE = 4096
_FEWER_STEPS = 20
"""In a window of a job of ``_LARGE`` ranks."""

_QUIET = White(step=0.02)
_USUAL = White(step=0.05)

NOISES: Mapping[str, tuple[Noise, ...]] = {
    "white 1 % a step": (White(step=0.01),),
    "white 2 % a step": (_QUIET,),
    "white 5 % a step": (_USUAL,),
    "white 20 % a step": (White(step=0.2),),
    "white 1 % a window": (_QUIET, White(window=0.01)),
    "white 2 % a window": (_QUIET, White(window=0.02)),
    "white 5 % a window": (_QUIET, White(window=0.05)),
    "white 20 % a window": (_QUIET, White(window=0.2)),
    "lognormal 0.3": (Lognormal(0.3),),
    "Student t, 3 degrees": (StudentT(3.0, 0.05),),
    "Student t, 1.5 degrees": (StudentT(1.5, 0.05),),
    "Pareto 1.5 in 2 % of steps": (_QUIET, Pareto()),
    "AR(1) 10 %, 10 steps": (_QUIET, Ar1(0.1, 10.0, "steps")),
    "AR(1) 10 %, 200 steps": (_QUIET, Ar1(0.1, 200.0, "steps")),
    "AR(1) 2 %, 3 windows": (_QUIET, Ar1(0.02, 3.0)),
    "AR(1) 2 %, 10 windows": (_QUIET, Ar1(0.02, 10.0)),
    "AR(1) 4 %, 3 windows": (_QUIET, Ar1(0.04, 3.0)),
    "1/f 2 %": (_QUIET, Pink(0.02)),
    "1/f 4 %": (_QUIET, Pink(0.04)),
    "garbage collection": (_QUIET, Bursts()),
    "evaluation, equal": (_QUIET, Checkpoints()),
    "checkpoints, unequal": (_QUIET, Checkpoints(every=3, unequal=0.5)),
    "long checkpoints, unequal": (_QUIET, Checkpoints(every=3, steps=35, longer=0.5, unequal=0.5)),
    "lengths, shared": (_QUIET, Lengths(0.3, 0.0)),
    "lengths, shared and own": (_QUIET, Lengths(0.3, 0.3)),
    "lengths of one's own": (_QUIET, Lengths(0.0, 0.5)),
    "experts 10 % of half a step": (_QUIET, Experts(0.1)),
    "experts 20 % of half a step": (_QUIET, Experts(0.2)),
    "nodes 1 %": (_USUAL, Nodes(0.01)),
    "nodes 2 %": (_USUAL, Nodes(0.02)),
    "nodes 3 %": (_USUAL, Nodes(0.03)),
    "ranks 2 % by nature": (_USUAL, Natural(0.02)),
    "healthy drift of 2 %": (_USUAL, HealthyDrift()),
    "a bit of everything": (
        _USUAL,
        Natural(0.01),
        Nodes(0.01),
        Ar1(0.01, 5.0),
        HealthyDrift(0.01),
        Bursts(0.005),
        Checkpoints(every=10, unequal=0.2),
        Lengths(0.1, 0.05),
    ),
}
"""Kinds of noise by name."""

FAULTS: Mapping[str, Fault] = {
    **{f"{by} % later": Steady(by=by / 100) for by in (5, 7, 10, 20, 50)},
    **{f"{by} % from the start": Steady(by=by / 100, onset=0) for by in (5, 7, 10, 20, 50)},
    "3 ranks, 10 % later": Steady(by=0.1, victims=Victims(count=3)),
    "20 % of ranks, 10 % later": Steady(by=0.1, victims=Victims(share=0.2)),
    "40 % of ranks, 10 % later": Steady(by=0.1, victims=Victims(share=0.4)),
    "40 % of ranks, 20 % from the start": Steady(by=0.2, onset=0, victims=Victims(share=0.4)),
    "a node, 10 % later": Steady(by=0.1, victims=Victims(node=True)),
    "a node, 7 % from the start": Steady(by=0.07, onset=0, victims=Victims(node=True)),
    "30 % of steps, 50 % longer": Intermittent(by=0.5, share=0.3),
    "10 % of steps, 3 times as long": Intermittent(by=2.0, share=0.1),
    "drift to 15 % in 60": Drift(),
    "20 % for 10 windows": Steady(by=0.2, lasts=10),
}
"""Kinds of faults by name."""

_OF_EACH_NOISE = ("10 % later", "10 % from the start", "30 % of steps, 50 % longer")
_OF_LARGE = (
    "5 % later",
    "10 % later",
    "10 % from the start",
    "40 % of ranks, 10 % later",
    "30 % of steps, 50 % longer",
)
_ROWS = (Row("forward", 0.1), Row("backward", 0.2), Row("data", 0.02))
_STAGES = {2: (1.0, 1.4), 4: (1.0, 1.15, 1.4, 2.0)}


def _spec(group: str, words: str, ranks: int, fault: str = "", noise: str = "white 5 % a step", **more: Any) -> Spec:
    spec = Spec(
        name=f"{group}: {words}, {ranks} ranks",
        ranks=ranks,
        steps=_FEWER_STEPS if ranks >= _LARGE else 60,
        noise=NOISES[noise],
        windows=80 if "drift to" in fault else 40,
    )
    if fault:
        spec = attrs.evolve(spec, fault=FAULTS[fault])
    return attrs.evolve(spec, **more)


def _variants(fault: str, ranks: int) -> Iterator[Spec]:
    """Yield what is neither a plain fault nor a noise, with one fault; without, the same jobs while healthy."""
    words = f", {fault}" if fault else ""
    for view, seen in (("arrival", "seen at a barrier"), ("both", "sections and a barrier")):
        for noise in ("white 5 % a step", "a bit of everything"):
            yield _spec("view", f"{seen}, {noise}{words}", ranks, fault, noise, view=view, rows=_ROWS)
    yield _spec("rows", f"three rows{words and words + ' in one'}", ranks, fault, rows=_ROWS, fault_rows=("backward",))
    for count, stages in _STAGES.items():
        for declared in (True, False):
            told = "declared" if declared else "undeclared"
            yield _spec("stages", f"{count} stages, {told}{words}", ranks, fault, stages=stages, declared=declared)
    for missing in (0.05, 0.3):
        yield _spec("missing", f"{missing:.0%} of windows missing{words}", ranks, fault, missing=missing)


def surroundings(spec: Spec) -> Spec:
    """Return what a job has in common with the healthy ones of its kind."""
    return attrs.evolve(spec, name="", fault=Healthy(), fault_rows=(), windows=0)


def remembers(spec: Spec) -> bool:
    """Return whether healthy ranks of such a job differ from each other for several windows at a time."""
    return any(isinstance(noise, (Ar1, Experts, HealthyDrift, Pink)) for noise in spec.noise)


def faulty(ranks: Sequence[int] = (), *, quick: bool = False) -> Iterator[Spec]:
    """Yield the jobs in which somebody is slow.

    Args:
        ranks: Sizes of the jobs; empty: those that each scenario is meant for.
        quick: A part of them, small.
    """
    for size in ranks or (_SIZES[:2] if quick else _SIZES):
        for fault in FAULTS:
            if "node" not in fault or size >= 16:
                yield _spec("faults", fault, size, fault)
    for size in ranks or (64,):
        for noise in NOISES:
            for fault in _OF_EACH_NOISE[: 1 if quick else None]:
                yield _spec("noise", f"{noise}, {fault}", size, fault, noise)
        yield from _variants("10 % later", size)
        yield _spec("rows", "three rows, 50 % later in data", size, "50 % later", rows=_ROWS, fault_rows=("data",))
        if not quick:
            yield from _variants("30 % of steps, 50 % longer", size)
    if not ranks and not quick:
        for fault in _OF_LARGE:
            yield _spec("large", fault, _LARGE, fault)


def clean(ranks: Sequence[int] = (), *, quick: bool = False) -> Iterator[Spec]:
    """Yield the jobs in which everybody is healthy; see :func:`faulty`."""
    windows = _CLEAN_WINDOWS // 3 if quick else _CLEAN_WINDOWS
    for size in ranks or (64,):
        for noise in NOISES:
            yield _spec("clean", noise, size, "", noise, windows=windows)
        for spec in _variants("", size):
            yield attrs.evolve(spec, name=f"clean {spec.name}", windows=windows)
    for size in ranks or _FEW_RANKS:
        # Few ranks show little of how much they differ by chance, and few steps differ much.
        for steps in (8, 20):
            yield _spec(
                "clean",
                f"lengths of one's own, {steps} steps",
                size,
                "",
                "lengths of one's own",
                steps=steps,
                windows=windows,
            )
    if not ranks and not quick:
        for size in (8, 512):
            for noise in ("white 5 % a step", "ranks 2 % by nature", "a bit of everything"):
                yield _spec("clean", noise, size, "", noise, windows=windows)
