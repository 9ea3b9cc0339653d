"""The launcher's hold on a zygote: made by fork or by exec, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import attrs

from launcher.processes import send_signal
from launcher.zygote import serve
from launcher.zygote_protocol import WorkerOrder, read_at_import, receive_frame

__all__ = ["Zygote", "import_environment"]

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Our own folder comes last, where it can shadow nothing; the first place is kept for the script's folder.
_PROGRAM = (
    "import sys; sys.path[0] = '/dev/null'; home = sys.argv.pop(1); home in sys.path or sys.path.append(home); "
    "from launcher.zygote import main; main()"
)


@attrs.define(eq=False)
class Zygote:
    """The launcher's hold on a zygote process."""

    channel: socket.socket
    pid: int
    pidfd: int
    has_reported: bool = False
    was_waited_for: bool = False
    unsafe: str | None = None
    import_time: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def by_fork(cls, preload: Sequence[str], harmless_threads: int) -> Zygote | WorkerOrder:
        """Fork this process, which has imported torch and nothing that would not survive.

        Returns:
            The zygote; or, in a worker that the zygote has forked in its turn, what that is to become.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.setsid()  # a Ctrl-C at the terminal is the launcher's business
            return serve(theirs, launcher, preload, harmless_threads)
        theirs.close()
        return cls(ours, pid, os.pidfd_open(pid))

    @classmethod
    def by_exec(cls, preload: Sequence[str]) -> Zygote:
        """Start a zygote as a new interpreter; it reports when it has imported everything."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            settings = {"channel": theirs.fileno(), "launcher": os.getpid(), "preload": list(preload)}
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, _HOME, json.dumps(settings)],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        process.returncode = 0  # collected by us
        return cls(ours, process.pid, os.pidfd_open(process.pid))

    def read_report(self) -> None:
        """Wait for the first word, which says whether forking is safe."""
        report = receive_frame(self.channel)
        self.has_reported = True
        self.unsafe = "the zygote ended before it was ready" if report is None else report["unsafe"]
        self.import_time = {} if report is None else report["import_time"]

    def close(self) -> None:
        """End the process, collect it."""
        send_signal(self.pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.channel.close()


@contextlib.contextmanager
def import_environment(wanted: Mapping[str, str] | None) -> Iterator[None]:
    """What a child made inside the block will find of the variables that are read at import."""
    if wanted is None:
        yield
        return
    before = dict(os.environ)
    target = read_at_import(wanted)
    for name in read_at_import(before).keys() - target.keys():
        del os.environ[name]
    os.environ.update(target)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
