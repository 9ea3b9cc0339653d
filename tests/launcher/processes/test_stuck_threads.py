"""What a launcher says and gives back at its end where a thread of it is stuck in a file system."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.processes.background import Background
from launcher.processes.stuck_threads import notice, stuck_threads

PATIENCE = 180.0


@pytest.fixture
def uninterruptible_call(tmp_path: Path) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """A call that waits in uninterruptible sleep, as vfork(2) does while its child opens a FIFO; and its release."""
    fifo, libc = tmp_path / "fifo", ctypes.CDLL(None)
    os.mkfifo(fifo)
    released: list[int] = []

    def call() -> None:
        actions, pid = ctypes.create_string_buffer(512), ctypes.c_int()
        arguments = (ctypes.c_char_p * 2)(b"true", None)
        libc.posix_spawn_file_actions_init(actions)
        libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(fifo), os.O_RDONLY, 0)
        assert libc.posix_spawnp(ctypes.byref(pid), b"true", actions, None, arguments, None) == 0
        os.waitpid(pid.value, 0)

    def release() -> None:
        if not released:
            released.append(os.open(fifo, os.O_RDWR))

    yield call, release
    release()
    os.close(released[0])


def test_a_thread_that_no_signal_ends_is_found_and_named(
    uninterruptible_call: tuple[Callable[[], None], Callable[[], None]],
) -> None:
    call, release = uninterruptible_call
    assert notice(stuck_threads(0), 0) == []
    disk = Background("ft_log_folder", 10, "/some/logs")
    disk.start()
    disk.submit(call)
    while not (stuck := stuck_threads(0.2)):
        pass

    first, second = notice(stuck, 7)

    assert first.startswith("the file system of the log folder /some/logs does not answer")
    assert f"(pid {os.getpid()}) may not go before it does: ft_log_folder waits" in first
    assert "exit code 7" in second
    release()
    assert disk.flush(PATIENCE)
    assert stuck_threads(PATIENCE) == [], "what has gone on meanwhile is not stuck"


def test_what_others_wait_for_is_given_back_while_the_process_stays(tmp_path: Path) -> None:
    """The port can be had and the pipe has an end, though the process lives; its files stay open."""
    program = (
        "import signal, socket, sys; from launcher.processes.stuck_threads import let_go_of_others\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)\n"
        "file, fifo = open(sys.argv[1], 'w'), open(sys.argv[2], 'w'); let_go_of_others()\n"
        "signal.sigwait([signal.SIGTERM]); file.write('still open'); file.close()\n"
    )
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", program, str(file), str(fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert fifo.read_text() == "", "a FIFO has a name, unlike a pipe"  # until its end
            port = int(process.stdout.read())

            assert process.poll() is None
            socket.create_server(("127.0.0.1", port)).close()
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert file.read_text() == "still open"


def test_where_no_descriptor_is_left_nothing_is_found_and_nothing_raised() -> None:
    program = (
        "import os, resource; from launcher.processes.stuck_threads import let_go_of_others, stuck_threads\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); assert stuck_threads(0) == []; let_go_of_others()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
