"""The jobs: what is run, on how many ranks, and what is special about the slow one. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks.straggler_jobs.words import Run


class Job(NamedTuple):
    """One job of the list."""

    name: str
    world_size: int
    loop: str
    """Module and function of the loop."""
    options: Mapping[str, Any] = {}
    """Arguments of the loop."""
    work: Mapping[str, Any] = {}
    """What differs from the usual work of a rank."""
    steps: int = 200
    interval: float = 0.4
    peers: tuple[tuple[int, ...], ...] = ()
    """Ranks that do the same work; empty: all do."""
    is_equal: bool = False
    """Nobody is slow, and processes from outside compete with the ranks."""
    is_named: bool = True
    """The slow rank is to be named at the end; False: it is only late once, so nobody is."""

    def run(self, number: int, *, burn: bool = False, seconds: float = 60.0) -> Run:
        """Run it once; another rank is slow each time."""
        from benchmarks.straggler_jobs import harness
        from benchmarks.straggler_jobs.rank import Work

        module, _, function = self.loop.partition(":")
        loop = partial(getattr(import_module(f"benchmarks.straggler_jobs.{module}"), function), **self.options)
        parts = {"data": 0.001, "forward": 0.004, "backward": 0.004, "optimizer": 0.001}
        work = Work(**{"parts": parts, "burn": burn or self.is_equal, **self.work})
        done = harness.run(
            loop,
            world_size=self.world_size,
            slow_rank=None if self.is_equal else number % self.world_size,
            neighbours=3 if self.is_equal else 0,
            seconds=seconds if self.is_equal else 0.0,
            work=work,
            steps=self.steps,
            interval=self.interval,
        )
        return done if self.is_named else done._replace(slow_rank=None)


def jobs() -> Iterator[Job]:
    """Yield every job."""
    plain: Callable[..., Job] = partial(Job, loop="loops:plain")
    for ranks in (2, 4):
        of = f"{ranks} ranks"
        yield plain(f"one line, {of}", ranks, options={"marks": ("step",)})
        yield plain(f"nothing marked, {of}", ranks)
        parts = {"marks": ("forward", "optimizer")}
        yield plain(f"parts, slow in forward, {of}", ranks, options=parts)
        yield plain(f"parts, slow outside of them, {of}", ranks, options=parts, work={"slow_part": "backward"})
        yield plain(f"work and collective, {of}", ranks, options={"marks": ("compute", "sync")})
    for ranks in (2, 4):
        for slow_part in ("forward", "backward"):
            for text, marks in (("forward and backward marked", ("forward", "backward")), ("nothing marked", ())):
                yield Job(
                    f"DDP, {text}, slow in {slow_part}, {ranks} ranks",
                    ranks,
                    "frameworks:wrapped",
                    {"marks": marks},
                    {"slow_part": slow_part},
                )
    for how, settings in (
        ("new_group and WORLD", {"world": True}),
        ("new_group, WORLD unused", {}),
        ("device mesh", {"mesh": True}),
    ):
        for text, marks in (("forward and backward marked", ("forward", "backward")), ("nothing marked", ())):
            yield Job(f"sub-groups, {how}, {text}", 4, "loops:sub_groups", {"marks": marks, **settings})
    for text, marks in (("one line", ("step",)), ("own work marked", ("forward", "backward")), ("nothing marked", ())):
        work = {"parts": {"data": 0.0005, "forward": 0.002, "backward": 0.002, "optimizer": 0.0005}}
        work |= {
            "weights": {2: 1.5, 3: 1.5},
            "factor": 1.9,
        }  # forward and backward are done twice a step: in all twice 9 ms
        yield Job(f"pipeline, {text}", 4, "loops:pipeline", {"marks": marks}, work, peers=((0, 1), (2, 3)), steps=180)
    for ranks in (2, 4):
        slow_data = {"slow_part": "data", "every": 3}
        of = f"{ranks} ranks"
        yield plain(f"data loading, every third batch, {of}", ranks, options={"marks": ("step",)}, work=slow_data)
    for text, ranks, marks in (
        ("work and collective", 2, ("compute", "sync")),
        ("work and collective", 4, ("compute", "sync")),
        ("one line", 4, ("step",)),
    ):
        for name, factor, late_at in (("then slow", 1.5, 70), ("before a report, then slow", 1.5, 15)):
            yield plain(
                f"late once, {name}, {text}, {ranks} ranks",
                ranks,
                options={"marks": marks},
                work={"factor": factor, "late_at": late_at, "slow_from": late_at},
            )
        yield plain(
            f"late once, never slow, {text}, {ranks} ranks",
            ranks,
            options={"marks": marks},
            work={"factor": 1.0, "late_at": 70},
            is_named=False,
        )
    for ranks in (2, 4):
        for text, slow_part in (("training_step", "forward"), ("backward", "backward")):
            work = {"slow_part": slow_part}
            yield Job(f"Lightning, slow in {text}, {ranks} ranks", ranks, "frameworks:lightning", work=work)
    for ranks in (2, 4):
        yield Job(f"raw adapter, {ranks} ranks", ranks, "frameworks:raw_adapter")
    for ranks in (2, 4):
        for text, marks in (("one line", ("step",)), ("nothing marked", ())):
            settings = {"marks": marks, "how": "fsdp2"}
            yield Job(f"FSDP2, {text}, {ranks} ranks", ranks, "frameworks:wrapped", settings, steps=400 // ranks - 25)
    loads = {"parts": {"data": 0.012, "forward": 0.003, "backward": 0.003}, "slow_part": "data"}
    for text, marks in (("one line", ("step",)), ("data marked", ("data",)), ("nothing marked", ())):
        for ranks in (2, 4):
            yield Job(f"slow loader worker, {text}, {ranks} ranks", ranks, "loops:loaded", {"marks": marks}, loads)
            settings = {"marks": marks}
            yield Job(
                f"equal, loader workers, {text}, {ranks} ranks", ranks, "loops:loaded", settings, loads, is_equal=True
            )
    for ranks in (2, 4):
        for text, marks in (("work and collective", ("compute", "sync")), ("nothing marked", ())):
            yield plain(f"equal, {text}, {ranks} ranks", ranks, options={"marks": marks}, is_equal=True)
