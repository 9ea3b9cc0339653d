"""How far a rank is in its collectives: told by a thread that waits for questions and disturbs nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.incidents.group_numbers import ask
from resilience_core import RankMonitorClient
from resilience_core.monitoring import group_numbers
from resilience_core.monitoring.group_numbers import NumbersThread, answers_to, start_answering
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.group_numbers import ANSWERS, QUESTIONS, GroupNumber, GroupNumbers
from resilience_core.protocol.stack_question import END_OF_STACKS, THREADS, main_thread_stack

ROOT = Path(__file__).parents[3]
C10D, IN_C = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"
GLOO = """
import sys, time
import torch, torch.distributed as dist
from resilience_core.monitoring.group_numbers import start_answering
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
pair = dist.new_group([0, 1], group_desc="pair")
assert start_answering(f"{folder}/cell-{rank}") is not None
values = torch.ones(4)
for _ in range(3):
    dist.all_reduce(values)
dist.all_reduce(values, group=pair)
print("ready", flush=True)
if rank == 1:
    sys.stdin.read()
dist.all_reduce(values)
"""


def in_a_minute() -> float:
    return time.monotonic() + 60


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NumbersThread]:
    monkeypatch.delitem(sys.modules, C10D, raising=False)
    thread = start_answering(str(tmp_path / "cell"))
    assert thread is not None
    yield thread
    thread.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def torch_stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The parts of torch that are asked, in the format of its source (FlightRecorderDetail.hpp of torch 2.13)."""

    def put(groups: dict[Any, str], **dumps: Any) -> None:
        world = SimpleNamespace(pg_names=groups, pg_map={group: (group.backend, None) for group in groups})
        monkeypatch.setitem(sys.modules, C10D, SimpleNamespace(_world=world))  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, IN_C, SimpleNamespace(**dumps))  # type: ignore[arg-type]

    return put


class GroupStandIn:
    def __init__(self, number: int, size: int = 2, backend: str = "nccl", desc: str = "default_pg") -> None:
        self.number, self.ranks, self.backend, self.group_desc = number, size, backend, desc

    def _get_sequence_number_for_group(self) -> int:
        if self.number < 0:
            raise RuntimeError("no sequence number")
        return self.number

    def size(self) -> int:
        return self.ranks


def dump(*entries: dict[str, Any], **status: tuple[int, int]) -> Callable[[bool, bool], bytes]:
    def dumped(include_collectives: bool, only_active: bool) -> bytes:
        assert only_active
        document: dict[str, Any] = {
            "pg_status": {
                name: {
                    "last_enqueued_collective": str(called),
                    "last_started_collective": "-1",
                    "last_completed_collective": str(done),
                }
                for name, (called, done) in status.items()
            }
        }
        if include_collectives and entries:
            document["entries"] = list(entries)
        return json.dumps(document).encode()

    return dumped


def entry(number: int, name: str, *, group: str = "0", is_p2p: bool = False, retired: bool = False) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "process_group": [group, "default_pg"],
        "is_p2p": is_p2p,
        "retired": retired,
        "state": "scheduled",
    }


def told() -> GroupNumbers:
    *_, last = answers_to("q")
    answer = GroupNumbers.from_line(last, "q")
    assert answer is not None
    return answer[0]


def test_two_ranks_of_gloo_tell_their_numbers_while_one_hangs_in_a_collective(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO, str(rank), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        cells = {rank: str(tmp_path / f"cell-{rank}") for rank in range(2)}
        end = in_a_minute()
        while True:  # rank 0 may not have called it yet
            found = ask(cells).answered(in_a_minute())
            numbers = {rank: {g.name: g for g in told.groups} for rank, told in found.items()}
            if numbers[0]["0"].number == 4 or time.monotonic() > end:
                break
        assert [numbers[rank]["0"].number for rank in range(2)] == [4, 3]
        assert [(g.number, g.size, g.backend, g.description) for g in (numbers[0]["1"],)] == [(1, 2, "gloo", "pair")]
        if found[1].is_idle is not None:  # from torch 2.8 on
            # Threads of gloo note what is done as they come to it: one that is may count as not done for ever.
            assert found[0].is_idle is False
            first_undone = [numbers[rank]["0"].first_undone for rank in range(2)]
            assert first_undone[0] in range(1, 5)
            assert first_undone[1] in range(4)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_the_first_collective_that_is_not_done_is_told_with_its_name(torch_stand_in: Callable[..., None]) -> None:
    """The processor runs ahead of the GPU: it has called 1843, and the GPU is in 1841."""
    torch_stand_in(
        {GroupStandIn(1843): "0", GroupStandIn(7, desc="tp"): "1"},
        _dump_fr_trace_json=dump(),
        _dump_nccl_trace_json=dump(*(entry(n, "all_reduce") for n in (1841, 1842, 1843)), a=(1843, 1840), b=(7, 7)),
    )
    assert told() == GroupNumbers(
        (
            GroupNumber("0", 1843, 2, "nccl", "", "all_reduce", 1841),
            GroupNumber("1", 7, 2, "nccl", "tp", "", 0),
        ),
        is_idle=False,
    )


def test_what_is_sent_or_received_is_not_done_either(torch_stand_in: Callable[..., None]) -> None:
    nccl = dump(entry(5, "recv 0<-1", is_p2p=True), a=(5, 5))
    torch_stand_in({GroupStandIn(5): "0"}, _dump_nccl_trace_json=nccl)
    assert told() == GroupNumbers((GroupNumber("0", 5, 2, "nccl", "", "recv 0<-1", None),), is_idle=False)


def test_what_the_recorder_does_not_know_is_left_open(torch_stand_in: Callable[..., None]) -> None:
    torch_stand_in({GroupStandIn(5): "0", GroupStandIn(-1): "1"})  # torch before 2.5
    assert told() == GroupNumbers((GroupNumber("0", 5, 2, "nccl"),), is_idle=None)
    torch_stand_in({GroupStandIn(5): "0"}, _dump_nccl_trace_json=dump())  # TORCH_NCCL_TRACE_BUFFER_SIZE=0
    assert told().is_idle is None
    # Two groups with the same number: which is it?
    torch_stand_in({GroupStandIn(5): "0"}, _dump_nccl_trace_json=dump(a=(5, 5), b=(5, 4)))
    assert told() == GroupNumbers((GroupNumber("0", 5, 2, "nccl"),), is_idle=False)
    torch_stand_in(
        {GroupStandIn(5): "0"}, _dump_nccl_trace_json=dump(entry(5, "x", retired=True), a=(-1, -1), b=(5, 5))
    )
    assert told() == GroupNumbers((GroupNumber("0", 5, 2, "nccl", "", "", 0),), is_idle=True)


@pytest.mark.parametrize("broken", [b"no json", b"[]", b'{"pg_status": {"0": {}}}', b'{"pg_status": {"0": 7}}'])
def test_a_torch_that_tells_otherwise_costs_the_rest_of_the_answer(
    torch_stand_in: Callable[..., None], broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    torch_stand_in({GroupStandIn(5): "0"}, _dump_fr_trace_json=lambda *_: broken)
    with caplog.at_level(logging.DEBUG):
        (line,) = answers_to("q")
    assert GroupNumbers.from_line(line, "q") == (GroupNumbers((GroupNumber("0", 5, 2, "nccl"),)), False)
    assert "cannot tell how far this rank is" in caplog.text


def test_a_rank_without_process_groups_says_so(thread: NumbersThread, tmp_path: Path) -> None:
    assert thread.daemon
    found = ask({0: str(tmp_path / "cell")}).answered(in_a_minute())
    assert list(found) == [0]
    assert found[0].groups == ()
    assert found[0].is_idle is not False  # torch tells of groups that another test has destroyed as idle
    assert stat.S_IMODE(os.stat(tmp_path / f"cell{QUESTIONS}").st_mode) == 0o600


def test_the_answer_to_another_question_is_none(thread: NumbersThread, tmp_path: Path) -> None:
    first = ask({0: str(tmp_path / "cell")})
    assert first.answered(in_a_minute())
    second = ask({0: str(tmp_path / "cell")})
    assert second.answers[0][1] > first.answers[0][1]
    assert second._replace(name="other").answered(0) == {}
    assert second.answered(in_a_minute())


def test_it_looks_before_each_answer_and_again_until_there_is_nothing_to_look_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    has_looked = threading.Semaphore(0)
    goes_on = iter([True, True, True, False, False])

    def look() -> bool:
        looked.append("look")
        has_looked.release()
        return next(goes_on)

    def answers(question: str) -> list[str]:
        looked.append(question)
        return []

    monkeypatch.setattr(group_numbers, "answers_to", answers)
    looking = start_answering(str(tmp_path / "cell"), look)
    assert looking is not None
    looking.look_soon()
    for _ in range(4):
        assert has_looked.acquire(timeout=60)
    name = ask({0: str(tmp_path / "cell")}).name
    assert has_looked.acquire(timeout=60)
    looking.stop()
    looking.join(60)
    looking.look_soon()
    assert looked == [*["look"] * 5, name]


def test_the_thread_handles_no_signal_of_the_process(thread: NumbersThread, tmp_path: Path) -> None:
    """A handler of Python would run late: the main thread would not be woken."""
    ask({0: str(tmp_path / "cell")}).answered(in_a_minute())
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert blocked >> (signal.SIGTERM - 1) & 1
    assert not blocked >> (signal.SIGSEGV - 1) & 1


def test_where_it_cannot_be_had_the_rank_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_answering(str(tmp_path / "no" / "cell")) is None
    monkeypatch.setattr(NumbersThread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
    before = set(os.listdir("/proc/self/fd"))
    assert start_answering(str(tmp_path / "cell")) is None
    assert set(os.listdir("/proc/self/fd")) == before
    assert ask({0: str(tmp_path / "cell")}).answers == {}


def test_a_thread_that_is_busy_is_told_to_stop_without_waiting(
    thread: NumbersThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that shuts down while torch does not answer must go on, whatever was asked meanwhile."""
    asked, goes_on = threading.Event(), threading.Event()

    def answers(question: str) -> list[str]:
        asked.set()
        assert goes_on.wait(180)
        return []

    monkeypatch.setattr(group_numbers, "answers_to", answers)
    pipe = os.open(tmp_path / f"cell{QUESTIONS}", os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, b"first\n")
    assert asked.wait(180)
    for part in (b"question\n" * 400, b"\n"):
        with contextlib.suppress(BlockingIOError):
            while os.write(pipe, part):
                pass
    os.close(pipe)
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    waits = stopping.is_alive()
    goes_on.set()
    thread.join(0 if waits else 180)
    assert (waits, thread.is_alive()) == (False, False)
    thread.stop()  # the numbers of its descriptors may be those of other files by now


def test_a_question_that_comes_after_it_was_told_to_stop_does_not_keep_it(
    thread: NumbersThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(group_numbers, "answers_to", lambda _: [asked.set() or "", str(goes_on.wait(180))])
    pipe = os.open(tmp_path / f"cell{QUESTIONS}", os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, b"first\n")
    assert asked.wait(180)
    thread.stop()
    os.write(pipe, b"second\n")
    goes_on.set()
    thread.join(180)
    assert not thread.is_alive()
    os.close(pipe)


@pytest.mark.parametrize("capture_stacks", [True, False])
def test_a_client_answers_from_init_to_shutdown(
    rank_environment: Callable[..., Cell], torch_stand_in: Callable[..., None], capture_stacks: bool
) -> None:
    torch_stand_in({GroupStandIn(5): "0"})
    cell = rank_environment(capture_stacks=capture_stacks)
    client = RankMonitorClient()
    for _ in range(2):
        client.init_workload_monitoring()
        assert (0 in ask({0: cell.path}).answered(in_a_minute())) is capture_stacks
        client.shutdown_workload_monitoring()
        assert not os.path.exists(cell.path + QUESTIONS)


@pytest.mark.parametrize("use", [lambda client: client.start_section("new"), lambda client: client.send_heartbeat()])
def test_a_group_that_is_made_after_init_is_told_from_the_next_first_use_on(
    rank_environment: Callable[..., Cell], torch_stand_in: Callable[..., None], use: Callable[[RankMonitorClient], None]
) -> None:
    """Until then there is no thread: Python warns of one where a script forks."""
    torch_stand_in({})
    cell = rank_environment()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("setup")
    before = {thread.name for thread in threading.enumerate()}
    assert "ft_groups" not in before
    assert ask({0: cell.path}).answers == {}
    torch_stand_in({GroupStandIn(5): "0"})
    use(client)
    (numbers,) = ask({0: cell.path}).answered(in_a_minute()).values()
    assert [group.number for group in numbers.groups] == [5]
    use_again = [each for each in threading.enumerate() if each.name == "ft_groups"]
    client.start_section("another")
    assert [each for each in threading.enumerate() if each.name == "ft_groups"] == use_again
    client.shutdown_workload_monitoring()


def test_a_forked_child_leaves_its_parents_answers_alone(thread: NumbersThread, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        thread.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert ask({0: str(tmp_path / "cell")}).answered(in_a_minute())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]\n",
        '{"question": "q"}\n',
        '{"question": "q", "is_last": true, "groups": 7, "is_idle": null}\n',
        '{"question": "q", "is_last": true, "groups": [["0", "5", 2, "", "", "", null]], "is_idle": null}\n',
        '{"question": "q", "is_last": true, "groups": [["0", true, 2, "", "", "", null]], "is_idle": null}\n',
        '{"question": "q", "is_last": true, "groups": [], "is_idle": 7}\n',
    ],
)
def test_what_is_no_answer_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        GroupNumbers.from_line(line, "q")
    path = tmp_path / f"cell{ANSWERS}"
    path.write_text(line)
    assert group_numbers.ANSWERS == ANSWERS


@pytest.mark.parametrize("lines", [b"stacks\n1\n", b"1\nstacks\n"])
def test_stacks_and_numbers_may_be_asked_for_at_once(thread: NumbersThread, tmp_path: Path, lines: bytes) -> None:
    questions = os.open(tmp_path / f"cell{QUESTIONS}", os.O_WRONLY)
    os.write(questions, lines)
    os.close(questions)
    end = in_a_minute()
    while (numbers := (tmp_path / f"cell{ANSWERS}").read_text()).count("\n") != 2:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert GroupNumbers.from_line(numbers.splitlines()[1], "1") == (GroupNumbers(), True)
    stacks = (tmp_path / f"cell{THREADS}").read_text()
    assert stacks.startswith(main_thread_stack(threading.main_thread().ident or 0, sys._getframe())[:60])
    assert stacks.endswith(END_OF_STACKS)
    assert " in test_stacks_and_numbers_may_be_asked_for_at_once\n" in stacks


def test_an_endless_recursion_is_told_within_bounds() -> None:
    def deeper(levels: int) -> str:
        return deeper(levels - 1) if levels else main_thread_stack(1, sys._getframe())

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        text = deeper(5_000)
    finally:
        sys.setrecursionlimit(limit)
    assert text.count(" in deeper\n") == 1_997


def test_who_does_not_answer_is_waited_for_no_longer_than_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"cell{QUESTIONS}")
    reader = os.open(tmp_path / f"cell{QUESTIONS}", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / f"cell{ANSWERS}").write_text("")
    questions = ask({0: str(tmp_path / "cell"), 1: str(tmp_path / "nobody")})
    assert list(questions.answers) == [0]
    assert questions.answered(time.monotonic() + 0.01) == {}
    assert questions.answered(in_a_minute(), without=[0]) == {}
    os.close(reader)
    assert ask({0: str(tmp_path / "cell")}).answers == {}  # nobody reads
    os.unlink(tmp_path / f"cell{QUESTIONS}")
    (tmp_path / f"cell{QUESTIONS}").write_text("")
    assert ask({0: str(tmp_path / "cell")}).answers == {}  # somebody has put a file in its place
