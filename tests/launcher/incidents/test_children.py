"""What a hung rank has started: found without asking it, and told from what only waits for something to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.incidents import children
from launcher.incidents.children import (
    MOST_STACKS_OF_CHILDREN,
    Child,
    children_of,
    families_of,
    most_telling,
    with_awaited,
)
from launcher.incidents.frames import Frame, Thread

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
    reads = child(at, LOOP, wait="do_poll")._replace(system_call="poll")
    assert str(reads) == f"pid 7 (pt_data_worker): state S in poll, wait channel do_poll, at {at}"


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


IN_SUBPROCESS = (
    Frame("_try_wait", "subprocess.py", 1990, "python"),
    Frame("run", "subprocess.py", 550, "python"),
    Frame("convert", "train.py", 12),
)
IN_JOIN = (
    Frame("poll", "multiprocessing/popen_fork.py", 27, "python"),
    Frame("join", "multiprocessing/process.py", 149, "python"),
    Frame("save", "train.py", 12),
)
IN_LOADER = (
    Frame("select", "selectors.py", 415, "python"),
    Frame("get", "multiprocessing/queues.py", 113, "python"),
    Frame("_try_get_data", "torch/utils/data/dataloader.py", 1251, "torch"),
    Frame("main", "train.py", 12),
)


def awaited(frames: tuple[Frame, ...], *family: Child, is_direct: bool = True) -> list[int]:
    found = with_awaited(
        [each._replace(is_direct=is_direct) for each in family], [Thread("MainThread", True, False, frames)]
    )
    assert all(each.is_suspect for each in found if each.is_awaited)
    return [each.pid for each in found if each.is_awaited]


def test_a_rank_in_subprocess_or_join_waits_for_its_own_youngest_child() -> None:
    program = Child(8, "sleep", "S", "hrtimer_nanosleep")
    worker, tracker = child(pid=9), Child(5, "python", "S", "anon_pipe_read")
    for frames in (IN_SUBPROCESS, IN_JOIN):
        assert awaited(frames, program, worker, tracker) == [8]
        assert awaited(frames, program, is_direct=False) == []
        assert awaited(frames, program._replace(state="Z"), tracker) == [5]
        assert awaited(frames[-1:], program) == []  # it stands in code of its own
        assert awaited((*frames[-1:], *frames), program) == []
    works = Child(6, "python", "S", "futex", child(Frame("write", "save.py", 3)).stack)
    assert awaited(IN_JOIN, works, program) == []  # that one is told as it is
    assert awaited(IN_SUBPROCESS, works, program) == [8]
    assert with_awaited([program], []) == (program,)
    assert str(program._replace(is_awaited=True)).endswith("in hrtimer_nanosleep, which the rank seems to wait for")


def test_a_rank_in_its_data_loader_waits_for_the_workers_that_do_not_wait_themselves() -> None:
    """Of two workers, one of which waits for an index, neither stands out."""
    idle, asleep, locked = (
        child(pid=1, wait="do_poll"),
        child(pid=2, wait="hrtimer_nanosleep"),
        child(pid=3, wait="futex"),
    )
    busy, hidden = child(pid=4, state="R")._replace(kernel_wait=None), child(pid=5)._replace(kernel_wait=None)
    assert awaited(IN_LOADER, idle, asleep, locked, busy, hidden, Child(6, "sleep", "S", "hrtimer_nanosleep")) == [
        2,
        3,
        4,
    ]
    knows = asleep._replace(stack=child(LOOP).stack), idle._replace(stack=child(Frame("load", "data.py", 7)).stack)
    assert awaited(IN_LOADER, *knows) == [1]


def test_each_rank_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine hundred threads of one must not keep the others' children from being found."""
    now, ends = [100.0], []

    def slow(pid: int, end: float) -> tuple[Child, ...]:
        ends.append(end)
        now[0] = end
        return (child(pid=pid),)

    monkeypatch.setattr(children, "children_of", slow)
    monkeypatch.setattr(children.time, "monotonic", lambda: now[0])
    assert families_of({0: 7, 2: 8, 1: 9, 3: 5}, 4.0) == {
        n: (child(pid=p),) for n, p in ((0, 7), (2, 8), (1, 9), (3, 5))
    }
    assert ends == pytest.approx([102, 103, 103.5, 104])


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
    assert [(each.name, each.is_direct) for each in found][1] == ("sleep", False)
    assert found[0].is_direct
    for each in found:
        os.kill(each.pid, 9)


@pytest.mark.parametrize("name", ["ft_monitor", "pt_data_worker"])
def test_a_monitor_that_a_rank_has_started_is_nothing_that_it_waits_for(spawn: Callable[..., Any], name: str) -> None:
    """As ``start_monitor`` does; it looks on while the rank hangs, and would stand in the report as what hangs."""
    child = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}); print('ready', flush=True); input()"
    parent = spawn(
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print('ready', flush=True); p.wait()"
    )
    found = children_of(parent.pid, time.monotonic() + 60)
    assert [each.name for each in found] == ([] if name == "ft_monitor" else [name])


def test_what_cannot_be_looked_at_has_none_and_time_is_bounded(spawn: Callable[..., Any]) -> None:
    assert children_of(4_194_305, time.monotonic() + 60) == ()  # no pid is as large
    parent = spawn("import subprocess; p = subprocess.Popen(['sleep', '600']); print('ready', flush=True); p.wait()")
    (only,) = children_of(parent.pid, time.monotonic() + 60)
    assert children_of(parent.pid, time.monotonic() - 1) == ()
    os.kill(only.pid, 9)
