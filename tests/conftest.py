"""Real launchers for tests: started on small scripts, waited for, and looked after.

``launch`` starts one, and checks at the end of the test that nothing is left of it: no process, no run folder, no
temporary file. A failing test's processes are killed, one by one, by number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

SCRIPTS = Path(__file__).parent / "e2e" / "scripts"
PATIENCE = 180.0
"""Every wait of a test is for something that must happen; a machine that does twelve things at once takes its time."""
MARK = "FT_TEST_JOB"
"""In the environment of every launcher here, and so of all that it starts, wherever that goes."""
NO_MARK = "-" * 32
ALWAYS_WARM = ("test_warm_workers.py", "test_examples_ddp.py", "test_adapters_examples.py")
"""Modules whose launchers have a mode of their own."""
TOGETHER = ("_examples.py", "_placement.py", "_lightning_ranks.py", "_examples_ddp.py", "docs/test_site.py")
"""How the names of end-to-end modules end that start something for all of their tests."""
FRAMEWORKS = "tests/adapters/"
"""Its tests import the frameworks, which takes seconds: in one process only."""

# No deadlines: a busy machine fails no property. Derandomised, so that the same tree gives the same answer twenty times
# in a row and a failure comes back when it is looked at; `make test-all` searches anew and longer (profile "search").
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.register_profile("search", deadline=None, print_blob=True, max_examples=120)
hypothesis.settings.load_profile("same")

# torch looks up names for each store. Where a name server does not answer, as on machines without a network, a test
# waited five seconds for it now and then; what the launcher does about one has tests of its own.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# What a shell in the background or nohup has had ignored, launchers and ranks would inherit: some tests send it.
for _number, _handler in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("launcher")
    group.addoption(
        "--worker-start",
        choices=("spawn", "warm"),
        default=os.environ.get("FT_TEST_WORKER_START", "warm"),
        help="how the end-to-end tests start workers (environment: FT_TEST_WORKER_START)",
    )
    group.addoption(
        "--fresh-launchers", action="store_true", help="start every launcher as a new interpreter, not from the forge"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a launcher in the mode that ``--worker-start`` says, and put the long ones first.

    The marked ones are run in both modes. What takes seconds comes before what takes milliseconds, so that several
    pytest processes end together.
    """
    items.sort(key=lambda item: not {"e2e", "docs"} & set(item.path.parts))
    for item in items:
        names_its_own = item.path.name in ALWAYS_WARM
        if "launch" in getattr(item, "fixturenames", ()) and not names_its_own:
            item.add_marker(pytest.mark.launches)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give pytest's processes one end-to-end test at a time, and other tests by module; see also ``TOGETHER``."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            if "/e2e/" in module or "/docs/" in module:
                return module if module.endswith(TOGETHER) else nodeid
            return FRAMEWORKS if module.startswith(FRAMEWORKS) else module

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    setattr(item, f"report_{report.when}", report)
    # What a test has logged may hold what no text file can: a report that cannot be sent ends the whole run.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


class Process(NamedTuple):
    """One line of the process table."""

    parent: int
    state: str
    command: str
    is_ours: bool
    """It carries the mark, or works in the folder."""

    def __str__(self) -> str:
        return f"{self.state} {self.command}"


def processes_of(mark: str, folder: Path, launcher: int | None) -> dict[int, Process]:
    """The processes of one launcher, zombies included.

    Those whose environment has the mark (a change of folder or of session does not lose it), those that work in the
    folder (whoever has cleared the environment), and all descendants of these and of the launcher: a zombie has
    neither environment nor folder, only a parent.

    Args:
        mark: The launcher's.
        folder: Its working folder, which nobody else works in.
        launcher: Its number while it has not been waited for; None from then on, since others may get the number.
    """
    table = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            head, _, tail = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            state, parent = tail.split()[:2]
            command, is_ours = f"[{head.partition('(')[2]}]", False
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                is_ours = wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                is_ours = is_ours or os.readlink(f"/proc/{entry}/cwd") == str(folder)
            table[int(entry)] = Process(int(parent), state, command or f"[{head.partition('(')[2]}]", is_ours)
    found = {pid for pid, process in table.items() if process.is_ours or pid == launcher}
    while children := {pid for pid, process in table.items() if process.parent in found} - found:
        found |= children
    assert not found & {0, 1, os.getpid(), os.getppid()}, (
        "processes that no launcher has started were taken for its own"
    )
    return {pid: table[pid] for pid in found}


class Job:
    """One launcher, as a test sees it."""

    def __init__(self, start: Callable[..., Any], arguments: Sequence[str], env: Mapping[str, str], folder: Path):
        self.folder = folder
        self.run_parent = Path("/dev/shm") / f"ft_test-{uuid.uuid4().hex[:12]}"
        self.temporary = Path(tempfile.mkdtemp(prefix="ft-"))  # short: what a rank puts here may be a socket
        self.work = folder / "work"
        self.logs = folder / "logs"
        for path in (self.run_parent, self.work):
            path.mkdir(parents=True)
        self.stdout_path, self.stderr_path = folder / "stdout", folder / "stderr"
        self.exit_code: int | None = None
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1", **env, MARK: self.mark}
        for name in [name for name, value in environment.items() if value == ""]:
            del environment[name]
        self._connection, self.pid = start(
            {
                "arguments": [a.replace("{run_parent}", str(self.run_parent)) for a in arguments],
                "cwd": str(self.work),
                "env": environment,
                "stdout": str(self.stdout_path),
                "stderr": str(self.stderr_path),
            }
        )

    # ---- what it said -----------------------------------------------------------------------------------

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text() if self.stdout_path.exists() else ""

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text() if self.stderr_path.exists() else ""

    @property
    def log_folder(self) -> Path:
        """The run's log folder."""
        (folder,) = self.log_folders
        return folder

    @property
    def log_folders(self) -> list[Path]:
        """Those of all runs; ``latest`` is none."""
        folders = sorted(self.logs.iterdir()) if self.logs.exists() else []
        return [path for path in folders if not path.is_symlink()]

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The event log so far; of one kind of event when named."""
        found: list[dict[str, Any]] = []
        for path in sorted(path for folder in self.log_folders for path in folder.glob("events*.jsonl")):
            found += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in found if name in (None, event["event"])]

    def incidents(self) -> list[Any]:
        """Every incident so far, oldest first."""
        from launcher import read_incidents

        return [incident for folder in self.log_folders for incident in read_incidents(str(folder))]

    def workers(self, generation: int = 0) -> dict[int, int]:
        """Local rank to pid."""
        for event in self.events("started"):
            if event["generation"] == generation:
                return {int(local_rank): pid for local_rank, pid in event["pids"].items()}
        return {}

    @property
    def monitor_pid(self) -> int:
        """The monitor that the launcher has now; one that is just being executed has no command line for a moment."""

        def the_only_one() -> int | None:
            pids = [pid for pid, command in self.processes().items() if "launcher.monitor.monitor" in command]
            return pids[0] if len(pids) == 1 else None

        return int(self.until(the_only_one, "one monitor"))

    def processes(self) -> dict[int, str]:
        """What runs of it, the launcher too, with states and command lines."""
        return {pid: str(process) for pid, process in self._table().items() if process.state not in "ZX"}

    def zombies(self) -> dict[int, str]:
        """What has ended and was not collected, the launcher too."""
        return {pid: str(process) for pid, process in self._table().items() if process.state in "ZX"}

    def _table(self) -> dict[int, Process]:
        return processes_of(self.mark, self.work, self.pid if self.exit_code is None else None)

    # ---- waiting ----------------------------------------------------------------------------------------

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end, no less than ``PATIENCE``; the launcher's exit code, negative for a signal."""
        if self.exit_code is None:
            timeout = max(timeout, PATIENCE)
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(64)
            except TimeoutError:
                raise AssertionError(f"the launcher has not ended after {timeout} s; it said:\n{self.stderr}") from None
            self.exit_code = int(answer)
        return self.exit_code

    def until(self, probe: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
        """Wait until ``probe`` gives something true; fail at once when the launcher has ended without it."""
        end = time.monotonic() + timeout
        while True:
            has_ended = self.exit_code is not None or bool(select.select([self._connection], [], [], 0.005)[0])
            found = probe()
            if found:
                return found
            if has_ended or time.monotonic() > end:
                why = f"ended with {self.wait()}" if has_ended else f"{timeout} s are over"
                raise AssertionError(
                    f"no {what}: {why}; events {self.events()}; it said:\n{self.stderr}\n{self.stdout}"
                )

    def wait_for_event(self, name: str, count: int = 1, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait for the ``count``-th event of a name."""
        events: list[dict[str, Any]] = self.until(
            lambda: found if len(found := self.events(name)) >= count else None, f"event {name!r}", timeout
        )
        return events[count - 1]

    def wait_for_incident(self, timeout: float = PATIENCE) -> Any:
        """Wait for the first incident."""
        return self.until(self.incidents, "incident", timeout)[0]

    def wait_for_output(self, text: str, count: int = 1, timeout: float = PATIENCE) -> str:
        """Wait until the job's standard output holds a text so many times."""
        said: str = self.until(
            lambda: self.stdout if self.stdout.count(text) >= count else None, f"{count} x {text!r}", timeout
        )
        return said

    def wait_for_error_output(self, text: str, timeout: float = PATIENCE) -> str:
        """Wait until the launcher's or a rank's standard error holds a text."""
        said: str = self.until(lambda: self.stderr if text in self.stderr else None, repr(text), timeout)
        return said

    def until_state(self, pid: int, state: str, timeout: float = PATIENCE) -> None:
        """Wait until a process is in a state of proc(5)."""
        path = Path(f"/proc/{pid}/stat")
        self.until(lambda: path.read_text().rpartition(")")[2].split()[0] == state, f"state {state}", timeout)

    def until_gone(self, pids: set[int], timeout: float = PATIENCE) -> None:
        """Wait until none of these runs any more."""
        end = time.monotonic() + timeout
        while left := pids & set(self.processes()):
            assert time.monotonic() < end, f"still there: {left}"
            select.select([], [], [], 0.01)

    def signal(self, number: int) -> None:
        """Signal the launcher."""
        os.kill(self.pid, number)

    # ---- the end ----------------------------------------------------------------------------------------

    def assert_nothing_is_left(self, timeout: float = PATIENCE) -> None:
        """No process, no run folder, no temporary file; a moment is allowed, since a monitor goes last."""
        end = time.monotonic() + timeout
        while (left := self._left()) and time.monotonic() < end:
            select.select([], [], [], 0.01)
        assert not left, f"left behind: {left}"

    def _left(self) -> list[str]:
        folders = [path for path in (self.run_parent, self.temporary) if path.exists()]
        return [
            *(f"process {pid}: {process}" for pid, process in self._table().items()),
            *(str(path) for folder in folders for path in folder.iterdir()),
        ]

    def kill_all(self) -> None:
        """Kill what a failed test has left, and remove its folder."""
        pids = set(self.processes()) | ({self.pid} if self.exit_code is None else set())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(AssertionError):
            self.wait()

    def tidy(self) -> None:
        """Remove the test's own folders outside of pytest's."""
        self._connection.close()
        subprocess.run(["rm", "-rf", str(self.run_parent), str(self.temporary)], check=True)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Put back what a client or a launcher in this process has set: later tests hear what is logged, as before it."""
    loggers = [logging.getLogger(name) for name in ("launcher", "resilience_core", "adapters", "straggler")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    console = sys.modules.get("launcher.records.console")
    form = (console._console.threshold, console._console.speaker) if console is not None else None
    yield
    if console is not None:
        console._console.threshold, console._console.speaker = form
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def find_unused_port() -> int:
    """A port that nobody listens on, below those that the system gives to whoever asks for any.

    A port of that kind may be given away again between the moment it is found and that in which it is used.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = lowest_given if lowest_given > 12_000 else 32_000
    while True:
        port = random.SystemRandom().randrange(highest - 10_000, highest)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


@pytest.fixture(scope="session")
def unused_port() -> Callable[[], int]:
    """Find a port to be used later, another one each time."""
    return find_unused_port


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Starts launchers; see tests/e2e/forge.py."""
    path = str(tmp_path_factory.mktemp("forge") / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        program = str(Path(__file__).parent / "e2e" / "forge.py")
        process = subprocess.Popen(
            [sys.executable, program, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**os.environ, MARK: NO_MARK},  # each launcher writes its own in this place
        )

    def start(request: dict[str, Any] | None) -> Any:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.sendall((json.dumps(request) + "\n").encode())
        said = b"0"
        while request is not None and not said.endswith(b"\n"):  # not the exit code, which may have followed already
            byte = connection.recv(1)
            assert byte, "the forge has ended"
            said += byte
        return connection, int(said)

    yield start
    connection, _ = start(None)
    process.wait(timeout=PATIENCE)
    connection.close()


def start_fresh(request: dict[str, Any]) -> Any:
    """Start a launcher as a new interpreter, as a person does; answers like the forge."""
    ours, theirs = socket.socketpair()
    with open(request["stdout"], "ab") as stdout, open(request["stderr"], "ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *request["arguments"]],
            cwd=request["cwd"],
            env=request["env"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def report() -> None:
        with theirs:
            theirs.sendall(f"{process.wait()}\n".encode())

    threading.Thread(target=report, daemon=True).start()
    return ours, process.pid


def _filled(text: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(name, value)
    return text


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path, forge: Callable[..., Any]) -> Iterator[Callable[..., Job]]:
    """Start an ``ft_launcher``; at the end of the test nothing of it may be left.

    ``launch(script, *script_arguments, nproc=2, options=(), env={}, faults="", fresh=False, **ft)``: a script's name
    is looked up in tests/e2e/scripts; ``ft`` are options of ours (``rank_section_timeouts="step:1"``); an
    environment variable set to nothing is taken out.
    """
    jobs: list[Job] = []

    def start(
        script: str | Path,
        *script_arguments: object,
        nproc: int = 2,
        options: Sequence[object] = (),
        env: Mapping[str, str] | None = None,
        faults: str = "",
        fresh: bool = False,
        **ft: object,
    ) -> Job:
        settings = {"worker_start": request.config.getoption("--worker-start"), "run_dir": "{run_parent}", **ft}
        folder = tmp_path / f"job{len(jobs)}"
        arguments = ["--nproc-per-node", nproc, "--log-dir", folder / "logs", *options]
        for name, value in settings.items():
            if value is not None:
                arguments += [f"--ft-{name.replace('_', '-')}", value]
        arguments += [SCRIPTS / script if (SCRIPTS / script).exists() else script, *script_arguments]
        places = {"{python}": sys.executable, "{scripts}": str(SCRIPTS), "{work}": str(folder / "work")}
        is_fresh = fresh or request.config.getoption("--fresh-launchers")
        job = Job(
            start_fresh if is_fresh else forge,
            [_filled(str(argument), places) for argument in arguments],
            {"FT_SIMULATED_FAULTS": faults, **(env or {})},
            folder,
        )
        jobs.append(job)
        return job

    yield start
    has_passed = getattr(request.node, "report_call", None) is not None and request.node.report_call.passed
    try:
        for job in jobs:
            if has_passed:
                assert job.exit_code is not None, "the test has not waited for its launcher"
                job.assert_nothing_is_left()
    finally:
        for job in jobs:
            job.kill_all()
            job.tidy()


class Uninterruptible:
    """The freezer of cgroup version 1: a process in it is in uninterruptible sleep, and SIGKILL does not end it."""

    def __init__(self) -> None:
        self.folder = Path("/sys/fs/cgroup/freezer") / f"ft_test-{uuid.uuid4().hex[:12]}"
        self.folder.mkdir()

    def put_in(self, pid: int) -> None:
        """Have a process sleep."""
        (self.folder / "cgroup.procs").write_text(str(pid))
        (self.folder / "freezer.state").write_text("FROZEN")

    def let_go(self) -> None:
        """Wake whoever is in it."""
        (self.folder / "freezer.state").write_text("THAWED")

    def remove(self) -> None:
        """Wake them, wait for those that were killed, and leave nothing in the cgroup tree."""
        self.let_go()
        end = time.monotonic() + PATIENCE
        while (pids := (self.folder / "cgroup.procs").read_text().split()) and time.monotonic() < end:
            select.select([], [], [], 0.01)
        assert not pids, f"still there, although they were woken: {pids}"
        self.folder.rmdir()


@pytest.fixture
def uninterruptible() -> Iterator[Uninterruptible]:
    """Puts processes to a sleep from which no signal wakes them; skips where that cannot be had."""
    try:
        made = Uninterruptible()
    except OSError as error:
        pytest.skip(f"no freezer of cgroup version 1 may be used here: {error}")
    yield made
    made.remove()
