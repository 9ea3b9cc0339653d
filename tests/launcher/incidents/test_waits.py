"""What a stack tells of waiting: a collective is a frame, a wait in C a line, and some waits show nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.incidents.frames import Frame, Thread
from launcher.incidents.waits import (
    is_entered_by_all,
    is_for_one,
    is_for_the_store,
    lines_that_tell,
    may_wait_unseen,
    tells_no_wait,
    waits_for_peers,
)

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
IN_A_LOCK = (Frame("wait", "threading.py", 320, "python"), Frame("join", "threading.py", 1119, "python"), *IN_DATA)
IN_A_PIPE = (Frame("_recv", "multiprocessing/connection.py", 383, "python"), *IN_DATA)
IN_A_SAVER = (Frame("save", "saver.py", 5), Frame("run", "threading.py", 982, "python"))
OF_OURS = (Frame("wait", "torch/distributed/x.py", 3, "torch"), Frame("run", "straggler/x.py", 5, "straggler"))


def thread(frames: tuple[Frame, ...], name: str = "MainThread") -> Thread:
    return Thread(name, is_active=False, holds_gil=False, frames=frames)


@pytest.mark.parametrize("frames", [IN_COLLECTIVE, IN_BACKWARD])
def test_a_rank_in_a_collective_waits_for_its_peers(frames: tuple[Frame, ...]) -> None:
    assert waits_for_peers([thread(frames)], {}) == frames[0]


def test_a_hook_of_autograd_is_the_users_code_and_no_wait() -> None:
    in_hook = (Frame("hook", "train.py", 68), Frame("<lambda>", "train.py", 143), *IN_BACKWARD)
    for frames in (in_hook, in_hook[1:]):
        stack = [thread(frames)]
        assert waits_for_peers(stack, {frames[0]: "    time.sleep(600)"}) is None
        assert tells_no_wait(stack, {frames[0]: "    time.sleep(600)"})
        assert waits_for_peers(stack, {frames[0]: "    work.wait()"}) == frames[0]
    own = (Frame("read", "torch/storage.py", 7, "torch"), *IN_BACKWARD)  # what torch does itself there may be the wait
    assert waits_for_peers([thread(own)], {}) == IN_BACKWARD[0]


def test_a_rank_elsewhere_or_unknown_does_not() -> None:
    assert waits_for_peers([thread(IN_DATA)], {}) is None
    assert waits_for_peers([thread(())], {}) is None
    assert waits_for_peers([], {}) is None
    # The training's own call of a module that sits deep below a collective is not a wait.
    assert waits_for_peers([thread((*IN_DATA, *IN_DATA, *IN_COLLECTIVE))], {}) is None


@pytest.mark.parametrize(
    ("source", "waits"),
    [
        ("        w = dist.all_reduce(t, async_op=True); w.wait()", True),
        ("        for r in dist.batch_isend_irecv(ops): r.wait()", True),
        ("    store.wait(['go'])", True),
        ("    go = dist.distributed_c10d._get_default_store().get('go')", True),
        ("    while not work.is_completed(): pass", True),
        ("    shape = [work.wait() for work in works]; print(len(shape))", True),
        ("    x = load(path) if is_first else work.wait()", None),
        ("    prepare(batch); work.wait()", None),
        ("    time.sleep(1000)", False),
        ("    go = s.get('go')", None),
        ("    time.sleep(float(s.get('go')))", None),
        ("    page = session.get('http://rank0', timeout=5)", None),
        ("    batch = q.get(True, 5)", None),
        ('    time.sleep(float(os.environ.get("DELAY", "100")))', False),
        ("    time.sleep(float(environ.get(name)))", False),
        ("    time.sleep(settings.get('delay', 100))", False),
        ("    time.sleep(os.environ.get('DELAY') or s.get('go'))", None),
        ("    os.wait()", False),
        ("    read(batch)  # and then work.wait()", False),
        ("", False),
    ],
)
def test_a_wait_in_a_c_function_is_told_by_its_source(source: str, waits: bool | None) -> None:
    """``Work.wait`` is no frame of Python, so that the innermost one is the user's own line."""
    stack = [thread(IN_DATA)]
    assert waits_for_peers(stack, {IN_DATA[0]: source}) == (IN_DATA[0] if waits else None)
    # None: something else on the line may be what does not come back.
    assert tells_no_wait(stack, {IN_DATA[0]: source}) == (waits is False)
    assert waits_for_peers(stack, {IN_DATA[1]: "work.wait()"}) is None  # an outer line
    in_thread = Frame("wait", "threading.py", 320, "python")
    assert waits_for_peers([thread((in_thread, *IN_DATA))], {in_thread: source}) is None


def test_a_stack_tells_that_there_is_no_wait_only_where_its_source_is_known() -> None:
    assert tells_no_wait([thread(IN_DATA)], {IN_DATA[0]: ""})
    assert not tells_no_wait([thread(IN_DATA)], {})
    assert tells_no_wait([thread((Frame("wait", "threading.py", 320, "python"),))], {})


def test_what_gets_from_a_file_is_no_store() -> None:
    """An object's get() may be a store's, which waits in interruptible sleep; one from a file hangs in the kernel."""
    source = {IN_DATA[0]: "    batch = cache.get(index)"}
    assert not tells_no_wait([thread(IN_DATA)], source, sleeps=True)
    assert tells_no_wait([thread(IN_DATA)], source, sleeps=False)


# ---- what may wait although nothing shows it ------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "may_wait"),
    [
        ("    time.sleep(1000)", False),
        ("    sleep(60)  # f()", False),
        ("    time.sleep(1e6)", False),
        ("    time.sleep(10**6)", False),
        ("    time.sleep(24 * 3600)", False),
        ("    while True: pass", False),
        ("    time.sleep(0.1)", True),
        (f"    time.sleep({10**40} ** 9)", True),  # more than a float can hold
        ("    time.sleep(1e1)", True),
        ("    time.sleep(delay)", True),
        ("    while not flag: pass", True),
        ("    while not is_done(): time.sleep(1000)", True),
        ("    pass", True),
        ("    f()", True),
        ("    getattr(work, 'wait')()", True),
        ("    exec('work.wait()')", True),
        ("    os.read(pipe, 1)", True),
        ("    data = open(path).read()", True),
        ("    for batch in batches:", True),
        ("    with lock:", True),
        ("    lock.acquire()", True),  # a lock of multiprocessing, or one that a future's callback releases
        ("    work.result", True),
        ("", True),
    ],
)
def test_hardly_any_line_proves_that_nobody_is_waited_for(source: str, may_wait: bool) -> None:
    assert may_wait_unseen([thread(IN_DATA)], {IN_DATA[0]: source}) == may_wait


def test_without_a_stack_or_a_source_anything_may_wait() -> None:
    assert may_wait_unseen([], {})
    assert may_wait_unseen([thread(())], {})
    assert may_wait_unseen([thread(IN_DATA)], {})


@pytest.mark.parametrize(
    ("other", "source", "waits", "may_wait"),
    [
        (IN_COLLECTIVE, "", True, True),
        ([f._replace(package="torch") for f in IN_COLLECTIVE[:2]], "", True, False),  # Thread(target=dist.all_reduce)
        (IN_A_SAVER, "    work.wait()", True, True),
        (IN_A_SAVER, "    f()", False, True),
        (IN_A_SAVER, "    time.sleep(1000)", False, False),
        (IN_A_SAVER, "    other.acquire()", False, True),
        (IN_A_SAVER[1:], "", False, False),  # idle, in a pool
        ((IN_A_LOCK[0], *IN_A_SAVER), "", False, False),
        ((IN_A_PIPE[0], *IN_A_SAVER), "", False, True),
        (OF_OURS, "", False, False),
        ((), "", False, False),
    ],
)
def test_who_waits_for_a_thread_may_wait_for_what_that_waits_for(
    other: Sequence[Frame], source: str, waits: bool, may_wait: bool
) -> None:
    sources = dict.fromkeys(other[:1], source) | {IN_DATA[0]: "    lock.acquire(timeout=9)"}
    in_lock = [thread(tuple(other), "saver"), thread(IN_DATA)]
    assert tells_no_wait(in_lock, sources) is not waits
    assert may_wait_unseen(in_lock, sources)
    # Who sleeps for long waits for no thread, but that one may be where the training runs.
    asleep = sources | {IN_DATA[0]: "    time.sleep(1000)"}
    assert may_wait_unseen([thread(tuple(other), "saver"), thread(IN_DATA)], asleep) == may_wait
    # An event may also be set by what a future calls when it is done, in a thread that is none of Python's.
    in_join = [thread(tuple(other), "saver"), thread(IN_A_LOCK)]
    assert tells_no_wait(in_join, sources) is not waits
    assert may_wait_unseen(in_join, sources)
    # What is read from a pipe, no thread has to let go; but a child or a peer may have to fill it.
    in_pipe = [thread(tuple(other), "saver"), thread(IN_A_PIPE)]
    assert tells_no_wait(in_pipe, sources)
    assert may_wait_unseen(in_pipe, sources)


def test_the_lines_of_main_threads_are_read_first_and_those_of_threads_of_the_training() -> None:
    saver, idle = thread(IN_A_SAVER, "saver"), thread(IN_A_SAVER[1:], "idle")
    read = lines_that_tell([[saver, thread(IN_A_LOCK), idle, thread((), "none")], [], [thread(IN_DATA)]])
    assert read == [IN_A_LOCK[0], IN_DATA[0], IN_A_SAVER[0]]


@pytest.mark.parametrize(
    ("function", "file", "is_one"),
    [
        ("all_reduce", "torch/distributed/distributed_c10d.py", True),
        ("barrier", "torch/distributed/distributed_c10d.py", True),
        ("broadcast", "torch/distributed/distributed_c10d.py", False),
        ("recv", "torch/distributed/distributed_c10d.py", False),
        ("all_reduce", "torch/distributed/checkpoint/utils.py", False),
        ("_engine_run_backward", "torch/autograd/graph.py", False),
    ],
)
def test_only_some_collectives_are_left_by_all_or_nobody(function: str, file: str, is_one: bool) -> None:
    assert is_entered_by_all(Frame(function, file, 1)) == is_one


@pytest.mark.parametrize(
    ("function", "file", "is_it"),
    [
        ("_create_c10d_store", "torch/distributed/rendezvous.py", True),
        ("_env_rendezvous_handler", "torch/distributed/rendezvous.py", True),
        ("_new_process_group_helper", "torch/distributed/distributed_c10d.py", False),
        ("_store_based_barrier", "torch/distributed/distributed_c10d.py", False),
        ("rendezvous", "my/rendezvous.py", False),
    ],
)
def test_the_store_of_a_group_is_waited_for_where_it_is_made(function: str, file: str, is_it: bool) -> None:
    assert is_for_the_store(Frame(function, file, 1)) == is_it


@pytest.mark.parametrize(
    ("function", "is_one"),
    [
        *((name, True) for name in ("send", "recv", "isend", "irecv", "batch_isend_irecv", "recv_object_list")),
        *((name, False) for name in ("all_reduce", "broadcast", "barrier", "_sender", "receive")),
    ],
)
def test_a_message_is_for_one_rank_and_a_collective_is_not(function: str, is_one: bool) -> None:
    assert is_for_one(Frame(function, "torch/distributed/distributed_c10d.py", 1), {}) is is_one
    assert not is_for_one(Frame(function, "train.py", 1), {})


@pytest.mark.parametrize(
    ("line", "is_one"),
    [("dist.irecv(x, 1).wait()", True), ("isend(x, 1).wait()", True), ("work.wait()  # of irecv()", False)],
)
def test_a_wait_for_a_message_is_told_by_its_line(line: str, is_one: bool) -> None:
    frame = Frame("step", "train.py", 3)
    assert is_for_one(frame, {frame: line}) is is_one
