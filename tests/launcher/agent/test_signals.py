"""Signals to the launcher: when they are raised, what is passed on, what is left alone."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from launcher.agent.signals import SignalInbox
from resilience_core.errors import ConfigError

EVERY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def inbox() -> Iterator[Callable[[], SignalInbox]]:
    """Make an inbox that has taken over; what was there before is put back at the end."""
    before = {number: signal.getsignal(number) for number in EVERY}

    def make(names: str = "SIGTERM,SIGINT,SIGHUP") -> SignalInbox:
        made = SignalInbox(names)
        made.install()
        return made

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


def is_readable(inbox: SignalInbox) -> bool:
    return bool(select.select([inbox.descriptor], [], [], 0)[0])


def test_a_signal_is_noted_and_waits_until_it_is_asked_for(inbox: Callable[[], SignalInbox]) -> None:
    ours = inbox()
    ours.raise_pending()
    assert not is_readable(ours)

    signal.raise_signal(signal.SIGTERM)

    assert is_readable(ours)
    ours.drain()
    assert not is_readable(ours)
    with pytest.raises(SignalException) as raised:
        ours.raise_pending()
    assert raised.value.sigval == signal.SIGTERM
    ours.raise_pending()


def test_in_a_wait_of_torchs_it_is_raised_as_it_comes_but_not_where_something_is_made(
    inbox: Callable[[], SignalInbox],
) -> None:
    ours, made = inbox(), []

    def wait() -> None:
        with ours.raised_at_once():
            with ours.deferred():
                signal.raise_signal(signal.SIGTERM)
                made.append("whole")
            ours.raise_pending()
            made.append("too much")

    with pytest.raises(SignalException):
        wait()
    assert made == ["whole"]
    signal.raise_signal(signal.SIGHUP)  # the second one: the end has begun, and is not interrupted
    ours.raise_pending()


def test_one_that_came_before_a_wait_of_torchs_is_not_lost(inbox: Callable[[], SignalInbox]) -> None:
    ours = inbox()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SignalException), ours.raised_at_once():
        pytest.fail("the wait began all the same")


def test_only_a_second_ctrl_c_insists(inbox: Callable[[], SignalInbox]) -> None:
    ours = inbox()
    signal.raise_signal(signal.SIGINT)
    assert ours.first is signal.SIGINT
    signal.raise_signal(signal.SIGTERM)
    assert not ours.is_forced
    signal.raise_signal(signal.SIGINT)
    assert ours.is_forced


def test_a_scheduler_may_ask_twice_without_insisting(inbox: Callable[[], SignalInbox]) -> None:
    ours = inbox()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert not ours.is_forced


def test_under_nohup_a_hang_up_ends_nothing(inbox: Callable[[], SignalInbox]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ours = inbox()
    signal.raise_signal(signal.SIGHUP)
    assert ours.first is None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_announcements_are_passed_on_once_unless_they_end_the_job(inbox: Callable[..., SignalInbox]) -> None:
    ours = inbox("SIGTERM,SIGUSR2")
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert is_readable(ours)
    assert ours.first is None
    assert ours.take_forwarded() == [signal.SIGUSR1]
    assert ours.take_forwarded() == []
    signal.raise_signal(signal.SIGUSR2)
    assert ours.first is signal.SIGUSR2


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--signals-to-handle: unknown signal 'SIGNAL'"):
        SignalInbox("SIGTERM,SIGNAL")


# ---- before the launcher is up --------------------------------------------------------------------------

EARLY = """
import signal, sys
from launcher.command_line import early_signals
early_signals.watch()
print("importing", flush=True)
signal.sigtimedwait([], 60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_that_comes_while_the_launcher_imports_ends_it_with_one_line(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", EARLY], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert (
        said.decode() == f"ft_launcher: ended by {number.name} before a worker was started; exit code {128 + number}\n"
    )


def test_what_is_ignored_stays_ignored_while_the_launcher_imports() -> None:
    """As under nohup, and in the background of a shell."""
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + EARLY.replace("60)", "0)")
    program += "signal.raise_signal(signal.SIGHUP); print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    assert done.stdout.split() == ["importing", "True"]


# ---- closed descriptors ---------------------------------------------------------------------------------


def test_closed_standard_descriptors_are_taken_before_a_socket_gets_their_number() -> None:
    program = (
        "import os, socket, sys; from launcher.processes.streams import open_missing_descriptors; "
        "open_missing_descriptors(); "
        "print('nobody sees this'); print('nor this', file=sys.stderr); "
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]; "
        "ok = links == ['/dev/null'] * 3 and socket.socket().fileno() > 2 and all(map(os.get_inheritable, range(3))); "
        "sys.stdin.read(); os._exit(0 if ok else 1)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 0<&- 1>&- 2>&-', sys.executable, program], timeout=180, check=False
    )
    assert done.returncode == 0


def test_open_standard_descriptors_stay_what_they_are() -> None:
    program = (
        "from launcher.processes.streams import open_missing_descriptors; open_missing_descriptors(); print('seen')"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    assert done.stdout == "seen\n"
