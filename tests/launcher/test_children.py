"""What a hung rank has started: found without asking it, and told from what only waits for something to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher import children
from launcher.children import MOST_STACKS_OF_CHILDREN, Child, children_of, most_telling
from launcher.stacks import Frame, Thread

LOOP = Frame("_worker_loop", "torch/utils/data/_utils/worker.py", 260, "torch")
AFTER_A_FORK = (
    Frame("run", "multiprocessing/process.py", 108, "python"),
    Frame("_bootstrap", "multiprocessing/process.py", 314, "python"),
    Frame("main", "train.py", 20),  # what the parent was doing
)


def child(*frames: Frame, pid: int = 7, state: str = "S", wait: str = "poll") -> Child:
    stack = (Thread("MainThread", False, False, frames),) if frames else ()
    return Child(pid, "pt_data_worker", state, wait, stack)


def test_one_that_waits_for_an_index_is_no_suspect() -> None:
    waits = (
        Frame("select", "selectors.py", 415, "python"),
        Frame("wait", "multiprocessing/connection.py", 930, "python"),
        Frame("get", "multiprocessing/queues.py", 113, "python"),
    )
    assert child(*waits, LOOP, *AFTER_A_FORK).place is None
    assert child(*waits, *AFTER_A_FORK).place is None
    qualified = Frame("BaseProcess._bootstrap", "multiprocessing/process.py", 314, "python")  # as py-spy may say
    assert child(*waits, qualified, AFTER_A_FORK[-1]).place is None
    assert not child(*waits, LOOP, *AFTER_A_FORK).is_suspect
    assert not child().is_suspect


def test_multiprocessings_own_helper_is_no_suspect() -> None:
    """The resource tracker reads from a pipe for as long as the rank lives."""
    tracker = (Frame("main", "multiprocessing/resource_tracker.py", 239, "python"), Frame("<module>", "<string>", 1))
    assert child(*tracker, wait="anon_pipe_read").place is None
    spawned = (Frame("spawn_main", "multiprocessing/spawn.py", 122, "python"), Frame("<module>", "<string>", 1))
    at = Frame("stuck", "train.py", 12)
    assert child(at, AFTER_A_FORK[0], *spawned).place == at


@pytest.mark.parametrize("at", [Frame("load", "data.py", 7), Frame("read", "PIL/Image.py", 7, "PIL")])
def test_one_that_works_is_a_suspect_and_so_is_one_that_is_stuck_or_stopped(at: Frame) -> None:
    fetch = Frame("fetch", "torch/utils/data/_utils/fetch.py", 54, "torch")
    assert child(at, fetch, LOOP, *AFTER_A_FORK).place == at
    assert [child(state=state).is_suspect for state in "DTtSR"] == [True, True, True, False, False]
    assert str(child(at, LOOP)) == f"pid 7 (pt_data_worker): state S in poll, at {at}"


def test_without_a_stack_the_only_one_that_waits_otherwise_is_a_suspect() -> None:
    alike, odd = [child(pid=pid) for pid in (1, 2)], child(pid=3, wait="hrtimer")

    def suspects(*family: Child) -> list[int]:
        return [each.pid for each in children._compared(family) if each.is_suspect]

    assert suspects(*alike, odd) == [3]
    assert suspects(alike[0], odd) == []  # which of the two?
    assert suspects(*alike, odd, child(pid=4, wait="futex")) == []
    assert suspects(*alike, odd._replace(name="sleep")) == []
    (apart,) = (each for each in children._compared([*alike, odd]) if each.is_suspect)
    assert str(apart).endswith("state S in hrtimer, unlike its siblings")
    # A stack knows better.
    assert not apart._replace(stack=child(LOOP).stack).is_suspect


def test_the_few_stacks_are_taken_of_those_that_stand_out() -> None:
    """Sixteen workers, one of which does not wait as the others do, and one that the kernel does not let go."""
    many = [child(pid=pid) for pid in range(100, 114)]
    odd, stuck, gone = child(pid=50, wait="hrtimer"), child(pid=60, state="D", wait="nfs"), child(pid=70, state="Z")
    chosen = most_telling({0: [*many[:7], gone, odd], 1: [*many[7:], stuck]})
    assert [each.pid for each in chosen] == [60, 50, 100, 101]
    assert len(chosen) == MOST_STACKS_OF_CHILDREN


def test_children_of_children_and_of_threads_are_found(spawn: Callable[..., Any]) -> None:
    grandchild = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print('ready', flush=True); p.wait()"
    parent = spawn(
        "import subprocess, sys, threading\n"
        f"def start():\n p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.PIPE)\n"
        " p.stdout.readline(); print('ready', flush=True); p.wait()\n"
        "threading.Thread(target=start).start()"
    )
    found = children_of(parent.pid, time.monotonic() + 60)
    assert len(found) == 2
    assert [each.name for each in found][1] == "sleep"
    for each in found:
        os.kill(each.pid, 9)


def test_what_cannot_be_looked_at_has_none_and_time_is_bounded(spawn: Callable[..., Any]) -> None:
    assert children_of(4_194_305, time.monotonic() + 60) == ()  # no pid is as large
    parent = spawn("import subprocess; p = subprocess.Popen(['sleep', '600']); print('ready', flush=True); p.wait()")
    (only,) = children_of(parent.pid, time.monotonic() + 60)
    assert children_of(parent.pid, time.monotonic() - 1) == ()
    os.kill(only.pid, 9)
