"""torch's PContext without its signal handlers, and the seam of --numa-binding."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure, record

from launcher.workers import torch_processes
from launcher.workers.numa import bound_to_numa_node
from launcher.workers.torch_processes import QuietContext, check_error_file
from resilience_core.errors import ResilienceError

TELL_MASK = "print([line for line in open('/proc/self/status') if line.startswith('SigBlk')][0])"


class OneProcess(QuietContext):
    """Starts one Python, and signals its own process in the middle of that."""

    blocked = ""

    def _start_workers(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        self.blocked = subprocess.run(
            [sys.executable, "-c", TELL_MASK], capture_output=True, text=True, check=True
        ).stdout.split()[1]

    def _poll(self) -> None:
        return None

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        pass

    def pids(self) -> dict[int, int]:
        return {}


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """What our own handler of SIGTERM was called with."""
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[OneProcess]:
    context = OneProcess(
        name="test", entrypoint="true", args={0: ()}, envs={0: {}}, logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path))
    )
    yield context
    context.close()


def test_a_start_leaves_the_signals_alone(context: OneProcess, noted: list[int]) -> None:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    context.start()

    assert noted == [signal.SIGTERM], "a signal during the start belongs to the launcher's own handler"
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    assert int(context.blocked, 16) == 0, "a worker would be deaf to what was blocked"


def test_later_starts_leave_the_signals_alone(tmp_path: Path, noted: list[int]) -> None:
    """Only the first one asks about every signal: from then on it is known which ones torch takes."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number in range(3):
        noted.clear()
        logs = DefaultLogsSpecs(log_dir=str(tmp_path / str(number)))
        later = OneProcess(name="test", entrypoint="true", args={0: ()}, envs={0: {}}, logs_specs=logs)
        later.start()
        later.close()
        assert noted == [signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert set(torch_processes._taken) >= {signal.SIGTERM, signal.SIGINT}


def test_a_start_that_fails_leaves_the_signals_alone(context: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no process can be had")

    monkeypatch.setattr(context, "_start_workers", refuse)
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with pytest.raises(OSError, match="no process can be had"):
        context.start()
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


# ---- numa -----------------------------------------------------------------------------------------------


def recorded_to_2_13(command_args: Any, *, gpu_index: int, numa_options: Any) -> tuple[str, ...]:
    return ("numactl", str(gpu_index), *command_args)


def recorded_since_2_14(command_args: Any, *, device_index: int, numa_options: Any) -> tuple[str, ...]:
    return ("numactl", str(device_index), *command_args)


@pytest.mark.parametrize("torchs", [recorded_to_2_13, recorded_since_2_14])
def test_a_worker_is_bound_by_every_version_of_torchs_function(torchs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.numa import binding

    monkeypatch.setattr(binding, "_maybe_wrap_command_args_with_numa_binding", torchs)
    options = SimpleNamespace(should_fall_back_if_binding_fails=False)
    assert bound_to_numa_node(("python", "x.py"), 3, options) == ("numactl", "3", "python", "x.py")
    assert bound_to_numa_node(("python", "x.py"), 3, None) == ("python", "x.py")


def test_the_function_of_this_torch_is_understood() -> None:
    """No accelerator here: torch falls back, which it would not if it had been called wrongly."""
    from torch.numa.binding import AffinityMode, NumaOptions

    options = NumaOptions(affinity_mode=AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    assert bound_to_numa_node(("python", "x.py"), 0, options)[-2:] == ("python", "x.py")


@pytest.mark.parametrize("falls_back", [True, False])
def test_a_torch_that_cannot_bind_is_said_so(falls_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.numa import binding

    monkeypatch.delattr(binding, "_maybe_wrap_command_args_with_numa_binding")
    options = SimpleNamespace(should_fall_back_if_binding_fails=falls_back)
    if falls_back:
        assert bound_to_numa_node(("python",), 0, options) == ("python",)
    else:
        with pytest.raises(ResilienceError, match="--numa-binding: this version of torch cannot bind"):
            bound_to_numa_node(("python",), 0, options)


def test_a_machine_that_cannot_bind_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA raises AssertionError, which was told as a mistake of ours."""
    from torch.numa import binding

    def recorded_without_cuda(command_args: Any, *, device_index: int, numa_options: Any) -> tuple[str, ...]:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(binding, "_maybe_wrap_command_args_with_numa_binding", recorded_without_cuda)
    options = SimpleNamespace(should_fall_back_if_binding_fails=False)
    with pytest.raises(ResilienceError, match="torch cannot bind: Torch not compiled with CUDA enabled; leave"):
        bound_to_numa_node(("python",), 0, options)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"message": {"mess',
        '{"message": 5}',
        '{"message": {"extraInfo": {}}}',
        '{"message": {"extraInfo": {"timestamp": "soon"}}}',
        '{"message": {"extraInfo": {"timestamp": "1", "py_callstack": 7}}}',
        '{"message": {"extraInfo": {"timestamp": "1"}}}',
        '{"message": "text", "timestamp": "soon"}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_an_error_file_that_torch_would_stumble_over_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(ValueError, match=re.escape(f"{path} is not what torch's @record writes")):
        check_error_file(str(path))


def test_an_error_file_is_not_read_without_end(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(ValueError, match="longer than 16 MiB"):
        check_error_file(str(path))


def test_what_torch_writes_is_read_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setattr("launcher.workers.torch_processes._LONGEST_ERROR_FILE_BYTES", 1 << 20)

    @record
    def fails() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError):
        fails()
    check_error_file(str(path))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    assert "KeyError" in failure.message["message"]


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, os.mkdir], ids=["nothing", "a pipe", "a folder"])
def test_no_error_file_is_nothing_to_complain_of(tmp_path: Path, make: Callable[[str], None]) -> None:
    path = str(tmp_path / "error.json")
    make(path)

    check_error_file(path)
    assert ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=path).error_file == "<N/A>"
