"""ft_top shows what goes on, follows it, and leaves the terminal as it found it, whichever way it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")

MakeRun = Callable[..., Any]
StartTop = Callable[..., Any]
START = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from launcher.top import main
"""
PROGRAM = START + "sys.exit(main())"
FAILS = """
from launcher.top import screen
draw = screen.Screen._draw
def fail(self, found):
    draw(self, found)
    if len(found.ranks) == 1:
        raise RuntimeError("on purpose")
screen.Screen._draw = fail
sys.exit(main())
"""


@pytest.fixture
def run(make_run: MakeRun) -> Any:
    run = make_run()
    run.begin()
    run.start([0, 1])
    run.ranks[0].open("step", limit=100, iteration=3)
    run.ranks[1].open("step", limit=100, iteration=3)
    return run


def test_it_shows_the_ranks_and_what_they_do(run: Any, top: StartTop) -> None:
    shown = top(str(run.path))
    assert shown.shows("   0  step").split()[:3] == ["0", "step", "3"]
    assert shown.screen[0].startswith("run run-1, began ")
    assert re.match(r"node .*, generation 0 since .* s, 0 of 3 restarts used$", shown.screen[1])
    assert "no incident so far" in shown.screen[2]

    run.ranks[0].open("checkpointing", limit=50, iteration=4)
    assert shown.shows("> checkpointing").split()[:4] == ["0", ">", "checkpointing", "4"]


def test_who_is_late_comes_first(run: Any, top: StartTop) -> None:
    shown = top(str(run.path))
    shown.until(lambda: [line.split()[:1] for line in shown.screen[4:6]] == [["0"], ["1"]], "two ranks")
    run.ranks[1].open("step", limit=1, age=8, iteration=2)
    shown.until(lambda: [line.split()[:1] for line in shown.screen[4:6]] == [["1"], ["0"]], "another order")
    assert re.search(r" -\d", shown.screen[4])
    shown.press(b"s")
    shown.until(lambda: [line.split()[:1] for line in shown.screen[4:6]] == [["0"], ["1"]], "the order of ranks")


def test_it_follows_a_restart_the_monitor_and_an_incident(run: Any, top: StartTop) -> None:
    shown = top(str(run.path))
    shown.shows("generation 0 since")
    run.write("hang", generation=0, culprits=[1], folder=None)
    shown.shows("hang, rank 1 to blame")
    run.stop()
    shown.shows("generation 0 is over")
    shown.until(lambda: not any("step " in line for line in shown.screen[5:]), "an empty table")
    run.start([0, 1], restarts=1)
    shown.shows("generation 1 since")
    shown.shows("1 of 3 restarts used")
    shown.shows("1 (1)")
    run.write("monitor_lost", reason="x")
    shown.shows("no monitor watches the ranks")
    run.write("monitor_back", reason="x")
    shown.until(lambda: not any("no monitor" in line for line in shown.screen), "a monitor")
    run.ranks[0].cell.words[3] = 77
    shown.shows("its cell is damaged")


def test_the_end_of_the_run_is_its_end(run: Any, top: StartTop) -> None:
    shown = top(str(run.path))
    shown.shows("step")
    run.end("failed", 1, "no restarts left")
    assert shown.wait() == 0
    shown.assert_left_as_found()
    after = shown.raw.rpartition(b"\x1b[?1049l")[2].decode()
    assert "failed, exit code 1: no restarts left" in after


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (b"q", 0),
        (b"Q", 0),
        (b"\x03", -signal.SIGINT),
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP),
        (signal.SIGQUIT, -signal.SIGQUIT),
        (signal.SIGABRT, -signal.SIGABRT),
        (signal.SIGUSR1, -signal.SIGUSR1),
        (signal.SIGUSR2, -signal.SIGUSR2),
        (signal.SIGALRM, -signal.SIGALRM),
        (signal.SIGVTALRM, -signal.SIGVTALRM),
        (signal.SIGPROF, -signal.SIGPROF),
        (signal.SIGXCPU, -signal.SIGXCPU),
    ],
)
def test_the_terminal_is_left_as_it_was_found(run: Any, top: StartTop, how: bytes | int, code: int) -> None:
    shown = top(str(run.path))
    shown.shows("step")
    inside = termios.tcgetattr(shown.theirs)
    assert not inside[3] & (termios.ECHO | termios.ICANON)
    if isinstance(how, bytes):
        shown.press(how)
    else:
        shown.process.send_signal(how)
    assert shown.wait() == code
    assert shown.errors == ""
    shown.assert_left_as_found()


def test_an_exception_is_told_after_the_terminal_was_left(run: Any, top: StartTop) -> None:
    shown = top(str(run.path), program=START + FAILS)
    shown.shows("step")
    run.stop()
    run.start([0])
    assert shown.wait() == 1
    assert "RuntimeError: on purpose" in shown.errors
    shown.assert_left_as_found()


def test_a_terminal_that_is_hung_up_ends_it(run: Any, top: StartTop) -> None:
    """The terminal's window was closed, or the reader was killed: SIGHUP comes, and nothing can be written."""
    shown = top(str(run.path))
    shown.shows("step")
    os.close(shown.theirs)
    os.close(shown.ours)
    assert shown.process.wait(60) == -signal.SIGHUP
    assert shown.errors == ""


def test_a_terminal_that_is_hung_up_ends_it_where_sighup_is_ignored(run: Any, top: StartTop) -> None:
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PROGRAM
    shown = top(str(run.path), program=program)
    shown.shows("step")
    os.close(shown.theirs)
    os.close(shown.ours)
    assert shown.process.wait(60) in (128 + signal.SIGHUP, -signal.SIGHUP)
    assert shown.errors == ""


WITHOUT_PROC = (
    START
    + """
from launcher.top import terminal
terminal.descriptor_path = lambda descriptor: "/nowhere"
sys.exit(main())
"""
)
SHARED = WITHOUT_PROC.replace("fcntl.ioctl(0, termios.TIOCSCTTY, 0)", "")


@pytest.mark.parametrize("program", [WITHOUT_PROC, SHARED])
def test_it_shows_and_leaves_a_terminal_that_it_cannot_open_by_proc(run: Any, top: StartTop, program: str) -> None:
    shown = top(str(run.path), program=program)
    shown.shows("step")
    run.ranks[0].open("checkpointing", limit=50, iteration=4)
    shown.shows("> checkpointing")
    shown.press(b"q")
    assert shown.wait() == 0
    shown.assert_left_as_found()


@pytest.mark.parametrize("program", [PROGRAM, WITHOUT_PROC, SHARED])
def test_a_reader_that_takes_nothing_keeps_no_signal_away(run: Any, top: StartTop, program: str) -> None:
    """The terminal's buffer is full: somebody has pressed Ctrl-S, or the other end is stopped."""
    shown = top(str(run.path), "--interval", "0.05", columns=200, lines=60, program=program)
    shown.shows("step")
    end = time.monotonic() + 60
    frames_left = 20
    while frames_left and time.monotonic() < end:
        shown.process.send_signal(signal.SIGWINCH)  # each makes a whole frame
        time.sleep(0.02)
        frames_left -= not _is_writable(shown)
    assert not frames_left
    shown.process.send_signal(signal.SIGTERM)
    assert shown.process.wait(60) == -signal.SIGTERM
    assert termios.tcgetattr(shown.theirs) == shown.modes


def _is_writable(shown: Any) -> bool:
    return bool(select.select([], [shown.theirs], [], 0)[1])


SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", "import sys; from launcher.top import main; sys.exit(main())",
        *sys.argv[1:]])
while True:
    status = os.waitpid(child, os.WUNTRACED)[1]
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        print("ended", status, file=sys.stderr, flush=True)
        break
    print("stopped", child, file=sys.stderr, flush=True)
    os.read(int(os.environ["GO_ON"]), 1)
    os.tcsetpgrp(0, child)
    os.kill(child, signal.SIGCONT)
"""


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_it_stops_and_goes_on_like_any_job_of_a_shell(run: Any, top: StartTop, number: int) -> None:
    ours, theirs = os.pipe()
    shown = top(str(run.path), program=SHELL, pass_fds=[ours], env={"GO_ON": str(ours)})
    shown.shows("step")
    child = int(subprocess.run(["pgrep", "-P", str(shown.process.pid)], capture_output=True, text=True).stdout)
    if number == signal.SIGSTOP:
        os.kill(child, number)
    else:
        shown.press(b"\x1a")
    assert shown.process.stderr.readline().split()[0] == b"stopped"
    while shown.read(0.05):
        pass
    if number == signal.SIGTSTP:
        shown.assert_left_as_found()
    os.write(theirs, b"x")
    count = shown.raw.count(b"\x1b[?1049h")
    shown.until(lambda: shown.raw.count(b"\x1b[?1049h") > count, "the screen again")
    run.ranks[0].open("checkpointing", limit=50, iteration=4)
    shown.shows("> checkpointing")
    shown.press(b"q")
    assert shown.wait() == 0
    assert shown.errors == "ended 0\n"
    shown.assert_left_as_found()
    os.close(ours)
    os.close(theirs)


def test_in_the_background_it_leaves_the_terminal_alone(run: Any, top: StartTop) -> None:
    """As after SIGSTOP and ``bg``: a process that touched the modes then would be stopped by SIGTTOU."""
    ours, theirs = os.pipe()
    program = SHELL.replace(
        "    os.tcsetpgrp(0, child)\n    os.kill(child, signal.SIGCONT)", "    os.kill(child, signal.SIGCONT)"
    )
    shown = top(str(run.path), program=program, pass_fds=[ours], env={"GO_ON": str(ours)})
    shown.shows("step")
    child = int(subprocess.run(["pgrep", "-P", str(shown.process.pid)], capture_output=True, text=True).stdout)
    os.kill(child, signal.SIGSTOP)
    assert shown.process.stderr.readline().split()[0] == b"stopped"
    termios.tcsetattr(shown.theirs, termios.TCSANOW, shown.modes)  # as a shell does
    while shown.read(0.05):
        pass
    count = len(shown.raw)
    os.write(theirs, b"x")
    run.end()
    assert shown.wait() == 0
    assert shown.errors == "ended 0\n"
    assert b"\x1b[?1049" not in shown.raw[count:]
    assert b"succeeded, exit code 0" in shown.raw[count:]
    assert termios.tcgetattr(shown.theirs) == shown.modes
    os.close(ours)
    os.close(theirs)


def test_a_change_of_the_window_is_followed(run: Any, top: StartTop) -> None:
    shown = top(str(run.path), columns=80)
    shown.shows("memory")
    assert max(map(len, shown.screen)) <= 80
    shown.raw = b""
    shown.resize(50, 10)
    shown.process.send_signal(signal.SIGWINCH)
    shown.until(lambda: "q: quit" in shown.screen[9], "ten lines")
    heading = next(line for line in shown.screen if line.lstrip().startswith("rank"))
    assert len(heading) <= 50
    assert "memory" not in heading
    assert "left" in heading


def test_eight_ranks_fit_into_a_small_terminal_and_many_are_counted(make_run: MakeRun, top: StartTop) -> None:
    run = make_run()
    run.begin()
    run.start(range(64))
    for rank in run.ranks.values():
        rank.open("step", limit=100, iteration=3)
    shown = top(str(run.path))
    shown.shows("and 45 more, none of them late or in trouble")
    assert [line.split()[0] for line in shown.screen[4:23]] == [str(number) for number in range(19)]

    for number in range(30, 64):
        run.ranks[number].open("step", limit=1, age=9)
    shown.shows("and 45 more, 15 of them late")

    run.stop()
    run.start(range(8))
    shown.until(lambda: not any("more" in line for line in shown.screen), "eight ranks")
    assert [line.split()[0] for line in shown.screen[4:12]] == [str(number) for number in range(8)]


def test_every_frame_fits_into_its_terminal(run: Any) -> None:
    from launcher.live.live_run import LiveRun
    from launcher.top.screen import Screen
    from launcher.top.styles import Styles
    from launcher.top.terminal import Terminal

    run.write("hang", generation=0, culprits=[1], folder=None)
    run.write("monitor_lost", reason="x")
    live = LiveRun(str(run.path))
    found = live.look()
    live.close()
    for width in (1, 2, 7, 20, 39, 80, 81, 200):
        for height in (1, 2, 3, 4, 5, 6, 7, 24, 80):
            screen = Screen(Terminal(1, None), Styles(), 1.0, None)
            lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.frame(found, width, height)]
            assert len(lines) <= height
            assert {len(line) for line in lines} <= {0, width}


def test_it_takes_no_keys_where_standard_input_is_no_terminal(run: Any, top: StartTop) -> None:
    program = "import sys; from launcher.top import main; sys.exit(main())"
    shown = top(str(run.path), program=program, stdin=subprocess.DEVNULL)
    shown.shows("step")
    assert termios.tcgetattr(shown.theirs) == shown.modes
    shown.process.send_signal(signal.SIGTERM)
    assert shown.wait() == -signal.SIGTERM
    shown.assert_left_as_found()


def test_a_dumb_terminal_gets_one_snapshot(run: Any, top: StartTop) -> None:
    shown = top(str(run.path), env={"TERM": "dumb"})
    assert shown.wait() == 0
    assert b"\x1b" not in shown.raw
    assert b"steps/s" in shown.raw


AUDIT = """
import os, sys
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "os.link")
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        is_written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if is_written and not str(path).startswith(("/proc/self/fd/", "/dev/")) and "__pycache__" not in str(path):
            print("opened for writing:", path, file=sys.stderr)
    if event in CHANGES or event.startswith("mmap."):
        print("used:", event, arguments, file=sys.stderr)
    if event == "socket.connect":
        print("used:", event, file=sys.stderr)
sys.addaudithook(watch)
"""


def test_it_opens_nothing_for_writing_but_the_terminal(run: Any, top: StartTop) -> None:
    shown = top(str(run.path), program=AUDIT + PROGRAM)
    shown.shows("step")
    run.stop()
    run.start([0, 1])
    shown.shows("generation 1 since")
    run.end()
    assert shown.wait() == 0
    assert shown.errors == ""


def test_without_rich_it_says_what_to_install(run: Any, top: StartTop, tmp_path: Path) -> None:
    program = "import sys; sys.modules['rich'] = None\n" + PROGRAM
    shown = top(str(run.path), program=program)
    assert shown.wait() == 2
    assert "pip install 'torch-resilience[top]'" in shown.errors
    assert "--once" in shown.errors
    assert termios.tcgetattr(shown.theirs) == shown.modes

    program = "import sys; sys.modules['rich'] = None\nfrom launcher.top import main; sys.exit(main())"
    said = subprocess.run(
        [sys.executable, "-c", program, str(run.path), "--once"],
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert "step" in said.stdout
