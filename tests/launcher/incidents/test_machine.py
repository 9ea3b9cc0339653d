"""What a machine tells of a failure: links, full file systems, those that hang, the kernel's log, memory kills."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.incidents.kernel_log import KernelLog
from launcher.incidents.machine import MachineEvidence
from tests.launcher.incidents.conftest import EATS_MEMORY, MIB, Clock, Kernel

PATIENCE = 180.0
ETHERNET = "sys/class/net/eth0"
PORT = "sys/class/infiniband/mlx5_0/ports/1"


class Kmsg:
    """A plain file in place of the kernel's log: what a look finds in it is one record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def log(self, text: str, machine: MachineEvidence) -> None:
        with open(self.path, "a") as file:
            file.write(f"4,1,999999999999,-;{text}\n")
        machine.look({})


@pytest.fixture
def kmsg(tmp_path: Path) -> Kmsg:
    return Kmsg(tmp_path / "kmsg")


@pytest.fixture
def evidence(kernel: Kernel, kmsg: Kmsg, tmp_path: Path, clock: Clock) -> Iterator[Callable[..., MachineEvidence]]:
    """Look at a machine whose files are below the test's folder, and whose shared memory is there and not full."""
    made: list[MachineEvidence] = []

    def make(*folders: Path) -> MachineEvidence:
        shared_memory = str(tmp_path / "shm")
        os.makedirs(shared_memory, exist_ok=True)
        folders_of_ranks = [str(folder) for folder in folders]
        made.append(MachineEvidence(folders_of_ranks, kernel.proc, kernel.sys, str(kmsg.path), shared_memory))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def links(kernel: Kernel) -> Kernel:
    """One Ethernet interface, one port of InfiniBand, and interfaces that are no links of the machine."""
    for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "tx_carrier_errors", "rx_packets"):
        kernel.write(f"{ETHERNET}/statistics/{name}", "5\n")
        kernel.write(f"sys/class/net/veth7/statistics/{name}", "5\n")
    kernel.write(f"{ETHERNET}/device/vendor", "0x15b3\n")
    kernel.write(f"{ETHERNET}/carrier", "1\n")
    kernel.write("sys/class/net/veth7/carrier", "1\n")
    kernel.write("sys/class/net/bonding_masters", "\n")
    for name in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards"):
        kernel.write(f"{PORT}/counters/{name}", "7\n")
    kernel.write(f"{PORT}/state", "4: ACTIVE\n")
    return kernel


def noted(machine: MachineEvidence) -> MachineEvidence:
    """Have it look at the links of the machine."""
    machine.look({})
    assert machine._background.flush(PATIENCE)
    return machine


def test_links_that_are_as_before_are_no_evidence(links: Kernel, evidence: Callable[..., MachineEvidence]) -> None:
    """Errors that were counted before the job, too."""
    machine = noted(evidence())
    assert machine.facts(PATIENCE) == machine.facts(PATIENCE) == ()


@pytest.mark.parametrize("name", ["rx_errors", "tx_errors", "tx_carrier_errors"])
def test_errors_of_an_interface_that_have_grown(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock, name: str
) -> None:
    machine = noted(evidence())
    clock.move(3)
    links.write(f"{ETHERNET}/statistics/{name}", "8\n")
    said = f"interface eth0: {name} has grown by 3, "
    assert machine.facts(PATIENCE) == (f"{said}0 s ago",)
    clock.move(4)
    assert machine.facts(PATIENCE) == (f"{said}4 s ago",), "whoever asks next is told the same"


@pytest.mark.parametrize(
    "name", ["link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards"]
)
def test_errors_of_a_port_that_have_grown(links: Kernel, evidence: Callable[..., MachineEvidence], name: str) -> None:
    machine = noted(evidence())
    links.write(f"{PORT}/counters/{name}", "8\n")
    assert machine.facts(PATIENCE) == (f"port mlx5_0/1: {name} has grown by 1, 0 s ago",)


def test_links_are_looked_at_every_ten_seconds(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    """A look costs reads of many files; what has grown is told since the last one."""
    machine = noted(evidence())
    for seconds, value in ((9, 6), (0.5, 7), (0.6, 9), (9, 10), (1.1, 11)):
        clock.move(seconds)
        links.write(f"{ETHERNET}/statistics/rx_errors", f"{value}\n")
        noted(machine)
    clock.move(3)
    assert machine.facts(PATIENCE) == (
        "interface eth0: rx_errors has grown by 4, 13 s ago",
        "interface eth0: rx_errors has grown by 2, 3 s ago",
    )


def test_what_has_changed_since_the_last_look_is_told_when_it_is_asked_for_and_once(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    machine = noted(evidence())
    clock.move(9)
    links.write(f"{ETHERNET}/statistics/rx_errors", "6\n")
    said = ("interface eth0: rx_errors has grown by 1, 0 s ago",)
    assert machine.facts(PATIENCE) == said
    clock.move(1.4)
    noted(machine)
    assert machine.facts(PATIENCE) == ("interface eth0: rx_errors has grown by 1, 1 s ago",)


def test_changes_of_links_are_told_for_a_quarter_of_an_hour(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    """A hang is found long after a link has flapped, and a generation may have ended meanwhile."""
    machine = noted(evidence())
    clock.move(10)
    links.write(f"{ETHERNET}/carrier", "0\n")
    links.write(f"{PORT}/counters/link_downed", "8\n")
    noted(machine)
    clock.move(500)
    machine.begin_anew()
    links.write(f"{ETHERNET}/carrier", "1\n")
    noted(machine)
    clock.move(400)
    back = "interface eth0: carrier became 1, and was 0 before, "
    assert machine.facts(PATIENCE) == (
        "port mlx5_0/1: link_downed has grown by 1, 900 s ago",
        "interface eth0: carrier became 0, and was 1 before, 900 s ago",
        f"{back}400 s ago",
    )
    clock.move(0.1)
    assert machine.facts(PATIENCE) == (f"{back}400 s ago",)
    clock.move(500)
    assert machine.facts(PATIENCE) == ()


def test_of_many_changes_the_last_ten_are_told(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    machine = noted(evidence())
    for number in range(1, 13):
        clock.move(1)
        links.write(f"{ETHERNET}/statistics/rx_errors", f"{5 + number * (number + 1) // 2}\n")
        facts = machine.facts(PATIENCE)
    assert facts == tuple(
        f"interface eth0: rx_errors has grown by {number}, {12 - number} s ago" for number in range(3, 13)
    )


def test_a_link_that_was_down_is_told_however_many_errors_were_counted_since_and_after_them(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    machine = noted(evidence())
    links.write(f"{ETHERNET}/carrier", "0\n")
    assert len(machine.facts(PATIENCE)) == 1
    for number in range(1, 13):
        clock.move(1)
        links.write(f"{ETHERNET}/statistics/rx_errors", f"{5 + number}\n")
        machine.facts(PATIENCE)
    *errors, state = machine.facts(PATIENCE)
    assert state == "interface eth0: carrier became 0, and was 1 before, 12 s ago"
    assert errors == [f"interface eth0: rx_errors has grown by 1, {seconds} s ago" for seconds in range(9, -1, -1)]


def test_of_a_link_that_flaps_the_last_ten_states_are_told_and_they_hide_no_errors(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    machine = noted(evidence())
    links.write(f"{PORT}/counters/link_downed", "8\n")
    assert len(machine.facts(PATIENCE)) == 1
    for number in range(12):
        clock.move(1)
        links.write(f"{ETHERNET}/carrier", f"{number % 2}\n")
        machine.facts(PATIENCE)
    assert machine.facts(PATIENCE) == (
        "port mlx5_0/1: link_downed has grown by 1, 12 s ago",
        *(
            f"interface eth0: carrier became {number % 2}, and was {1 - number % 2} before, {11 - number} s ago"
            for number in range(2, 12)
        ),
    )


@pytest.mark.parametrize("shown", [None, "", "no number\n"])
def test_a_carrier_that_cannot_be_read_is_down(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock, shown: str | None
) -> None:
    """As that of an interface that somebody has switched off."""

    def hide() -> None:
        links.write(f"{ETHERNET}/carrier", shown or "")
        if shown is None:
            (Path(links.sys).parent / ETHERNET / "carrier").unlink()

    machine = noted(evidence())
    hide()
    down = "interface eth0: carrier became 0, and was 1 before"
    assert machine.facts(PATIENCE) == (f"{down}, 0 s ago",)
    clock.move(2)
    links.write(f"{ETHERNET}/carrier", "1\n")
    up = "interface eth0: carrier became 1, and was 0 before"
    assert machine.facts(PATIENCE) == (f"{down}, 2 s ago", f"{up}, 0 s ago")


def test_before_the_first_look_no_link_has_changed(links: Kernel, evidence: Callable[..., MachineEvidence]) -> None:
    machine = evidence()
    links.write(f"{ETHERNET}/carrier", "0\n")
    links.write(f"{ETHERNET}/statistics/rx_errors", "99\n")
    assert machine.facts(PATIENCE) == ()


def test_links_that_go_down_and_come_back(
    links: Kernel, evidence: Callable[..., MachineEvidence], clock: Clock
) -> None:
    machine = noted(evidence())
    links.write(f"{ETHERNET}/carrier", "0\n")
    links.write(f"{PORT}/state", "1: DOWN\n")
    clock.move(4)
    assert machine.facts(PATIENCE) == (
        "interface eth0: carrier became 0, and was 1 before, 0 s ago",
        "port mlx5_0/1: state became 1, and was 4 before, 0 s ago",
    )
    clock.move(7)
    links.write(f"{ETHERNET}/carrier", "1\n")
    assert machine.facts(PATIENCE) == (
        "interface eth0: carrier became 0, and was 1 before, 7 s ago",
        "port mlx5_0/1: state became 1, and was 4 before, 7 s ago",
        "interface eth0: carrier became 1, and was 0 before, 0 s ago",
    )
    links.write(f"{PORT}/state", "4: ACTIVE\n")
    assert machine.facts(PATIENCE)[-1] == "port mlx5_0/1: state became 4, and was 1 before, 0 s ago", "not as an error"


def test_what_is_no_link_of_the_machine_or_no_error_is_not_looked_at(
    links: Kernel, evidence: Callable[..., MachineEvidence]
) -> None:
    """Most machines drop some packets all the time."""
    machine = noted(evidence())
    links.write("sys/class/net/veth7/statistics/rx_errors", "99\n")
    links.write("sys/class/net/veth7/carrier", "0\n")
    for name in ("rx_packets", "rx_dropped", "tx_dropped"):
        links.write(f"{ETHERNET}/statistics/{name}", "99\n")
    assert machine.facts(PATIENCE) == ()


def test_counters_that_begin_anew_and_links_that_come_or_go_are_no_errors(
    links: Kernel, evidence: Callable[..., MachineEvidence]
) -> None:
    machine = noted(evidence())
    links.write(f"{ETHERNET}/statistics/rx_errors", "0\n")
    links.write("sys/class/net/eth1/device/vendor", "0x15b3\n")
    links.write("sys/class/net/eth1/statistics/rx_errors", "99\n")
    links.write("sys/class/net/eth1/carrier", "0\n")
    shutil.rmtree(Path(links.sys) / "class/infiniband")
    assert machine.facts(PATIENCE) == ()


def test_what_cannot_be_read_is_left_out(links: Kernel, evidence: Callable[..., MachineEvidence]) -> None:
    links.write(f"{ETHERNET}/carrier", "")
    links.write(f"{PORT}/state", "\n")
    machine = noted(evidence())
    links.write(f"{ETHERNET}/statistics/rx_errors", "6\n")
    assert machine.facts(PATIENCE) == ("interface eth0: rx_errors has grown by 1, 0 s ago",)


def test_a_machine_that_shows_nothing_tells_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    machine = MachineEvidence([], missing, missing, missing, str(tmp_path))
    machine.look({0: 10})
    assert machine.facts(PATIENCE) == ()
    assert machine.memory_kill(0, 10, was_killed=True) is None
    machine.begin_anew()
    machine.close()


def sizes(**changes: int) -> SimpleNamespace:
    """What ``statvfs`` tells of a file system of 1 GiB that has room."""
    usual = {"f_frsize": 4096, "f_blocks": 1 << 18, "f_bavail": 1 << 17, "f_files": 1000, "f_favail": 900}
    return SimpleNamespace(**{**usual, **changes})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (sizes(), None),
        (sizes(f_blocks=1 << 20, f_bavail=(16 << 20) // 4096), None),
        (sizes(f_blocks=1 << 20, f_bavail=(16 << 20) // 4096 - 1), "is full: 16380 KiB of 4096 MiB are free"),
        (sizes(f_blocks=20_000, f_bavail=201), None),
        (sizes(f_blocks=20_000, f_bavail=199), "is full: 796 KiB of 78 MiB are free"),
        (sizes(f_bavail=0, f_frsize=512), "is full: 0 KiB of 128 MiB are free"),
        (sizes(f_blocks=0, f_bavail=0), None),
        (sizes(f_files=10_000, f_favail=15), "is full: it has room for 15 more files (inodes)"),
        (sizes(f_files=10_000, f_favail=16), None),
        (sizes(f_files=300, f_favail=3), None),
        (sizes(f_files=300, f_favail=2), "is full: it has room for 2 more files (inodes)"),
        (sizes(f_files=0, f_favail=0), None),
        (sizes(f_bavail=0, f_favail=0), "is full: 0 KiB of 1024 MiB are free"),
    ],
)
def test_a_file_system_that_is_full_is_told(
    evidence: Callable[..., MachineEvidence],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: SimpleNamespace,
    said: str | None,
) -> None:
    """A small one is full later; where it counts no files, as btrfs, or tells no size, nothing is missing."""
    logs = str(tmp_path / "logs")
    monkeypatch.setattr("launcher.incidents.machine.os.statvfs", lambda folder: found if folder == logs else sizes())
    assert evidence(tmp_path / "logs").facts(PATIENCE) == (() if said is None else (f"{logs} {said}",))


def test_shared_memory_comes_first_and_each_folder_once(
    evidence: Callable[..., MachineEvidence], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.incidents.machine.os.statvfs", lambda folder: sizes(f_bavail=0))
    facts = evidence(tmp_path / "logs", tmp_path / "shm", tmp_path / "logs").facts(PATIENCE)
    assert [fact.partition(" is full")[0] for fact in facts] == [str(tmp_path / "shm"), str(tmp_path / "logs")]


def test_a_folder_that_cannot_be_looked_at_is_told_with_the_reason(
    evidence: Callable[..., MachineEvidence], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what comes after it is looked at."""

    def statvfs(folder: str) -> SimpleNamespace:
        if folder.endswith("gone"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return sizes(f_bavail=0 if folder.endswith("logs") else 1 << 17)

    monkeypatch.setattr("launcher.incidents.machine.os.statvfs", statvfs)
    assert evidence(tmp_path / "gone", tmp_path / "logs").facts(PATIENCE) == (
        f"{tmp_path / 'gone'} cannot be looked at: No such file or directory",
        f"{tmp_path / 'logs'} is full: 0 KiB of 1024 MiB are free",
    )


IN_NAMESPACE = """
import contextlib, sys
from launcher.incidents.machine import MachineEvidence
full, files, room = sys.argv[1:]
with contextlib.suppress(OSError), open(f"{full}/x", "wb", buffering=0) as file:
    while file.write(bytes(4096)): pass
with contextlib.suppress(OSError):
    for number in range(300): open(f"{files}/{number}", "w").close()
facts = MachineEvidence(sys.argv[1:], kernel_log="/nowhere", shared_memory="/").facts(120)
print(*(fact for fact in facts if fact.startswith((full, files, room))), sep="\\n")
"""


def test_real_file_systems_that_are_full(tmp_path: Path) -> None:
    """One without a free byte, one without a free inode, one with both, in a mount namespace of their own."""
    places = [tmp_path / name for name in ("full", "files", "room")]
    setup = []
    for folder, options in zip(places, ("size=1m", "size=64m,nr_inodes=200", "size=64m,nr_inodes=200"), strict=True):
        folder.mkdir()
        setup.append(f"mount -t tmpfs -o {options} none {folder}")
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare")
    shell = [unshare, "--mount", "sh", "-ec"]
    tried = subprocess.run([*shell, "; ".join(setup)], capture_output=True, text=True, timeout=PATIENCE)
    if tried.returncode:
        pytest.skip(f"this user may mount nothing in a namespace: {tried.stderr.strip()}")
    command = [*shell, "; ".join([*setup, 'exec "$0" "$@"']), sys.executable, "-c", IN_NAMESPACE, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    full, files, _ = places
    assert done.stdout.splitlines() == [
        f"{full} is full: 0 KiB of 1 MiB are free",
        f"{files} is full: it has room for 0 more files (inodes)",
    ]


class Gate:
    """A file system that hangs until it is let go."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.left = 0

    def statvfs(self, folder: str) -> SimpleNamespace:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        self.left += 1
        return sizes(f_bavail=0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr("launcher.incidents.machine.os.statvfs", gate.statvfs)
    yield gate
    gate.opened.set()


def test_a_file_system_that_hangs_costs_its_evidence_and_nothing_else(
    evidence: Callable[..., MachineEvidence],
    kmsg: Kmsg,
    kernel: Kernel,
    gate: Gate,
    clock: Clock,
    tmp_path: Path,
) -> None:
    kernel.set("/launcher", kills=0)
    machine = evidence()
    kmsg.log("nfs: server ease not responding, still trying", machine)
    assert machine._background.flush(PATIENCE)
    for _ in range(7):
        (line,) = machine.facts(0.01)
        assert line.endswith("nfs: server ease not responding, still trying")
    assert gate.entered.wait(PATIENCE)
    assert gate.left == 0
    clock.move(20)
    machine.look({0: 10})
    kernel.set("/launcher", kills=1)
    assert machine.memory_kill(0, 10, was_killed=False) is not None

    gate.opened.set()
    assert machine._background.flush(PATIENCE)
    full, _ = machine.facts(PATIENCE)
    assert full == f"{tmp_path / 'shm'} is full: 0 KiB of 1024 MiB are free", "it has come back"


def test_a_look_waits_for_nothing_that_may_hang(
    links: Kernel, evidence: Callable[..., MachineEvidence], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers of links may be slow to answer, or stuck."""

    def listdir(folder: str) -> list[str]:
        gate.entered.set()
        assert gate.opened.wait(PATIENCE)
        return []

    machine = evidence()
    monkeypatch.setattr("launcher.incidents.machine._listed", listdir)
    machine.look({})
    assert gate.entered.wait(PATIENCE)
    assert not gate.opened.is_set()


def test_what_is_surest_comes_last(
    links: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg, gate: Gate
) -> None:
    gate.opened.set()
    machine = noted(evidence())
    links.write(f"{ETHERNET}/carrier", "0\n")
    kmsg.log("I/O error, dev sda", machine)
    facts = machine.facts(PATIENCE)
    assert [next(word for word in ("carrier", "full", "kernel") if word in fact) for fact in facts] == [
        "carrier",
        "full",
        "kernel",
    ]


def test_what_was_logged_before_a_generation_is_older_than_it(
    evidence: Callable[..., MachineEvidence], kmsg: Kmsg, clock: Clock
) -> None:
    machine = evidence()
    with open(kmsg.path, "a") as file:
        file.write("3,1,999999999999,-;I/O error, dev sda\n")
    machine.begin_anew()
    clock.move(30)
    assert machine.facts(PATIENCE) == ("kernel, 30.0 s ago: I/O error, dev sda",)


def test_a_kill_of_the_generation_before_is_not_told_again(
    evidence: Callable[..., MachineEvidence], kmsg: Kmsg, clock: Clock
) -> None:
    machine = evidence()
    kmsg.log("Out of memory: Killed process 77 (python)", machine)
    told = ("kernel, 1.0 s ago: Out of memory: Killed process 77 (python)",)
    clock.move(1)
    assert machine.facts(PATIENCE) == told
    assert machine.facts(PATIENCE, began_ns=clock.now_ns) == ()


def test_lines_of_the_kernel_from_the_last_minute_come_last_and_ten_at_most(
    links: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg, clock: Clock
) -> None:
    machine = evidence()
    kmsg.log("I/O error, dev sda, sector 0", machine)
    clock.move(50)
    kmsg.log("I/O error, dev sda, sector 1", noted(machine))
    links.write(f"{ETHERNET}/carrier", "0\n")
    assert machine.facts(PATIENCE) == (
        "interface eth0: carrier became 0, and was 1 before, 0 s ago",
        "kernel, 50.0 s ago: I/O error, dev sda, sector 0",
        "kernel, 0.0 s ago: I/O error, dev sda, sector 1",
    )
    clock.move(11)
    assert machine.facts(PATIENCE)[1:] == ("kernel, 11.0 s ago: I/O error, dev sda, sector 1",)
    for number in range(2, 14):
        kmsg.log(f"I/O error, dev sda, sector {number}", machine)
    numbers = [str(number) for number in range(4, 14)]
    assert [line.rpartition(" ")[2] for line in machine.facts(PATIENCE)[1:]] == numbers


def test_what_was_logged_since_the_last_look_is_read_when_it_is_asked_for(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    machine = evidence()
    kmsg.path.write_text("3,1,999999999999,-;I/O error, dev sda\n")
    assert machine.facts(PATIENCE) == ("kernel, 0.0 s ago: I/O error, dev sda",)
    kernel.set("/job", limit=10 * MIB, peak=10 * MIB)
    with open(kmsg.path, "a") as file:
        file.write(
            "6,1,999999999999,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job,task_memcg=/job,task=x,pid=10,uid=0\n"
        )
    said = f"out of memory, 10 of 10 MiB ({kernel.limit_file} of {kernel.group('/job')})"
    assert machine.memory_kill(0, 11, was_killed=True) is None, "of another process"
    assert machine.memory_kill(0, 10, was_killed=True) == said


def test_what_the_kernel_has_said_of_a_process_is_more_than_what_groups_count(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts would blame the group of the rank; but the machine had no memory left, says the kernel."""
    kernel.set("/job", limit=10 * MIB, peak=10 * MIB)
    for pid in (10, 11):
        kernel.put(pid, "/job")
    machine = evidence()
    machine.look({0: 10, 1: 11})
    kernel.set("/job", kills=3, hits=1)
    kmsg.log("oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/job,task=x,pid=10,uid=0", machine)
    of_machine, of_group = "out of memory of the machine, which has 16384 MiB", "out of memory, 10 of 10 MiB"
    assert machine.memory_kill(0, 10, was_killed=True) == of_machine
    assert (machine.memory_kill(0, 10, was_killed=False) or "").startswith(of_group), "it was not killed itself"
    assert machine.memory_kill(1, 11, was_killed=True) is None, "it would be in the log"
    monkeypatch.setattr("launcher.incidents.kernel_log.in_first_pid_namespace", lambda: False)
    assert (machine.memory_kill(0, 10, was_killed=True) or "").startswith(of_group)
    assert (machine.memory_kill(1, 11, was_killed=True) or "").startswith(of_group)


NAMES_THE_GROUP = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job,task_memcg=/job,task=x,pid=10,uid=0"
NAMES_NO_GROUP = "Memory cgroup out of memory: Killed process 10 (python) total-vm:1kB, UID:0"


@pytest.mark.parametrize("text", [NAMES_THE_GROUP, NAMES_NO_GROUP])
def test_a_kill_that_the_kernel_has_named_is_none_of_another_rank(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg, text: str
) -> None:
    """It is counted as well; who has ended otherwise has not needed that process. The next kill is one again."""
    kernel.set("/job", kills=3, limit=10 * MIB, peak=10 * MIB)
    for pid in (10, 11):
        kernel.put(pid, "/job")
    machine = evidence()
    machine.look({0: 10, 1: 11})
    kernel.set("/job", kills=4, hits=1)
    kmsg.log(text, machine)
    said = f"out of memory, 10 of 10 MiB ({kernel.limit_file} of {kernel.group('/job')})"
    assert machine.memory_kill(0, 10, was_killed=True) == said
    assert machine.memory_kill(1, 11, was_killed=False) is None
    kernel.set("/job", kills=5)
    assert machine.memory_kill(1, 11, was_killed=False) == said


def test_a_kill_that_the_kernel_has_named_uses_up_no_second_one(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    kernel.set("/job", kills=3, limit=10 * MIB, peak=10 * MIB)
    for pid in (10, 11):
        kernel.put(pid, "/job")
    machine = evidence()
    machine.look({0: 10, 1: 11})
    kernel.set("/job", kills=5, hits=1)
    kmsg.log(NAMES_THE_GROUP, machine)
    assert machine.memory_kill(0, 10, was_killed=True) is not None
    assert machine.memory_kill(1, 11, was_killed=False) is not None, "it may have needed the other one"


def test_a_group_whose_name_the_kernel_has_escaped_is_found(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    group = r"/ft\x2dtest.slice"
    kernel.set(group, limit=10 * MIB, peak=10 * MIB)
    machine = evidence()
    logged = group.replace("\\", r"\x5c")
    kmsg.log(NAMES_THE_GROUP.replace("/job", logged), machine)
    said = f"out of memory, 10 of 10 MiB ({kernel.limit_file} of {kernel.group(group)})"
    assert machine.memory_kill(0, 10, was_killed=True) == said


def test_a_kill_whose_group_the_kernel_has_not_named_is_told_from_what_groups_count(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    kernel.set("/job", kills=3, limit=10 * MIB, peak=10 * MIB)
    for pid in (10, 11, 12):
        kernel.put(pid, "/job")
    machine = evidence()
    machine.look({0: 10, 1: 11, 2: 12})
    for pid in (10, 12):
        kmsg.log(f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB, UID:0", machine)
    kernel.set("/job", kills=4, hits=1)
    said = f"out of memory, 10 of 10 MiB ({kernel.limit_file} of {kernel.group('/job')})"
    assert machine.memory_kill(1, 11, was_killed=True) is None, "it would be in the log"
    assert machine.memory_kill(0, 10, was_killed=True) == said
    assert machine.memory_kill(2, 12, was_killed=True) == "out of memory", "no more than one was counted"


def test_after_lines_were_overwritten_what_groups_count_tells_of_kills_again(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log could have told of them and does not, as there was too much in it."""
    kernel.set("/job", kills=3, limit=10 * MIB, peak=10 * MIB)
    kernel.put(10, "/job")
    machine = evidence()
    machine.look({0: 10})
    kernel.set("/job", kills=4, hits=1)
    assert machine.memory_kill(0, 10, was_killed=True) is None, "it would be in the log"
    answers = [BrokenPipeError(), BlockingIOError()]

    def read(descriptor: int, size: int) -> bytes:
        raise answers.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr("launcher.incidents.kernel_log.os", SimpleNamespace(read=read))
        machine.look({0: 10})
    assert answers == []
    said = f"out of memory, 10 of 10 MiB ({kernel.limit_file} of {kernel.group('/job')})"
    assert machine.memory_kill(0, 10, was_killed=True) == said


def test_a_kill_that_was_logged_long_ago_is_that_of_another_process(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg, clock: Clock
) -> None:
    machine = evidence()
    kmsg.log("oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/job,task=x,pid=10,uid=0", machine)
    clock.move(59)
    assert machine.memory_kill(0, 10, was_killed=True) is not None
    clock.move(2)
    assert machine.memory_kill(0, 10, was_killed=True) is None


def test_without_a_log_of_the_kernel_the_counts_tell(
    kernel: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    kmsg.path.unlink()
    kernel.set("/job", kills=3, limit=10 * MIB, peak=10 * MIB)
    kernel.put(10, "/job")
    machine = evidence()
    machine.look({0: 10})
    assert machine.memory_kill(0, 10, was_killed=True) is None
    kernel.set("/job", kills=4, hits=1)
    assert (machine.memory_kill(0, 10, was_killed=True) or "").startswith("out of memory, 10 of 10 MiB")
    kernel.set("/job", kills=5)
    machine.begin_anew()
    assert machine.memory_kill(0, 10, was_killed=True) is None, "its group is forgotten"


def test_ranks_that_were_seen_with_a_gpu_are_remembered_until_the_next_generation(
    evidence: Callable[..., MachineEvidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has ended shows nothing of it any more."""
    with_a_gpu = {11}
    monkeypatch.setattr("launcher.incidents.machine.uses_a_gpu", lambda pid: pid in with_a_gpu)
    machine = evidence()
    machine.look({0: 10, 1: 11})
    with_a_gpu.clear()
    machine.look({0: 10, 1: 11})
    assert machine.gpu_users == {1}
    machine.begin_anew()
    assert machine.gpu_users == set()


def test_after_it_was_closed_only_the_log_is_silent(
    links: Kernel, evidence: Callable[..., MachineEvidence], kmsg: Kmsg
) -> None:
    machine = noted(evidence())
    machine.close()
    kmsg.log("I/O error, dev sda", machine)
    links.write(f"{ETHERNET}/carrier", "0\n")
    assert machine.facts(PATIENCE) == ("interface eth0: carrier became 0, and was 1 before, 0 s ago",)


def test_the_real_kernel_names_a_process_that_nobody_has_looked_at(
    memory_groups: Callable[[int], Path],
    real_kernel_log: KernelLog,
    spawn: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    """Its group is told although it was never noted: the log has its number."""
    group = memory_groups(64 * MIB)
    eater = spawn(EATS_MEMORY)
    (group / "cgroup.procs").write_text(str(eater.pid))
    machine = MachineEvidence([], shared_memory=str(tmp_path))
    assert eater.communicate("\n", PATIENCE)[0] == ""
    assert eater.returncode == -signal.SIGKILL
    real_kernel_log.read()
    if real_kernel_log.memory_kill_of(eater.pid, 0) is None:
        pytest.skip("the kernel has logged too many kills just now to log this one")

    said = machine.memory_kill(0, eater.pid, was_killed=True) or ""
    assert said.startswith("out of memory, 6")
    assert said.endswith(f" of {group})")
    assert any(f"Killed process {eater.pid} (python" in fact for fact in machine.facts(PATIENCE))
    machine.close()
