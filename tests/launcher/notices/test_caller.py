"""The process that calls a command for each event: real processes, and no other launcher than this one."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.notices import call as calls
from launcher.notices.call import Call, CannotCallError
from launcher.notices.caller import LAST_SECONDS, MESSAGE_SIZE, MOST_WAITING
from launcher.notices.handle import _KILL_SECONDS, _PROGRAM, CallerHandle
from launcher.notices.target import parse_target
from launcher.processes.child_state import state_of
from launcher.processes.proc import all_pids, environment_entries, process_status
from resilience_core.system.installation import HOME

PATIENCE = 60.0


class Told:
    """A handle, what went wrong, and what the commands have written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.handles: list[CallerHandle] = []
        self.mark = f"FT_TEST_CALL={folder}"

    def start(self, script: str, timeout_seconds: float = PATIENCE) -> CallerHandle:
        """Call a Python program, which finds the mark in its environment and works in the folder."""
        path = self.folder / "command.py"
        path.write_text(textwrap.dedent(script))
        return self.call(f"{sys.executable} -S {path}", timeout_seconds)

    def call(self, target: str, timeout_seconds: float = PATIENCE) -> CallerHandle:
        handle = CallerHandle(target, timeout_seconds, self.problems.append)
        self.handles.append(handle)
        return handle

    def tell(self, handle: CallerHandle, *numbers: int, event: str = "incident") -> None:
        for number in numbers:
            handle.tell({"event": event, "number": number})

    def until(self, probe: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := probe()):
            assert time.monotonic() < end, f"no {what}; {self.problems}"
            select.select([], [], [], 0.01)
        return found

    def lines(self, count: int) -> list[str]:
        """Wait for so many lines of ``told``."""
        path = self.folder / "told"
        return self.until(
            lambda: found if path.exists() and len(found := path.read_text().splitlines()) >= count else None,
            f"{count} lines",
        )

    def marked(self) -> list[int]:
        """Return the live processes that a command, or whoever it has started, is."""
        found = []
        for pid in all_pids():
            try:
                if self.mark.encode() in environment_entries(pid):
                    found.append(pid)
            except OSError:
                continue
        return [pid for pid in found if pid not in {os.getpid(), *(handle.pid for handle in self.handles)}]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FT_TEST_CALL", str(tmp_path))
    made = Told(tmp_path)
    yield made
    for handle in made.handles:
        handle.close()
    made.until(lambda: not made.marked(), "end of what was started")  # with a process that was killed, a moment later


WRITES = """
    import json, os, sys
    document = json.load(sys.stdin)
    with open("told", "a") as file:
        file.write(json.dumps([os.environ["FT_EVENT"], document]) + "\\n")
"""


def test_a_command_gets_the_document_and_the_name_of_the_event(told: Told) -> None:
    handle = told.start(WRITES)
    told.tell(handle, 1)
    told.tell(handle, 2, event="restarted")
    handle.close()
    assert [json.loads(line) for line in told.lines(2)] == [
        ["incident", {"event": "incident", "number": 1, "dropped": 0}],
        ["restarted", {"event": "restarted", "number": 2, "dropped": 0}],
    ]
    assert told.problems == []


def test_a_command_that_does_not_read_holds_up_nothing(told: Told) -> None:
    """A document of 100 KB fits into no pipe."""
    handle = told.start("open('told', 'a').write('called\\n')")
    handle.tell({"event": "incident", "number": 1, "text": "x" * 100_000})
    told.tell(handle, 2)
    handle.close()
    assert told.lines(2) == ["called", "called"]
    assert told.problems == []


def test_an_event_is_sent_in_utf_8_so_that_a_full_one_arrives(told: Told) -> None:
    handle = told.start(WRITES)
    text = "\N{SNOWMAN}" * (MESSAGE_SIZE // 4)  # six bytes each, as ASCII alone
    handle.tell({"event": "incident", "number": 1, "text": text})
    handle.close()
    assert told.problems == []
    assert json.loads(told.lines(1)[0])[1]["text"] == text


@pytest.mark.parametrize("size", [MESSAGE_SIZE + 1, 1 << 24])
def test_an_event_that_is_too_large_is_said_once_and_the_next_is_told(told: Told, size: int) -> None:
    """One is taken by the socket and would be cut off at the other end, the other is refused by the system."""
    handle = told.start(WRITES)
    for number in (1, 2):
        handle.tell({"event": "incident", "number": number, "text": "x" * size})
    told.tell(handle, 3)
    handle.close()
    (problem,) = told.problems
    assert "cannot be handed over (Message too long) and is not told (said once)" in problem
    assert json.loads(told.lines(1)[0])[1] == {"event": "incident", "number": 3, "dropped": 2}


@pytest.mark.parametrize(
    "raw", [b'{"event": "inci', b"\xff", b"7", b'{"event": "incident"}', b'{"event": 1, "number": 1}']
)
def test_a_message_that_is_no_event_is_said_once_and_the_next_is_told(told: Told, raw: bytes) -> None:
    handle = told.start(WRITES)
    handle._channel.send(raw)
    handle._channel.send(raw)
    told.tell(handle, 1)
    handle.close()
    (problem,) = told.problems
    assert f"a message of {len(raw)} bytes is no event and is not told (said once)" in problem
    assert json.loads(told.lines(1)[0])[1]["number"] == 1


def test_a_launcher_that_ends_without_having_read_a_problem_loses_no_event(told: Told) -> None:
    """The system then says that the connection was reset, once, before it hands over what was sent."""
    path = told.folder / "command.py"
    path.write_text(textwrap.dedent(WRITES))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _PROGRAM,
            HOME,
            str(theirs.fileno()),
            f"{sys.executable} -S {path}",
        ]
        process = subprocess.Popen([*command, "60", "0"], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        theirs.close()
        ours.send(b"no event")
        assert select.select([ours], [], [], PATIENCE)[0]  # what it says of that is there, and is not read
        os.kill(process.pid, signal.SIGSTOP)
        ours.send(b'{"event": "incident", "number": 1}')
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == 0
    assert json.loads(told.lines(1)[0])[1]["number"] == 1


@pytest.mark.parametrize("call", ["pipe2", "memfd_create"])
def test_a_call_for_which_the_system_has_nothing_left_is_refused_and_leaves_nothing(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, call, fail)
    monkeypatch.setattr(calls, "_end_all", lambda: None)  # would end the children of these tests
    before = os.listdir("/proc/self/fd")
    with pytest.raises(CannotCallError, match="cannot be started: Too many open files"):
        Call(parse_target("true"), b"{}", "incident", PATIENCE)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("target", ["true", "http://127.0.0.1:9/"])
def test_the_session_of_a_call_has_the_priority_of_its_process(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where processors are divided among sessions, that of a process counts within its own alone."""
    seen = tmp_path / "seen"
    monkeypatch.setattr(
        calls, "set_session_priority", lambda niceness: seen.write_text(f"{os.getsid(0) == os.getpid()} {niceness}")
    )
    monkeypatch.setattr(calls, "_end_all", lambda: None)
    call = Call(parse_target(target), b"{}", "incident", PATIENCE)
    assert select.select([call.pidfd], [], [], PATIENCE)[0]
    call.end(has_ended=True)
    assert seen.read_text() == f"True {os.nice(0)}"


def test_a_child_that_cannot_become_the_command_is_a_call_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(calls, "_in_the_child", fail)
    monkeypatch.setattr(calls, "_end_all", lambda: None)
    with pytest.raises(CannotCallError, match="cannot be started: Exception occurred in preexec_fn"):
        Call(parse_target("true"), b"{}", "incident", PATIENCE)


def test_a_command_inherits_no_descriptor_and_no_ignored_signal_and_gives_way(told: Told) -> None:
    handle = told.start(
        """
        import os, signal
        descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        ignored = [n.name for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_DFL]
        listing = descriptors.pop()  # of the listing itself
        own = os.getsid(0) == os.getpid()
        with open("told", "a") as file:
            file.write(f"{descriptors} {ignored} {own} {os.readlink('/proc/self/fd/1')} ")
            file.write(f"{os.nice(0)} {os.sched_getscheduler(0) == os.SCHED_BATCH}\\n")
        """
    )
    told.tell(handle, 1)
    assert told.lines(1) == [f"[0, 1, 2] [] True /dev/null {min(19, os.nice(0) + 10)} True"]


def test_calls_take_part_as_others_do_once_the_job_has_ended(told: Told) -> None:
    """The one under way, and those after it; a container may forbid all but root to take a niceness back."""
    handle = told.start(
        f"""
        import os, time
        with open("told", "a") as file:
            file.write(f"{{os.nice(0)}}\\n")
        allowed = os.geteuid() == 0
        while (allowed and os.nice(0) != {os.nice(0)}) or os.sched_getscheduler(0) != os.SCHED_OTHER:
            time.sleep(0.01)
        with open("told", "a") as file:
            file.write("in time\\n")
        """
    )
    told.tell(handle, 1, 2)
    told.lines(1)
    handle.close()
    assert told.problems == []
    given_way, *lines = told.lines(4)
    assert given_way == str(min(19, os.nice(0) + 10))
    assert (lines[0], lines[2]) == ("in time", "in time")


HANGS = """
    import os, subprocess, sys
    program = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('told', 'a').write('up\\\\n'); "
    program += "signal.pause()"
    for session in (False, True):  # in the same session, and one of its own
        subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=session)
    if os.fork() == 0:  # a daemon, whose parent has gone
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", program])
        os._exit(0)
    print("waiting for Godot", file=sys.stderr, flush=True)
    os.wait()
    sys.stdin.close()
    while True:
        os.read(os.pipe()[0], 1)
"""


def test_a_command_that_hangs_is_killed_with_all_that_it_has_started_and_said_once(told: Told) -> None:
    handle = told.start(HANGS, timeout_seconds=2.0)
    told.tell(handle, 1)
    told.lines(3)
    (problem,) = told.until(lambda: told.problems, "problem")
    assert "has not ended within 2 s and was killed; its last line on standard error: waiting for Godot" in problem
    assert "(event 'incident') (said once)" in problem
    told.until(lambda: not told.marked(), "end of what the command has started")
    told.tell(handle, 2)
    told.lines(6)
    told.until(lambda: not told.marked(), "end of the second one")
    assert len(told.problems) == 1


def test_what_a_command_leaves_behind_is_killed_when_it_has_ended(told: Told) -> None:
    handle = told.start(
        """
        import subprocess, sys
        program = "import signal; open('told', 'a').write('up\\\\n'); signal.pause()"
        subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
        import time
        while not __import__("os").path.exists("told"):
            time.sleep(0.01)
        """
    )
    told.tell(handle, 1)
    told.lines(1)
    told.until(lambda: not told.marked(), "end of what was left")
    assert told.problems == []


def test_a_command_that_fails_is_said_once_with_its_code_and_last_line(told: Told) -> None:
    handle = told.start("import sys; print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    told.tell(handle, 1, 2)
    handle.close()
    (problem,) = told.problems
    assert problem.startswith(f"--ft-on-event {sys.executable} ...: ")
    assert problem.endswith("has ended with 3; its last line on standard error: two (event 'incident') (said once)")


def test_one_that_a_signal_ends_and_one_that_cannot_be_started_say_so(told: Told) -> None:
    handle = told.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    told.tell(handle, 1)
    handle.close()
    assert "was ended by SIGKILL; it has written nothing to standard error" in told.problems[0]

    gone = told.folder / "gone.sh"
    handle = told.call(str(gone))  # it was there when the job was started
    told.tell(handle, 1)
    handle.close()
    assert "cannot be started: No such file or directory" in told.problems[1]


def test_the_oldest_that_wait_are_dropped_counted_and_said_once(told: Told) -> None:
    handle = told.start(
        WRITES
        + """
    import time
    while not os.path.exists("go"):
        time.sleep(0.01)
    """
    )
    told.tell(handle, 1)
    told.lines(1)  # it runs, and holds up the others
    told.tell(handle, *range(2, 2 + MOST_WAITING + 5))
    (problem,) = told.until(lambda: told.problems, "problem")
    assert f"more than {MOST_WAITING} events wait to be told; the oldest are dropped" in problem
    (told.folder / "go").touch()
    documents = [json.loads(line)[1] for line in told.lines(1 + MOST_WAITING)]
    assert [(each["number"], each["dropped"]) for each in documents] == [
        (1, 0),
        (7, 5),
        *((number, 0) for number in range(8, 2 + MOST_WAITING + 5)),
    ]
    assert len(told.problems) == 1


def test_the_end_waits_for_what_is_still_to_be_told_but_not_for_one_that_hangs(told: Told) -> None:
    handle = told.start(HANGS)
    told.tell(handle, 1, 2)
    told.lines(3)
    began = time.monotonic()
    handle.close()
    assert time.monotonic() - began >= LAST_SECONDS - 0.1
    assert told.marked() == []
    (problem,) = told.problems
    assert problem.endswith(
        f": 2 event(s) could not be told within {LAST_SECONDS:g} s of the end of the job: incident, incident (said "
        "once)"
    )


def test_signals_to_the_whole_job_do_not_end_it(told: Told) -> None:
    handle = told.start(WRITES)
    told.tell(handle, 1)
    told.lines(1)  # its handlers are installed
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(handle.pid, number)
    told.tell(handle, 2)
    told.lines(2)
    assert os.getpgid(handle.pid) == handle.pid != os.getpgid(0)


def has_stopped(pid: int) -> bool:
    return (status := process_status(pid)) is not None and status.is_stopped


def look(handle: CallerHandle) -> None:
    """Have it looked at now, however short ago the last look was."""
    handle._looked = 0.0
    handle.tend()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_killed_or_stopped_is_replaced_and_what_it_has_not_taken_is_told(
    told: Told, number: signal.Signals
) -> None:
    handle = told.start(WRITES)
    told.tell(handle, 1, 2)
    told.until(lambda: handle._last_told == 2, "word of what was told")
    former = handle.pid
    os.kill(former, number)
    told.until(lambda: state_of(handle._process) is not None, "end")
    told.tell(handle, 3)
    assert handle.due_seconds() == 0.0
    handle.tend()
    assert handle.pid != former
    told.until(lambda: handle.pids == {handle.pid}, "end of the one before")
    told.tell(handle, 4)
    documents = [json.loads(line)[1] for line in told.lines(4)]
    assert [(each["number"], each["dropped"]) for each in documents] == [(1, 0), (2, 0), (3, 0), (4, 0)]
    (problem,) = told.problems
    what = "was stopped" if number == signal.SIGSTOP else "has ended (signal 9)"
    assert f"process {former}, which tells events, {what}; another one goes on" in problem


def test_what_one_had_taken_and_not_told_is_counted(told: Told) -> None:
    handle = told.start("import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)")
    told.tell(handle, 1, 2)
    told.until((told.folder / "begun").exists, "first call")
    os.kill(handle.pid, signal.SIGKILL)
    told.until(lambda: state_of(handle._process) is not None, "end")
    (told.folder / "command.py").write_text(textwrap.dedent(WRITES))
    look(handle)
    told.tell(handle, 3)
    assert json.loads(told.lines(1)[-1])[1]["number"] - json.loads(told.lines(1)[-1])[1]["dropped"] == 1


def test_one_that_ends_again_and_again_is_given_up(told: Told) -> None:
    handle = told.start(WRITES)
    for _ in range(6):
        os.kill(handle.pid, signal.SIGKILL)
        told.until(lambda: state_of(handle._process) is not None, "end")
        look(handle)
    assert len(told.problems) == 2
    assert "as 5 before it; no event is told any more" in told.problems[1]
    assert handle.due_seconds() is None
    told.tell(handle, 1, 2)
    assert len(told.problems) == 2


def test_where_no_other_can_be_started_it_is_said(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = told.start(WRITES)
    os.kill(handle.pid, signal.SIGKILL)
    told.until(lambda: state_of(handle._process) is not None, "end")
    monkeypatch.setattr(handle, "_start", lambda: os.open("/nowhere", os.O_RDONLY))
    look(handle)
    (problem,) = told.problems
    assert "no other can be started (No such file or directory); no event is told any more" in problem


def test_one_that_is_stopped_and_full_is_said_once_and_waits_for_nobody(told: Told) -> None:
    handle = told.start(WRITES)
    told.tell(handle, 1)
    told.lines(1)
    os.kill(handle.pid, signal.SIGSTOP)
    for number in range(2, 200):
        handle.tell({"event": "incident", "number": number, "text": "x" * 10_000})
    (problem,) = told.until(lambda: told.problems, "problem")
    assert "does not go on" in problem


def test_one_that_is_stopped_at_the_end_is_replaced_and_what_waits_is_told(told: Told) -> None:
    """A command may stop it by mistake."""
    handle = told.start(WRITES)
    told.tell(handle, 1)
    told.until(lambda: handle._last_told == 1, "word of what was told")
    os.kill(handle.pid, signal.SIGSTOP)
    told.until(lambda: has_stopped(handle.pid), "stop")
    told.tell(handle, 2)
    handle.close()
    assert len(told.lines(2)) == 2


def test_one_that_is_stopped_after_the_last_look_is_said_and_not_waited_for(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are lost, and somebody has to hear of it."""
    handle = told.start(WRITES)
    told.tell(handle, 1)
    told.lines(1)
    os.kill(handle.pid, signal.SIGSTOP)
    told.until(lambda: has_stopped(handle.pid), "stop")
    monkeypatch.setattr(handle, "_ensure", lambda: None)
    told.tell(handle, 2)
    waited: list[float] = []
    wait = handle._process.wait
    monkeypatch.setattr(handle._process, "wait", lambda seconds: (waited.append(seconds), wait(seconds))[1])
    handle.close()
    assert waited == [_KILL_SECONDS]
    assert "was stopped and is killed; what it has not told is lost" in told.problems[0]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_it_tells_what_waits_and_ends_when_the_launcher_is_killed(told: Told, is_stopped: bool) -> None:
    program = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "from launcher.notices.handle import CallerHandle\n"
        "handle = CallerHandle(sys.argv[2], 60, print)\n"
        "handle.tell({'event': 'incident', 'number': 1})\n"
        "print(handle.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = told.folder / "command.py"
    path.write_text(textwrap.dedent(WRITES))
    command = [sys.executable, "-c", program, HOME, f"{sys.executable} -S {path}"]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    pidfd = os.pidfd_open(pid)
    if is_stopped:
        told.lines(1)  # by then it hears of the launcher's end
        os.kill(pid, signal.SIGSTOP)
    launcher.kill()
    launcher.communicate()
    assert select.select([pidfd], [], [], PATIENCE)[0]
    os.close(pidfd)
    assert len(told.lines(1)) == 1


def test_a_url_that_a_command_has_written_is_told_without_its_path(told: Told) -> None:
    handle = told.start("import sys; sys.exit('curl: no answer of http://bot:SECRET@host/SECRET?token=SECRET, 7')")
    told.tell(handle, 1)
    handle.close()
    (problem,) = told.problems
    assert "its last line on standard error: curl: no answer of http://host/***, 7 (event" in problem
    assert "SECRET" not in problem
