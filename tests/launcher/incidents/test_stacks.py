"""Stacks of real processes: from outside with py-spy, running or stopped; from inside where that cannot be had."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents import py_spy_runs, stacks, stacks_from_inside
from launcher.incidents.frames import Frame, Thread, frame_of, is_of_an_ending_interpreter, main_thread
from launcher.incidents.py_spy_runs import dumps
from launcher.incidents.stacks import parse_stacks, take_stacks
from launcher.processes.handles import open_pidfd, wait_for_exit
from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import hookimpl
from resilience_core.protocol.cell_layout import STACK_SIGNAL
from resilience_core.protocol.stack_question import END_OF_STACKS, main_thread_stack
from resilience_core.system import prctl

PY_SPY = shutil.which("py-spy", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
needs_py_spy = pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed (extra 'stacks')")

STANDS = """
import faulthandler, sys, threading
faulthandler.register(int(sys.argv[1]), file=open(sys.argv[2], "w"), all_threads=True, chain=False)
stop = threading.Event()
def loading_data(): stop.wait()
def training_step():
    print("ready", flush=True)
    while not stop.wait(0.01): pass
threading.Thread(target=loading_data, name="loader", daemon=True).start()
training_step()
"""
HOLDS_THE_GIL = """
import ctypes
def calls_c():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(600)
calls_c()
"""


@pytest.fixture
def stands(spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> subprocess.Popen[str]:
    return spawn(STANDS, str(STACK_SIGNAL), str(tmp_path / "stack"))


def functions(threads: tuple[Thread, ...]) -> list[str]:
    thread = main_thread(threads)
    assert thread is not None
    return [frame.function for frame in thread.frames]


@needs_py_spy
def test_the_stacks_of_several_processes_are_taken_at_once(
    stands: subprocess.Popen[str], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    in_c = spawn(HOLDS_THE_GIL)

    found = take_stacks({0: stands.pid, 7: in_c.pid}, py_spy=PY_SPY, timeout_seconds=60)

    assert "training_step" in functions(found[0])
    assert "loading_data" in [frame.function for t in found[0] if t.name == "loader" for frame in t.frames]
    assert functions(found[7])[0] == "calls_c"
    assert list(tmp_path.glob("*.json")) == []


ENDS = """
import atexit, faulthandler, sys, threading, weakref
faulthandler.register(int(sys.argv[1]), file=open(sys.argv[2], "w"), all_threads=True, chain=False)
class Library: pass
library = Library()
stop = threading.Event()
def take_down():
    print("ready", flush=True)
    while not stop.wait(0.01): pass
def deep(n): take_down() if n == 0 else deep(n - 1)
if sys.argv[3] == "at exit": atexit.register(take_down)
elif sys.argv[3] == "of an object": weakref.finalize(library, take_down)
elif sys.argv[3] == "a thread": threading.Thread(target=take_down).start()
elif sys.argv[3] == "the script": take_down()
elif sys.argv[3] == "deep in the script": deep(200)
"""


@pytest.mark.parametrize("py_spy", [pytest.param(True, marks=needs_py_spy), False])
@pytest.mark.parametrize(
    ("what", "is_ending"),
    [
        ("at exit", True),
        ("of an object", True),
        ("a thread", True),
        ("the script", False),
        ("deep in the script", False),
    ],
)
def test_an_interpreter_that_ends_is_told_from_one_that_runs_its_script(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, what: str, is_ending: bool, py_spy: bool
) -> None:
    file = tmp_path / "stack"
    process = spawn(ENDS, str(STACK_SIGNAL), str(file), what)
    end = time.monotonic() + 60

    def is_told() -> bool:
        found = take_stacks(
            {0: process.pid},
            py_spy=PY_SPY if py_spy else None,
            timeout_seconds=60,
            fallback_files={0: str(file)},
            fallback_signal=STACK_SIGNAL,
        )
        return is_of_an_ending_interpreter(found[0])

    while is_told() != is_ending:  # the main thread may be on its way there
        assert time.monotonic() < end


ANSWERS = """
import sys
from resilience_core.monitoring.group_numbers import start_answering
thread = start_answering(sys.argv[1])
def training_step():
    print("ready", flush=True)
    sys.stdin.read()
if len(sys.argv) > 2:
    import faulthandler
    faulthandler.register(int(sys.argv[2]), file=open(sys.argv[3], "w"), all_threads=True, chain=False)
training_step()
"""


@pytest.mark.parametrize("py_spy", [pytest.param(PY_SPY, marks=needs_py_spy, id="py-spy"), None])
def test_the_thread_that_answers_questions_is_in_no_stack(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, py_spy: str | None
) -> None:
    process = spawn(ANSWERS, str(tmp_path / "cell"), str(STACK_SIGNAL), str(tmp_path / "stack"))
    found = take_stacks(
        {0: process.pid},
        py_spy=py_spy,
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
    )
    (thread,) = found[0]
    assert "training_step" in [frame.function for frame in thread.frames]


def asked_itself(process: subprocess.Popen[str], folder: Path, **options: Any) -> dict[int, tuple[Thread, ...]]:
    """Return what a process tells whose cell is ``folder / "cell"``, where there is no py-spy."""
    files = {0: str(folder / "cell.stack")}
    settings: dict[str, Any] = {"timeout_seconds": 60, "fallback_files": files, "fallback_signal": STACK_SIGNAL}
    return take_stacks({0: process.pid}, py_spy=None, **settings | options)


BUSY = """
import copy, sys, threading, time
from resilience_core.monitoring.group_numbers import start_answering
from resilience_core.monitoring.process_hooks import register_stack_dump
file = register_stack_dump(sys.argv[1])
if sys.argv[2] != "does not answer": start_answering(sys.argv[1])
def nested(depth): return {"a": nested(depth - 1), "b": [1, 2, 3]} if depth else {}
def copies(state):
    while True: copy.deepcopy(state); time.sleep(0.001)
def starts_threads():
    while True:
        threads = [threading.Thread(target=lambda: sum(range(200))) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
threading.Thread(target=copies, args=(nested(60),), daemon=True).start()
threading.Thread(target=starts_threads, daemon=True).start()
for _ in range(120 if sys.argv[2] == "many threads" else 0):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
def training_step():
    print("ready", flush=True)
    sys.stdin.read()
training_step()
"""


@pytest.mark.parametrize("tells", ["answers", "does not answer", "many threads"])
def test_a_process_with_busy_threads_does_not_die_of_the_question(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, tells: str
) -> None:
    """A signal handler read frames of other threads while these changed, and healthy ranks died of SIGSEGV."""
    process = spawn(BUSY, str(tmp_path / "cell"), tells)
    for _ in range(40):
        found = asked_itself(process, tmp_path)
        assert "training_step" in functions(found[0])
        assert process.poll() is None
    main = main_thread(found[0])
    assert main is not None
    assert main.name == "MainThread"
    if tells == "many threads":  # of which faulthandler writes a hundred
        assert len(found[0]) > 90
    elif tells == "answers":
        assert not any(thread.was_asked or thread.is_active for thread in found[0])
        assert any(frame.function == "copies" for thread in found[0] for frame in thread.frames)
    else:
        assert [thread.was_asked for thread in found[0]] == [True]


def test_without_tgkill_the_process_is_signalled(
    stands: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a C library other than glibc."""
    monkeypatch.setattr(prctl, "load", object)
    found = take_stacks(
        {0: stands.pid},
        py_spy=None,
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
    )
    assert any(frame.function == "training_step" for thread in found[0] for frame in thread.frames)


def test_who_answers_by_a_thread_is_not_asked_by_a_signal(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The script has taken the signal over, and would end by it."""
    source = ANSWERS.replace("import sys\n", "import signal, sys\nsignal.signal(int(sys.argv[2]), signal.SIG_DFL)\n", 1)
    process = spawn(source.replace("len(sys.argv) > 2", "False"), str(tmp_path / "cell"), str(STACK_SIGNAL))
    (tmp_path / "cell.stack").touch()
    found = asked_itself(process, tmp_path)
    assert "training_step" in functions(found[0])
    assert process.poll() is None


KEEPS_THE_GIL = """
import ctypes, sys
from resilience_core.monitoring.group_numbers import start_answering
from resilience_core.monitoring.process_hooks import register_stack_dump
file = register_stack_dump(sys.argv[1])
start_answering(sys.argv[1])
def calls_c():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(600)
calls_c()  # returns early upon the signal, and the thread can answer then
sys.stdin.read()
"""


def test_one_whose_thread_cannot_run_is_asked_by_the_signal(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = spawn(KEEPS_THE_GIL, str(tmp_path / "cell"))
    end = time.monotonic() + 60
    while True:
        found = asked_itself(process, tmp_path)
        assert functions(found[0])[0] == "calls_c"
        if found[0][0].was_asked:  # its thread may have answered before it came to C
            break
        assert time.monotonic() < end
    assert len(found[0]) == 1


def test_who_may_not_be_interrupted_is_asked_by_its_thread_alone(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A healthy rank, in C that gives up upon a signal, ended with the error of that, and was named for it."""
    process = spawn(KEEPS_THE_GIL, str(tmp_path / "cell"))
    reasons: dict[int, str] = {}
    end = time.monotonic() + 60
    while (
        asked_itself(process, tmp_path, timeout_seconds=1, interruptible=(), reasons=reasons) != {}
    ):  # its thread may have answered before it came to C
        assert time.monotonic() < end
    assert reasons == {0: "its own thread did not answer, and only a rank that is overdue is sent the signal"}
    assert (tmp_path / "cell.stack").read_text() == ""


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    text = main_thread_stack(0x7F, sys._getframe())
    other = 'Thread 0x000000000000007e (most recent call first):\n  File "a.py", line 1 in f\n\n'
    (tmp_path / "cell.threads").write_text(f"earlier\n{text}{other}")
    asked = stacks_from_inside._Asked(
        0, 0, "", (str(tmp_path / "cell.stack"), 0), (str(tmp_path / "cell.threads"), 8), ""
    )
    assert asked.threads == ()
    again = text.partition("\n\n")[2]
    (tmp_path / "cell.threads").write_text(f"earlier\n{text}{other}{again}{END_OF_STACKS}")
    main, thread = asked.threads
    assert (main.name, main.frames[0].function) == ("MainThread", "test_half_an_answer_is_none")
    assert [frame.function for frame in thread.frames] == ["f"]


def test_the_answer_to_a_signal_goes_before_a_later_one(tmp_path: Path) -> None:
    """The signal has ended the call that kept the GIL, and its thread tells where the rank went then."""
    (tmp_path / "signal").write_text('Stack (most recent call first):\n  File "a.py", line 1 in stands\n')
    (tmp_path / "threads").write_text(f"{main_thread_stack(1, sys._getframe())}{END_OF_STACKS}")
    files = [(str(tmp_path / name), 0) for name in ("signal", "threads")]
    asked = stacks_from_inside._Asked(0, 0, "", files[0], files[1], "")
    assert [frame.function for frame in asked.threads[0].frames] == ["stands"]


@needs_py_spy
def test_a_stopped_process_is_read_and_stays_stopped(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    stands.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stands.pid, os.WSTOPPED | os.WNOWAIT)

    found = take_stacks({0: stands.pid}, py_spy=PY_SPY, timeout_seconds=60)

    assert "training_step" in functions(found[0])
    assert Path(f"/proc/{stands.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_without_py_spy_the_process_is_asked_itself(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    found = take_stacks(
        {0: stands.pid},
        py_spy=None,
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
    )

    assert "training_step" in functions(found[0])
    assert any(frame.function == "loading_data" for thread in found[0] for frame in thread.frames)
    assert stands.poll() is None


@pytest.mark.parametrize("has_folder", [False, True])
def test_an_answer_is_found_although_its_file_was_removed(
    stands: subprocess.Popen[str], tmp_path: Path, has_folder: bool
) -> None:
    """A run folder was removed from /dev/shm and made anew; the next hang had no culprit."""
    (tmp_path / "stack").unlink()
    where = tmp_path / "stack" if has_folder else tmp_path / "gone" / "stack"
    found = take_stacks(
        {0: stands.pid},
        py_spy=None,
        timeout_seconds=60,
        fallback_files={0: str(where)},
        fallback_signal=STACK_SIGNAL,
    )

    assert "training_step" in functions(found[0])


def test_a_stopped_process_is_not_asked(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    """The signal would wait for it, and strike when somebody lets it go on."""
    stands.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stands.pid, os.WSTOPPED | os.WNOWAIT)

    reasons: dict[int, str] = {}
    found = take_stacks(
        {0: stands.pid},
        py_spy=None,
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
        reasons=reasons,
    )

    assert found == {}
    assert reasons == {0: "it is stopped, and a stopped process answers no signal"}
    assert int(next(line for line in status(stands.pid) if line.startswith("ShdPnd")).split()[1], 16) == 0


def status(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def test_a_process_that_has_ended_costs_nothing_but_its_own_stack(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    reasons: dict[int, str] = {}
    found = take_stacks(
        {0: ended.pid},
        py_spy=PY_SPY,
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
        reasons=reasons,
    )
    assert found == {}
    assert "the process had ended before anybody could look at it" in reasons[0]


def fake_py_spy(tmp_path: Path, body: str) -> str:
    path = tmp_path / "fake-py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


def test_the_bound_holds_where_what_hangs_cannot_be_ended(
    stands: subprocess.Popen[str], tmp_path: Path, uninterruptible: Any
) -> None:
    """As where it reads the memory of a process that is stuck in the kernel."""
    folder = uninterruptible.folder
    stuck = fake_py_spy(tmp_path, f"echo $$ > {folder}/cgroup.procs; echo FROZEN > {folder}/freezer.state; sleep 600")
    reasons: dict[int, str] = {}

    for seconds in (0.5, 5, 50):  # more only where the shell has not come as far as its second line
        assert take_stacks({0: stands.pid}, py_spy=stuck, timeout_seconds=seconds, reasons=reasons) == {}
        if (folder / "freezer.state").read_text() == "FROZEN\n":
            break

    assert (folder / "freezer.state").read_text() == "FROZEN\n"
    assert reasons[0]


def test_the_bound_holds_and_what_hangs_is_ended(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    slow = fake_py_spy(tmp_path, f"echo $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid; exec sleep 600")

    for seconds in (0.5, 5, 50):  # more only where the shell has not come as far as its first line
        assert take_stacks({0: stands.pid}, py_spy=slow, timeout_seconds=seconds) == {}
        if (tmp_path / "pid").exists():
            break

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("end", ["wait", "echo '[]'"], ids=["killed with it", "left behind by it"])
def test_what_a_py_spy_has_started_ends_with_it(stands: subprocess.Popen[str], tmp_path: Path, end: str) -> None:
    """It went on writing into a file in memory for ever, which counts against the job's limit."""
    noted = f"echo $! > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid"
    wrapper = fake_py_spy(tmp_path, f"trap '' TERM INT HUP; sleep 600 & {noted}; {end}")
    for seconds in (0.5, 5, 50):  # more only where the shell has not come as far as its child
        assert take_stacks({0: stands.pid}, py_spy=wrapper, timeout_seconds=seconds) == {}
        if (tmp_path / "pid").exists():
            break
    pidfd = open_pidfd(int((tmp_path / "pid").read_text()))
    if pidfd is not None:
        assert wait_for_exit([pidfd], 30) == {pidfd}
        os.close(pidfd)


def test_what_a_py_spy_writes_is_bounded(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    flood = fake_py_spy(tmp_path, "echo why >&2; head -c 20000000 /dev/zero >&2; exec head -c 20000000 /dev/zero")
    (dump,) = dumps({0: stands.pid}, flood, [], time.monotonic() + 180).values()
    assert dump.exit_code not in (0, None)  # its writes fail
    assert len(dump.output) == py_spy_runs._LARGEST_OUTPUT
    assert dump.complaint == "why"


def test_a_py_spy_leaves_time_to_ask_the_process_itself(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    """All within the bound: the answer is not waited for on top of it."""
    ends: dict[str, float] = {}
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stacks, "dumps", lambda *told: ends.update(outside=told[3]) or {})
        patched.setattr(stacks, "from_inside", lambda *told: ends.update(inside=told[2]) or {})
        take_stacks(
            {0: stands.pid}, py_spy="py-spy", timeout_seconds=100, fallback_files={0: "-"}, fallback_signal=STACK_SIGNAL
        )
    began_by = time.monotonic()
    assert began + 90 <= ends["outside"] <= began_by + 90
    assert began + 100 <= ends["inside"] <= began_by + 100


def test_where_no_time_is_left_nobody_is_disturbed(stands: subprocess.Popen[str], tmp_path: Path) -> None:
    reasons: dict[int, str] = {}
    files = {0: str(tmp_path / "stack")}
    found = take_stacks(
        {0: stands.pid}, py_spy=None, timeout_seconds=0, fallback_files=files, fallback_signal=STACK_SIGNAL,
        reasons=reasons,
    )  # fmt: skip
    assert (found, reasons) == ({}, {0: "there is no py-spy, and it was not asked"})
    assert (tmp_path / "stack").stat().st_size == 0


@pytest.mark.parametrize("raw", ['{"a": 1}', "7", "[7]", '[{"frames": [{}]}]', "[" * 100_000])
def test_json_that_is_no_stack_tells_nothing_and_costs_no_other_stack(raw: str) -> None:
    assert parse_stacks(raw.encode()) == ()


@pytest.mark.parametrize("body", ["exit 1", "echo no json", "echo '[]'"])
def test_a_py_spy_that_fails_leaves_the_process_to_be_asked(
    stands: subprocess.Popen[str], tmp_path: Path, body: str
) -> None:
    found = take_stacks(
        {0: stands.pid},
        py_spy=fake_py_spy(tmp_path, body),
        timeout_seconds=60,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
    )
    assert "training_step" in functions(found[0])


def test_a_py_spy_that_is_gone_is_said_and_survived(
    stands: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert take_stacks({0: stands.pid}, py_spy="/nowhere", timeout_seconds=1) == {}
    assert "cannot run /nowhere: No such file" in capsys.readouterr().err


def test_the_main_thread_is_the_one_called_so() -> None:
    frame = (Frame("f", "x.py", 1),)
    main, other = Thread("MainThread", False, False, frame), Thread("other", True, True, frame)

    assert main_thread((other, main, other)) == main
    assert main_thread((main, other)) == main
    assert main_thread((other,)) == other
    assert main_thread(()) is None
    assert str(frame[0]) == "f (x.py:1)"


def test_a_process_that_does_not_answer_is_not_killed_by_the_question(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A rank that has shut monitoring down has no handler any more, and the signal's default is death."""
    process = spawn("import sys; print('ready', flush=True); print(sys.stdin.readline(), flush=True)")
    (tmp_path / "stack").touch()

    reasons: dict[int, str] = {}
    found = take_stacks(
        {0: process.pid},
        py_spy=None,
        timeout_seconds=0.1,
        fallback_files={0: str(tmp_path / "stack")},
        fallback_signal=STACK_SIGNAL,
        reasons=reasons,
    )

    assert found == {}
    assert "faulthandler or the signal was taken over by the script" in reasons[0]
    assert process.communicate("alive\n", timeout=180)[0].strip() == "alive"


def test_why_there_is_no_stack_of_a_rank_that_cannot_answer(
    stands: subprocess.Popen[str], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    blocked = spawn(
        "import faulthandler, signal, sys, time; number = int(sys.argv[1])\n"
        "faulthandler.register(number, file=open(sys.argv[2], 'w')); signal.pthread_sigmask(0, [number])\n"
        "print('ready', flush=True); time.sleep(600)",
        str(STACK_SIGNAL),
        str(tmp_path / "blocked"),
    )
    reasons: dict[int, str] = {}
    found = take_stacks(
        {1: blocked.pid, 2: stands.pid, 3: stands.pid},
        py_spy=None,
        timeout_seconds=0.3,
        fallback_files={1: str(tmp_path / "blocked"), 2: str(tmp_path / "never")},
        fallback_signal=STACK_SIGNAL,
        reasons=reasons,
    )
    assert found == {}
    assert reasons == {
        1: "it did not answer the signal in time (--ft-stack-capture-timeout)",
        2: "it is not monitored yet, or the file that it would answer in is gone",
        3: "there is no py-spy, and it was not asked",
    }


def test_the_answer_to_an_earlier_question_is_not_taken_for_this_one(
    stands: subprocess.Popen[str], tmp_path: Path
) -> None:
    first, second = (
        take_stacks(
            {0: stands.pid},
            py_spy=None,
            timeout_seconds=60,
            fallback_files={0: str(tmp_path / "stack")},
            fallback_signal=STACK_SIGNAL,
        )
        for _ in range(2)
    )
    assert len(second[0]) == len(first[0])
    assert "training_step" in functions(second[0])


def test_all_are_asked_at_one_moment_so_that_none_goes_on_because_another_was_woken(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's C call ends with EINTR and its peers' wait is over: 26 of 30 peers were seen where they went."""
    processes = [spawn(STANDS, str(STACK_SIGNAL), str(tmp_path / str(number))) for number in range(3)]
    done: list[str] = []

    def noted(name: str) -> None:
        original = getattr(stacks_from_inside, name)
        monkeypatch.setattr(stacks_from_inside, name, lambda *args: (done.append(name), original(*args))[1])

    for name in ("process_status", "open_pidfd", "plain_size", "handles_signal", "send_to_main_thread"):
        noted(name)
    found = take_stacks(
        {number: process.pid for number, process in enumerate(processes)},
        py_spy=None,
        timeout_seconds=60,
        fallback_files={number: str(tmp_path / str(number)) for number in range(3)},
        fallback_signal=STACK_SIGNAL,
    )

    assert all("training_step" in functions(found[number]) and found[number][0].was_asked for number in range(3))
    assert done[-3:] == ["send_to_main_thread"] * 3
    assert "send_to_main_thread" not in done[:-3]


def test_a_frame_is_told_by_its_whole_path_where_the_working_folder_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    path = str(tmp_path / "gone" / "train.py")
    assert frame_of("main", path, 3).file == "train.py"
    (tmp_path / "gone").rmdir()
    assert frame_of("main", path, 3).file == path


def test_the_code_that_the_bus_makes_of_an_event_is_not_the_users() -> None:
    """A rank that hangs in a plugin stands at the line of the training that has entered the step."""
    bus, frames = EventBus(), []

    class Plugin:
        @hookimpl
        def step_start(self) -> None:
            frames.extend((f.name, f.filename, f.lineno) for f in reversed(traceback.extract_stack()))

    bus.register(Plugin())
    bus.register(Plugin())
    bus.step_start(iteration=1)
    ours = [frame_of(*frame) for frame in frames if frame[0] == "step_start" and frame[1] != __file__]
    assert {frame.package for frame in ours} == {"resilience_core"}
