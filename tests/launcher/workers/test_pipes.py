"""A pipe where a file of ours is expected blocks nobody: whoever opens one waits until its other end is opened."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.progress import ProgressRule
from launcher.incidents import stacks, stacks_from_inside
from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incident
from launcher.incidents.rank_report import RankReport
from launcher.records.event_files import read_events
from launcher.workers.programs import cannot_start
from launcher.workers.script_text import read_script
from launcher.workers.spawn import Launch, spawn_worker
from launcher.workers.torch_processes import check_error_file
from resilience_core import FaultToleranceConfig
from resilience_core.errors import StateFileError
from resilience_core.monitoring.process_hooks import register_stack_dump
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell_layout import STACK_SIGNAL
from resilience_core.system.plain_files import only_plain, plain_size


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        os.makedirs((tmp_path / name).parent, exist_ok=True)
        os.mkfifo(tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Call something that must not wait; returns what it returns, or the OSError that it raises."""
    threads = []

    def run(call: Callable[[], Any]) -> Any:
        answer: list[Any] = []

        def target() -> None:
            try:
                answer.append(call())
            except (OSError, StateFileError) as error:
                answer.append(error)

        thread = threading.Thread(target=target, daemon=True)
        threads.append(thread)
        thread.start()
        thread.join(180)
        assert answer, "it waits for the other end of the pipe"
        return answer[0]

    yield run
    for path in tmp_path.rglob("*"):  # let go whoever does wait
        if path.is_fifo():
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    for thread in threads:
        thread.join(180)


def incident(folder: str) -> Incident:
    return Incident("hang", 0, "why", "action", (RankReport(0, 0, 9),), folder=folder)


@pytest.mark.parametrize(
    ("name", "call", "answer"),
    [
        ("0-0.stack", lambda path: stacks_from_inside._new_text(path, 0), ""),
        ("0-0.stack", plain_size, -1),
        ("0-0.stack", lambda path: register_stack_dump(path.removesuffix(".stack")), None),
        ("incident.json", lambda path: read_incident(os.path.dirname(path)), OSError),
        ("report.txt", lambda path: incident(os.path.dirname(path)).save(), OSError),
        (".incident.json", lambda path: incident(os.path.dirname(path)).save(), OSError),
        ("events.jsonl", lambda path: read_events(os.path.dirname(path)), []),  # left out, with a warning
        ("error.json", check_error_file, None),
        ("state.json", load_state, StateFileError),
        ("script.py", lambda path: read_script(path, {}).values, {}),
        ("program", lambda path: str(cannot_start(PermissionError(13, "Permission denied"), path)), str),
        ("best", lambda path: ProgressRule(FaultToleranceConfig(checkpoint_iteration_file=path))._checkpointed(), None),
        ("out.log", lambda path: spawn_worker(launch(path)), OSError),
    ],
)  # fmt: skip
def test_who_opens_a_pipe_does_not_wait(
    pipe: Callable[[str], str],
    bounded: Callable[[Callable[[], Any]], Any],
    name: str,
    call: Callable[[str], Any],
    answer: Any,
) -> None:
    path = pipe(name)
    result = bounded(lambda: call(path))
    assert isinstance(result, answer) if isinstance(answer, type) else result == answer


def launch(path: str) -> Launch:
    return Launch(command=(sys.executable, "-c", ""), environment={}, stdout=path)


def test_a_plain_file_is_opened_as_usual(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w", opener=only_plain) as file:
        file.write("x")
        assert os.get_blocking(file.fileno())
    assert (tmp_path / "file").stat().st_mode & 0o111 == 0
    with open(os.devnull, "wb", opener=only_plain) as device:
        assert device.write(b"x") == 1


def test_a_terminal_is_written_to_and_not_read() -> None:
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    try:
        with open(name, "w", opener=only_plain) as terminal:
            terminal.write("x")
        with pytest.raises(OSError, match="it is a terminal, not a plain file"):
            only_plain(name, os.O_RDONLY)
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_answer_is_found_although_a_pipe_was_put_in_its_place(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], bounded: Callable[[Callable[[], Any]], Any]
) -> None:
    """The monitor waited for the pipe for ever, and nobody was protected."""
    path = str(tmp_path / "0-0.stack")
    rank = spawn(
        f"import faulthandler; file = open({path!r}, 'w'); faulthandler.register({STACK_SIGNAL}, file=file); "
        "print('ready', flush=True); input()"
    )
    os.unlink(path)
    os.mkfifo(path)
    found = bounded(
        lambda: stacks.take_stacks(
            {0: rank.pid}, py_spy=None, timeout_seconds=20, fallback_files={0: path}, fallback_signal=STACK_SIGNAL
        )
    )
    assert found[0]
