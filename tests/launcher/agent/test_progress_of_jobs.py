"""No job that gets on is given up, however it counts its iterations and whatever it tells of its checkpoints.

Jobs are made up: they save every few steps, fail, and go on from what was saved. They tell it to a real client.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import assume, example, given
from hypothesis import strategies as st

from launcher.agent.progress import ProgressRule, reached_by
from resilience_core import FaultToleranceConfig, RankMonitorClient
from resilience_core.protocol.cell import Cell

EPOCH = 10


class Job(NamedTuple):
    counts_in: str
    """``run``, ``epoch`` or ``process``; or ``epochs``, whose number each of their steps has."""
    tells_loaded: str
    """``not``, as counted through the ``run``, or in its ``own`` way: the epoch, or the step of the process."""
    tells_saved: str
    saves_every: int

    def told(self, how: str, step: int, first: int) -> int | None:
        own = {"run": step, "process": step - first}.get(self.counts_in, step // EPOCH)
        return {"not": None, "run": step, "own": own}[how]

    def iteration(self, step: int, first: int) -> int:
        return {"run": step, "epoch": step % EPOCH, "epochs": step // EPOCH, "process": step - first}[self.counts_in]


class Generation(NamedTuple):
    steps: int
    fails_in_a_step: bool


HOW = st.sampled_from(("not", "run", "own"))
JOBS = st.builds(
    Job, st.sampled_from(("run", "epoch", "epochs", "process")), HOW, HOW, st.sampled_from((1, 3, 5, 10, 20))
)
GENERATIONS = st.lists(st.builds(Generation, st.integers(0, 45), st.booleans()), min_size=4, max_size=12)


@given(JOBS, GENERATIONS)
@example(Job("epoch", "own", "not", 10), [Generation(14, True)] * 8)
@example(Job("process", "own", "not", 10), [Generation(14, True)] * 8)
@example(Job("process", "not", "own", 10), [Generation(14, True)] * 8)
@example(Job("process", "not", "not", 10), [Generation(10, False)] * 8)
@example(Job("epoch", "own", "not", 10), [Generation(10, False)] * 8)
@example(Job("run", "run", "not", 10), [Generation(14, True)] * 8)
@example(Job("epochs", "not", "not", 3), [Generation(4, True)] * 8)
def test_a_job_that_saves_in_every_second_generation_is_not_given_up(job: Job, generations: list[Generation]) -> None:
    """One kind is left out, as nothing tells it from a job that fails at the same iteration again and again.

    It counts from 0 in each process, fails in a step, and says nothing of its checkpoints.
    """
    rule = ProgressRule(FaultToleranceConfig())
    first = before = without = 0  # where the generation begins, and where the one began that had saved that
    for generation in generations:
        cell, client = Cell.detached(), RankMonitorClient()
        client._state.words = cell.words
        loaded = job.told(job.tells_loaded, first, before) if first else None
        if loaded is not None:
            client.note_checkpoint_loaded(loaded)
        saved = None
        for step in range(first, first + generation.steps):
            client.note_iteration(job.iteration(step, first))
            fails = generation.fails_in_a_step and step == first + generation.steps - 1
            if not fails and (step + 1) % job.saves_every == 0:
                saved = step + 1
                told = job.told(job.tells_saved, saved, first)
                if told is not None:
                    client.note_checkpoint_saved(told)
        says_nothing = loaded is None and (saved is None or job.tells_saved == "not")
        assume(not (job.counts_in == "process" and generation.fails_in_a_step and first and says_nothing))
        without = without + 1 if saved is None else 0
        assume(without < 2)
        assert rule.generation_ended(reached_by([cell.view()]), in_a_step=generation.fails_in_a_step) is None
        if saved is not None:
            first, before = saved, first
