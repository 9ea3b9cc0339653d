"""Stacks that real processes leave as they die of a signal, and what is no such stack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.incidents import stacks_from_inside
from launcher.incidents.frames import CRASHED, Thread, main_thread, own_frame
from launcher.incidents.stacks_from_inside import fatal_stack
from resilience_core.monitoring.process_hooks import register_stack_dump

PATIENCE = 180.0
FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
SCRIPT = """
import ctypes, faulthandler, os, resource, signal, sys, threading
from resilience_core.monitoring.process_hooks import register_stack_dump, unregister_stack_dump
from resilience_core.protocol.cell_layout import STACK_SIGNAL
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
cell = sys.argv[1]
def die(): os.kill(os.getpid(), int(sys.argv[2]) if len(sys.argv) > 2 else signal.SIGSEGV)
def training_step(): die()
def segfault(): ctypes.string_at(0)
def is_asked(): os.kill(os.getpid(), STACK_SIGNAL)
"""


class Ended:
    """A process that has ended, and what it has left."""

    def __init__(self, code: int, output: str, stack: Path) -> None:
        self.code, self.output, self.stack = code, output, stack

    @property
    def threads(self) -> tuple[Thread, ...]:
        return fatal_stack(str(self.stack), -self.code)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ended]:
    """Run a script in a process of its own, which has a cell in the test's folder."""

    def run(body: str, *arguments: object, env: dict[str, str] | None = None) -> Ended:
        (tmp_path / "train.py").write_text(SCRIPT + body)
        done = subprocess.run(
            [sys.executable, "train.py", str(tmp_path / "cell"), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        return Ended(done.returncode, done.stdout, tmp_path / "cell.stack")

    return run


def functions(thread: Thread | None) -> list[str]:
    return [frame.function for frame in thread.frames] if thread is not None else []


@pytest.mark.parametrize("number", FATAL)
def test_whoever_dies_of_a_fatal_signal_leaves_its_stack(run: Callable[..., Ended], number: int) -> None:
    ended = run("register_stack_dump(cell)\ntraining_step()\n", int(number))
    assert ended.code == -number
    (thread,) = ended.threads
    assert functions(thread) == ["die", "training_step", "<module>"]
    assert (thread.name, thread.is_active, thread.was_asked) == (CRASHED, True, False)
    assert "Fatal Python error" not in ended.output, "it is in the file alone"


def test_a_real_segfault_is_told_down_to_the_line_of_the_script(run: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run("register_stack_dump(cell)\nsegfault()\n")
    assert ended.code == -signal.SIGSEGV
    assert functions(main_thread(ended.threads)) == ["string_at", "segfault", "<module>"]
    frame = own_frame(ended.threads)
    assert frame is not None
    assert frame.path == str(tmp_path / "train.py")
    assert (tmp_path / "train.py").read_text().splitlines()[frame.line - 1] == ("def segfault(): ctypes.string_at(0)")


def test_the_other_threads_are_told_too(run: Callable[..., Ended]) -> None:
    ended = run("""
register_stack_dump(cell)
stands, stop = threading.Event(), threading.Event()
def loading_data():
    stands.set()
    stop.wait()
threading.Thread(target=loading_data, daemon=True).start()
stands.wait()
segfault()
""")
    assert len(ended.threads) == 2
    assert functions(main_thread(ended.threads))[:2] == ["string_at", "segfault"]
    (other,) = [thread for thread in ended.threads if not thread.is_active]
    assert "loading_data" in functions(other)


def test_a_thread_that_has_died_is_the_one_that_was_running(run: Callable[..., Ended]) -> None:
    """And the main thread, which waits for it, is not."""
    ended = run("""
register_stack_dump(cell)
def training_loop():
    thread = threading.Thread(target=segfault)
    thread.start()
    thread.join()
training_loop()
""")
    assert ended.code == -signal.SIGSEGV
    (active,) = [thread for thread in ended.threads if thread.is_active]
    assert "segfault" in functions(active)
    (main,) = [thread for thread in ended.threads if not thread.is_active]
    assert "training_loop" in functions(main)


def test_what_it_was_asked_before_is_not_its_last_stack(run: Callable[..., Ended]) -> None:
    ended = run("register_stack_dump(cell)\nis_asked()\nis_asked()\nsegfault()\n")
    assert ended.stack.read_text().count("is_asked") == 2
    (thread,) = ended.threads
    assert functions(thread) == ["string_at", "segfault", "<module>"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("is_asked()\n", 0),
        ("is_asked()\nraise RuntimeError('Fatal Python error')\n", 1),
        ("is_asked()\nos.kill(os.getpid(), signal.SIGKILL)\n", -signal.SIGKILL),
        ("is_asked()\nos.kill(os.getpid(), signal.SIGTERM)\n", -signal.SIGTERM),
    ],
)
def test_whoever_ends_otherwise_leaves_none(run: Callable[..., Ended], body: str, code: int) -> None:
    """Although it has answered, and the answer is in the same file."""
    ended = run("register_stack_dump(cell)\n" + body)
    assert ended.code == code
    assert "is_asked" in ended.stack.read_text()
    assert ended.threads == ()


def test_what_the_script_has_enabled_before_is_left_alone(run: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run("""
faulthandler.enable(file=open("mine", "w"), all_threads=False)
file = register_stack_dump(cell)
is_asked()
file.flush()
segfault()
""")
    assert ended.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "mine").read_text()
    assert " in segfault\n" in (tmp_path / "mine").read_text()
    assert ended.threads == ()
    assert "is_asked" in ended.stack.read_text(), "questions are answered all the same"


def test_so_is_what_the_environment_has_enabled(run: Callable[..., Ended]) -> None:
    ended = run("register_stack_dump(cell)\nsegfault()\n", env={"PYTHONFAULTHANDLER": "1"})
    assert ended.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.output
    assert ended.threads == ()


def test_a_process_that_is_not_monitored_any_more_leaves_its_stack_too(run: Callable[..., Ended]) -> None:
    """It may die of a destructor while it ends; and a question that comes too late does it no harm."""
    ended = run("""
file = register_stack_dump(cell)
unregister_stack_dump(file)
is_asked()
print("alive", file.closed, flush=True)
del file
segfault()
""")
    assert ended.output == "alive False\n"
    assert ended.code == -signal.SIGSEGV
    (thread,) = ended.threads
    assert functions(thread) == ["string_at", "segfault", "<module>"]
    assert "is_asked" not in ended.stack.read_text()


def test_a_process_that_is_monitored_once_more_leaves_its_stack_too(run: Callable[..., Ended]) -> None:
    ended = run("unregister_stack_dump(register_stack_dump(cell))\nregister_stack_dump(cell)\nsegfault()\n")
    (thread,) = ended.threads
    assert functions(thread) == ["string_at", "segfault", "<module>"]


def test_what_it_leaves_is_behind_what_it_has_answered_since_it_is_monitored_once_more(
    run: Callable[..., Ended], tmp_path: Path
) -> None:
    """Its fatal signal has the descriptor of the first time, which was further on in the file than the new one is."""
    ended = run("""
file = register_stack_dump(cell)
is_asked()
unregister_stack_dump(file)
register_stack_dump(cell)
is_asked()
is_asked()
open("answers", "w").write(open(cell + ".stack").read())
segfault()
""")
    answers, left = (tmp_path / "answers").read_text(), ended.stack.read_text()
    assert answers.count(" in is_asked") == 2
    assert left.startswith(answers)
    assert left.removeprefix(answers).startswith("Fatal Python error")
    (thread,) = ended.threads
    assert functions(thread) == ["string_at", "segfault", "<module>"]


def test_what_a_process_before_has_left_in_the_file_is_not_told(run: Callable[..., Ended]) -> None:
    """It had the same cell, as a rank that was restarted has."""
    assert run("register_stack_dump(cell)\nsegfault()\n").threads != ()
    ended = run("register_stack_dump(cell)\nfaulthandler.disable()\ndie()\n")
    assert ended.code == -signal.SIGSEGV
    assert ended.stack.read_text() == ""
    assert ended.threads == ()


def test_a_file_that_no_fatal_signal_needs_is_closed(run: Callable[..., Ended]) -> None:
    ended = run("""
faulthandler.enable(file=open("mine", "w"))
file = register_stack_dump(cell)
unregister_stack_dump(file)
is_asked()
print("alive", file.closed, faulthandler.is_enabled())
""")
    assert (ended.code, ended.output) == (0, "alive True True\n")


def test_where_no_file_can_be_made_it_goes_on_without(run: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run("""
before = signal.getsignal(STACK_SIGNAL)
print(register_stack_dump("/nowhere/cell"), faulthandler.is_enabled(), signal.getsignal(STACK_SIGNAL) == before)
""")
    assert ended.code == 0
    assert "None False True" in ended.output
    os.mkfifo(tmp_path / "cell.stack")
    assert register_stack_dump(str(tmp_path / "cell")) is None, "nobody waits for the reader of a pipe"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "Segmentation fault\n",
        'Current thread 0x00007f00 (most recent call first):\n  File "x.py", line 1 in f\n',
        "Fatal Python error: Segmentation fault\n\nExtension modules: numpy.core._multiarray_umath (total: 1)\n",
        "Fatal Python error: Segmentation fault",
        "Fatal Python error: Segmentation fault\n",
        "Fatal Python error: Segmentation fault\n\n",
        "Fatal Python error: Segmentation fault\n\n\n\n",
    ],
)
def test_what_is_no_stack_of_a_fatal_signal(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stack").write_text(text)
    assert fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV) == ()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "terminal"])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "stack"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/ptmx" if kind == "terminal" else "nowhere")
    assert fatal_stack(str(path), signal.SIGSEGV) == ()


def test_the_list_of_extension_modules_is_no_thread_and_a_text_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f01 (most recent call first):\n  File "/job/loader.py", line 7 in wait\n\n'
        'Current thread 0x00007f00 (most recent call first):\n  File "/job/\ufffdtrain.py", line 3 in step\n'
        '  File "/job/train.py", line 9 in <module>\n'
    )
    path = tmp_path / "stack"
    path.write_text(text + "\nExtension modules: a.b, c.d (total: 2)\n")
    whole = fatal_stack(str(path), signal.SIGSEGV)
    assert [(thread.name, functions(thread)) for thread in whole] == [
        ("Thread 0x00007f01", ["wait"]),
        (CRASHED, ["step", "<module>"]),
    ]
    assert whole[1].frames[0].line == 3
    path.write_text(text[: text.index("train.py", text.index("Current")) + 4])
    assert [functions(thread) for thread in fatal_stack(str(path), signal.SIGSEGV)] == [["wait"], []]
    path.write_bytes(b"\0\0\xff" + text.encode())
    assert fatal_stack(str(path), signal.SIGSEGV) == whole


def test_a_text_is_read_however_early_it_is_cut_off(tmp_path: Path) -> None:
    """As on a file system that has no room left."""
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f01 (most recent call first):\n  File "/job/loader.py", line 7 in wait\n\n'
        'Current thread 0x00007f00 (most recent call first):\n  File "/job/train.py", line 3 in step\n'
    )
    found = []
    for length in range(len(text) + 1):
        (tmp_path / "stack").write_text(text[:length])
        found.append([functions(thread) for thread in fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV)])
    assert found[0] == []
    assert found[-1] == [["wait"], ["step"]]


@pytest.mark.parametrize("written_before", [1 << 20, (1 << 20) + 1, 3 << 20])
def test_of_a_long_file_the_end_is_read(tmp_path: Path, written_before: int) -> None:
    """A rank of many threads was asked many times before it has died."""
    answer = 'Current thread 0x00007f00 (most recent call first):\n  File "/job/train.py", line 1 in was_asked\n\n'
    (tmp_path / "stack").write_text(
        (answer * (written_before // len(answer) + 1))[-written_before:] + "Fatal Python error: Segmentation fault\n\n"
        'Current thread 0x00007f00 (most recent call first):\n  File "/job/train.py", line 3 in step\n'
    )
    (thread,) = fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV)
    assert functions(thread) == ["step"]


def test_of_several_that_have_died_with_the_file_open_the_last_one_is_told(run: Callable[..., Ended]) -> None:
    """A process that was forked from the rank writes into the same file."""
    ended = run("""
register_stack_dump(cell)
def in_a_child(): segfault()
child = os.fork()
if not child:
    in_a_child()
os.waitpid(child, 0)
training_step()
""")
    assert ended.stack.read_text().count("Fatal Python error") == 2
    (thread,) = ended.threads
    assert functions(thread) == ["die", "training_step", "<module>"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_child_that_has_died_of_another_signal_is_not_the_rank(run: Callable[..., Ended], number: int) -> None:
    ended = run(
        """
register_stack_dump(cell)
child = os.fork()
if not child:
    segfault()
os.waitpid(child, 0)
faulthandler.disable()
die()
""",
        int(number),
    )
    assert ended.code == -number
    assert "Fatal Python error: Segmentation fault" in ended.stack.read_text()
    assert ended.threads == ()


def test_a_file_that_this_user_may_not_read_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    (tmp_path / "stack").write_text(
        "Fatal Python error: Segmentation fault\n\n"
        'Current thread 0x0 (most recent call first):\n  File "x.py", line 1 in f\n'
    )
    assert fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV) != ()
    monkeypatch.setattr(stacks_from_inside, "open", refuse, raising=False)
    assert fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV) == ()


def test_without_a_python_frame_there_is_still_a_thread(tmp_path: Path) -> None:
    """Of a thread that a library has started."""
    (tmp_path / "stack").write_text(
        "Fatal Python error: Segmentation fault\n\n<no Python frame>\n\n"
        'Thread 0x00007f01 (most recent call first):\n  File "/job/train.py", line 7 in step\n'
    )
    (thread,) = fatal_stack(str(tmp_path / "stack"), signal.SIGSEGV)
    assert functions(thread) == ["step"]
