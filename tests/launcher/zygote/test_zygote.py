"""The zygote's own steps, one at a time: what it is started with, and waits that end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any, NoReturn

import pytest

from launcher.processes.exit_codes import LOST_PARENT, NO_LONGER_NEEDED, UNREADABLE_ORDER
from launcher.processes.message_format import MessageError
from launcher.records import console
from launcher.zygote import preloading, zygote
from launcher.zygote.protocol import (
    ORDERS,
    SETTINGS,
    Order,
    WorkerOrder,
    ZygoteSettings,
    order_from_file,
    order_to_file,
    packet_pair,
    receive_message,
    send_message,
)


class Exited(BaseException):
    """Raised in place of an exit."""


@pytest.fixture
def in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process in its session and with its name, let it exit by an exception only."""

    def leave(code: int) -> NoReturn:
        raise Exited(code)

    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "_exit", leave)
    for name in ("set_process_name", "die_with_parent"):
        monkeypatch.setattr(zygote, name, lambda _: None)
    monkeypatch.setattr(zygote, "rehearse", lambda: None)
    monkeypatch.setattr(zygote, "_out_of_the_way", lambda link: link)


def of_another_version(raw: bytes) -> bytes:
    return json.dumps({**json.loads(raw), "version": 0}).encode()


def test_an_order_arrives_through_its_file() -> None:
    order = WorkerOrder(("train.py", "\udcff"), False, {"A": "\udcff", "B": "x" * 300_000}, "out", "")
    assert order_from_file(order_to_file(order)) == order


def test_settings_of_another_version_are_refused_in_one_line() -> None:
    settings = of_another_version(SETTINGS.encode(ZygoteSettings(0, 1, (), (20, "text", False)))).decode()
    program = "from launcher.zygote.zygote import main; main(None)"
    done = subprocess.run([sys.executable, "-c", program, settings], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "cannot read its settings: a message of version 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("in_a_fork")
def test_a_zygote_speaks_in_its_own_name_and_as_the_launcher_does() -> None:
    console.follow(console.State(30, "json", True))
    ours, theirs = packet_pair()
    ours.close()
    with pytest.raises(Exited, match=str(NO_LONGER_NEEDED)):
        zygote.serve(theirs, os.getppid(), (), ())
    theirs.close()
    assert console.state() == (30, "json", True)
    assert console._console.speaker.source == "zygote"


@pytest.mark.usefixtures("in_a_fork")
def test_an_order_of_another_version_ends_the_parked_worker(capfd: pytest.CaptureFixture[str]) -> None:
    console.follow(console.State(format="json"), "zygote")
    ours, theirs = packet_pair()
    file = os.memfd_create("order")
    os.write(file, of_another_version(ORDERS.encode(WorkerOrder(("x",), False, {}, "", ""))))
    with pytest.raises(MessageError):
        order_from_file(os.dup(file))
    send_message(ours, Order(), [file])
    with pytest.raises(Exited, match=str(UNREADABLE_ORDER)):
        zygote._wait_for_order(theirs, -1, os.getppid())
    os.close(file)
    receive_message(ours)
    ours.close()
    theirs.close()
    told = json.loads(capfd.readouterr().err)
    assert "cannot read its order: a message of version 0" in told["text"]
    assert (told["source"], told["level"]) == ("zygote", "ERROR")


@pytest.mark.usefixtures("in_a_fork")
def test_a_worker_whose_middle_process_stays_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "_LONGEST_ADOPTION_SECONDS", 0.05)
    with socket.socket() as link, pytest.raises(Exited, match=str(LOST_PARENT)):
        zygote._wait_for_order(link, os.getppid(), 1)


def test_a_probe_that_is_not_gone_when_it_was_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in uninterruptible sleep; here the signal is kept from it."""
    probes: list[int] = []
    fork, kill = os.fork, os.kill

    def stuck_fork() -> int:
        probes.append(fork())
        if probes[-1] == 0:
            signal.pause()
            os._exit(0)
        return probes[-1]

    monkeypatch.setattr(preloading, "_LONGEST_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(preloading, "_LONGEST_KILL_SECONDS", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", stuck_fork)
        patched.setattr(os, "kill", lambda *_: None)
        why: Any = preloading._why_not_to_fork()
    kill(probes[0], signal.SIGKILL)
    os.waitpid(probes[0], 0)
    assert "does not get through the fork handlers" in why
