"""Who is to blame: stopped, behind, or outside a collective; and nobody where it cannot be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.blame import Suspect, assign_blame, waits_for_peers
from launcher.stacks import Frame, Thread

IN_COLLECTIVE = (
    Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3000),
    Frame("wrapper", "torch/distributed/c10d_logger.py", 83),
    Frame("main", "train.py", 20),
)
IN_BACKWARD = (
    Frame("_engine_run_backward", "torch/autograd/graph.py", 865),
    Frame("backward", "torch/_tensor.py", 600),
    Frame("main", "train.py", 20),
)
IN_DATA = (Frame("read", "data.py", 7), Frame("main", "train.py", 12))


def thread(frames: tuple[Frame, ...], name: str = "MainThread") -> Thread:
    return Thread(name, is_active=False, holds_gil=False, frames=frames)


def suspect(
    local_rank: int,
    frames: tuple[Frame, ...] | None = None,
    *,
    condemned: bool = True,
    stopped: bool = False,
    iteration: int = 7,
) -> Suspect:
    threads = () if frames is None else (thread((Frame("wait", "threading.py", 1),), "loader"), thread(frames))
    return Suspect(local_rank, condemned, stopped, iteration, threads)


@pytest.mark.parametrize("frames", [IN_COLLECTIVE, IN_BACKWARD])
def test_a_rank_in_a_collective_waits_for_its_peers(frames: tuple[Frame, ...]) -> None:
    assert waits_for_peers([thread(frames)]) == frames[0]


def test_a_rank_elsewhere_or_unknown_does_not() -> None:
    assert waits_for_peers([thread(IN_DATA)]) is None
    assert waits_for_peers([thread(())]) is None
    assert waits_for_peers([]) is None
    # The training's own call of a module that sits deep below a collective is not a wait.
    assert waits_for_peers([thread((*IN_DATA, *IN_DATA, *IN_COLLECTIVE))]) is None


def test_a_stopped_rank_is_the_culprit_whatever_its_stack_says() -> None:
    blame = assign_blame([suspect(0, IN_DATA), suspect(1, IN_COLLECTIVE, stopped=True)])
    assert (blame.local_ranks, "SIGSTOP" in blame.why) == ((1,), True)


def test_the_one_behind_in_iteration_is_the_culprit() -> None:
    blame = assign_blame([suspect(0, IN_COLLECTIVE, iteration=9), suspect(1, IN_COLLECTIVE, iteration=8)])
    assert blame.local_ranks == (1,)
    assert "at iteration 8 of 9" in blame.why


def test_a_rank_that_never_said_its_iteration_is_not_behind() -> None:
    blame = assign_blame([suspect(0, IN_COLLECTIVE, iteration=-1), suspect(1, IN_DATA, iteration=8)])
    assert blame.local_ranks == (1,)
    assert "outside any collective" in blame.why


def test_the_one_outside_the_collective_is_the_culprit() -> None:
    blame = assign_blame([suspect(0, IN_COLLECTIVE), suspect(1, IN_DATA), suspect(2, IN_BACKWARD)])
    assert blame.local_ranks == (1,)


def test_a_missing_stack_is_no_evidence() -> None:
    blame = assign_blame([suspect(0, IN_COLLECTIVE), suspect(1, None)])
    assert blame.local_ranks == ()
    assert "cannot be told" in blame.why


def test_where_all_wait_the_culprit_is_elsewhere() -> None:
    blame = assign_blame([suspect(0, IN_COLLECTIVE), suspect(1, IN_BACKWARD)])
    assert blame.local_ranks == ()
    assert "another node" in blame.why


def test_where_all_stand_outside_nobody_is_named() -> None:
    assert assign_blame([suspect(0, IN_DATA), suspect(1, IN_DATA)]).local_ranks == ()


def test_the_only_one_overdue_is_named_where_nothing_else_tells() -> None:
    assert assign_blame([suspect(0, None, condemned=False), suspect(1, None)]).local_ranks == (1,)


suspects = st.lists(
    st.builds(
        Suspect,
        st.just(0),
        st.booleans(),
        st.booleans(),
        st.integers(-1, 3),
        st.sampled_from([(), (thread(IN_DATA),), (thread(IN_COLLECTIVE),), (thread(IN_BACKWARD),)]),
    ),
    min_size=1,
    max_size=5,
).map(lambda found: [s._replace(local_rank=number) for number, s in enumerate(found)])


@given(suspects)
def test_there_is_always_a_reason_and_never_everybody_blamed_among_several(found: list[Suspect]) -> None:
    blame = assign_blame(found)

    assert blame.why
    assert set(blame.local_ranks) <= {s.local_rank for s in found}
    if len(blame.local_ranks) == len(found) > 1:
        assert all(s.is_stopped for s in found)
