"""The kernel's log: what of it may matter, read from something that behaves like /dev/kmsg, and from the real one."""

from __future__ import annotations

import collections
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.incidents import kernel_log
from launcher.incidents.kernel_log import KernelLog
from tests.launcher.incidents.conftest import Clock

PATIENCE = 180.0
MOST_AT_ONCE, MOST_KEPT = kernel_log._MOST_AT_ONCE, kernel_log._MOST_KEPT
LATER = 10**12
"""Microseconds; a time that has not come yet is that of the read."""

recorded_memory_kill = (
    b"4,8498,15104320528,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
    b"4,8505,15104320540,-;CPU: 0 UID: 0 PID: 11006 Comm: python Not tainted 6.18.44-fc-v657 #1 PREEMPT(none) \n",
    b"6,8579,15104320698,-;[  11006]     0 11006   338606   176210   169649     6561         0  1712128        0"
    b"             0 python\n",
    b"6,8580,15104320702,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"oom_memcg=/culprits-6a07ba638869,task_memcg=/culprits-6a07ba638869,task=python,pid=11006,uid=0\n",
    b"3,8581,15104320722,-;Memory cgroup out of memory: Killed process 11006 (python) total-vm:1354424kB, "
    b"anon-rss:678596kB, file-rss:26244kB, shmem-rss:0kB, UID:0 pgtables:1672kB oom_score_adj:0\n",
)
"""Linux 6.18.44, a process in a group of version 1; the call trace and the account of memory are left out."""
recorded_segfault = (
    b"6,8738,15184558500,-;python[14019]: segfault at 0 ip 00007f9fd5785ad8 sp 00007f9fd41f3668 error 4 in "
    b"libc.so.6[167ad8,7f9fd5644000+156000] likely on CPU 1 (core 1, socket 0)\n"
)
recorded_io_error = (
    b"3,9273,15638126142,-;I/O error, dev loop0, sector 1024 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2\n"
)
"""Linux 6.18.44, a loop device whose file was cut."""
recorded_of_no_interest = (
    b"6,6667,12423453755,-;bridge: port 7(p2-2) entered forwarding state\n",
    b"6,8800,15499716748,-;p3-1: entered promiscuous mode\n",
    *recorded_memory_kill[:4],
)

# Of machines elsewhere, as public reports show them; numbers of processes, devices and addresses are others.
recorded_xids = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:db:00): 31, pid=4321, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS "
    "GPCCLIENT_T1_10 faulted @ 0x7f00_90743000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
)
recorded_without_xid = (
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
)
recorded_links_down = (
    "mlx5_core 0000:53:00.0 enp83s0f0np0: Link down",
    "igb 0000:00:14.0 eth0: igb: eth0 NIC Link is Down",
    "igc 0000:05:00.0 eth5: NIC Link is Down",
)
made_up_links_down = ("nic_of_ours 0000:06:00.0 eth1: Link DOWN", "nic_of_ours 0000:06:00.0 eth1: link is DOWN")
"""As drivers of other makers might write it."""
recorded_hung_tasks = (
    "INFO: task python3:5604 blocked for more than 120 seconds.",
    "INFO: task jbd2/vda1-8:404 blocked for more than 122 seconds.",
)
recorded_others = (
    "Buffer I/O error on dev nvme0n1, logical block 62514752, async page read",
    "nfs: server ease not responding, still trying",
    "watchdog: BUG: soft lockup - CPU#40 stuck for 26s! [python3:510]",
)
recorded_of_disks = (
    "critical medium error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
)
recorded_kill_of_the_machine = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice/user-1000.slice/user@1000.service,task=perl,pid=1440763,uid=1000",
    "Out of memory: Killed process 1440763 (perl) total-vm:87033376kB, anon-rss:60356340kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:1000 pgtables:169956kB oom_score_adj:0",
)
recorded_kill_before_linux_5 = (
    "Memory cgroup out of memory: Kill process 42453 (memcg_test_1) score 0 or sacrifice child",
    "Out of memory: Kill process 21518 (python2) score 752 or sacrifice child",
)
"""A child may be killed in its place; the line that follows tells which process was."""
recorded_killed_before_linux_5 = (
    "Killed process 42453 (memcg_test_1) total-vm:19100kB, anon-rss:12kB, file-rss:1404kB, shmem-rss:0kB",
    "Killed process 21518, UID 0, (python2) total-vm:8096kB, anon-rss:7040kB, file-rss:404kB",
)


class Device:
    """Behaves as the kernel's ``Documentation/ABI/testing/dev-kmsg`` says; stands in for ``os`` in the module.

    One record for each read; EAGAIN where there is none; EPIPE, once, where records were overwritten before they were
    read; EINVAL where a record does not fit. Its descriptors are real ones, of another device.
    """

    def __init__(self) -> None:
        self.records: collections.deque[bytes] = collections.deque()
        self.room = 100_000
        self.has_lost = False
        self.reads = 0
        self.flags = 0
        self.error: int | None = None
        """What every read fails with."""
        self.is_endless = False
        """Whatever is read, the next record is there already."""
        self.refuses = False
        self.descriptor = -1

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def log(self, *records: bytes | str) -> None:
        for record in records:
            self.records.append(record if isinstance(record, bytes) else f"4,1,{LATER},-;{record}\n".encode())
            if len(self.records) > self.room:
                self.records.popleft()
                self.has_lost = True

    def open(self, path: str, flags: int) -> int:
        self.flags = flags
        if self.refuses:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        self.descriptor = os.open("/dev/full", flags)
        return self.descriptor

    def lseek(self, descriptor: int, offset: int, how: int) -> int:
        assert (descriptor, offset) == (self.descriptor, 0)
        if how == os.SEEK_END:
            self.records.clear()
        return 0

    def read(self, descriptor: int, size: int) -> bytes:
        os.fstat(descriptor)
        self.reads += 1
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        if self.has_lost:
            self.has_lost = False
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        if not self.records:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if len(self.records[0]) > size:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self.records[0] if self.is_endless else self.records.popleft()

    def is_open(self) -> bool:
        return os.path.exists(f"/proc/self/fd/{self.descriptor}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(kernel_log, "os", device)
    return device


@pytest.fixture
def log(device: Device, clock: Clock) -> Iterator[KernelLog]:
    log = KernelLog()
    yield log
    log.close()


def told(log: KernelLog) -> list[str]:
    """What it tells of everything that was read, without the time."""
    log.read()
    return [line.partition(": ")[2] for line in log.since(0)]


@pytest.mark.parametrize(
    "record",
    [
        recorded_memory_kill[4],
        recorded_segfault,
        recorded_io_error,
        recorded_kill_of_the_machine[1],
        *recorded_kill_before_linux_5,
        *recorded_xids,
        *recorded_without_xid,
        *recorded_of_disks,
        *recorded_links_down,
        *made_up_links_down,
        *recorded_hung_tasks,
        *recorded_others,
    ],
)
def test_lines_that_matter_are_told(log: KernelLog, device: Device, record: bytes | str) -> None:
    device.log(*recorded_of_no_interest, record, *recorded_of_no_interest)
    text = record if isinstance(record, str) else record.decode().partition(";")[2].strip()
    assert told(log) == [text]


def test_what_was_logged_before_is_not(device: Device) -> None:
    device.log(recorded_segfault)
    log = KernelLog()
    assert told(log) == []
    device.log(recorded_io_error)
    assert len(told(log)) == 1
    assert len(told(log)) == 1, "read once"
    log.close()


def test_the_device_is_opened_so_that_no_read_waits_and_no_child_has_it(log: KernelLog, device: Device) -> None:
    assert device.flags & os.O_NONBLOCK
    assert device.flags & os.O_CLOEXEC
    assert device.flags & os.O_ACCMODE == os.O_RDONLY


def test_lines_are_told_with_their_age_the_oldest_first(log: KernelLog, device: Device, clock: Clock) -> None:
    device.log(recorded_io_error)
    log.read()
    clock.move(2)
    between_ns = clock.now_ns
    device.log(recorded_links_down[0], recorded_hung_tasks[0])
    log.read()
    clock.move(1.5)
    assert log.since(between_ns) == [
        f"kernel, 1.5 s ago: {recorded_links_down[0]}",
        f"kernel, 1.5 s ago: {recorded_hung_tasks[0]}",
    ]
    assert [line[:18] for line in log.since(0)] == ["kernel, 3.5 s ago:", "kernel, 1.5 s ago:", "kernel, 1.5 s ago:"]
    assert log.since(between_ns + 1) == []


@pytest.mark.parametrize(
    ("stamp", "seconds_ago"),
    [("1004000000", 3.0), ("1005999999", 1.0), ("7", 4.0), ("1999000000", 1.0), ("-", 1.0), ("", 1.0)],
)
def test_a_line_is_as_old_as_its_stamp_says_as_far_as_that_can_be(
    device: Device, clock: Clock, stamp: str, seconds_ago: float
) -> None:
    """The kernel's clock goes its own way; but a line was logged after the read before, and before its own."""
    log = KernelLog()
    clock.move(3)
    log.read()
    clock.move(3)
    device.log(f"3,7,{stamp},-;I/O error, dev sda\n".encode(), b"3;I/O error, dev sdb\n")
    log.read()
    clock.move(1)
    assert log.since(0) == [
        f"kernel, {seconds_ago:.1f} s ago: I/O error, dev sda",
        "kernel, 1.0 s ago: I/O error, dev sdb",
    ]
    log.close()


def test_a_kill_of_long_ago_is_that_of_another_process_of_the_same_number(
    log: KernelLog, device: Device, clock: Clock
) -> None:
    device.log(*recorded_memory_kill)
    log.read()
    at_ns = clock.now_ns
    assert log.memory_kill_of(11006, at_ns) == ("/culprits-6a07ba638869",)
    assert log.memory_kill_of(11006, at_ns + 1) is None


@pytest.mark.parametrize("text", ["Out of memory: Killed process 77 (python)", "I/O error, dev sda"])
def test_a_kill_before_a_generation_began_is_not_its(log: KernelLog, device: Device, clock: Clock, text: str) -> None:
    device.log(text)
    log.read()
    logged_ns = clock.now_ns
    clock.move(1)
    is_kill = "Killed" in text
    assert log.since(0, logged_ns) == [f"kernel, 1.0 s ago: {text}"]
    assert log.since(0, logged_ns + 1) == ([] if is_kill else [f"kernel, 1.0 s ago: {text}"])


def test_a_kill_may_be_that_of_another_job_where_numbers_tell_nothing(
    log: KernelLog, device: Device, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "in_first_pid_namespace", lambda: False)
    device.log("Memory cgroup out of memory: Killed process 77 (python)", "I/O error, dev sda")
    log.read()
    killed, failed = log.since(0)
    assert killed.endswith(
        "(python) (the number is the machine's, not of this PID namespace; it may be a process of another job)"
    )
    assert failed.endswith("dev sda")


def test_in_a_pid_namespace_of_its_own_the_numbers_are_others(
    log: KernelLog, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are told all the same."""
    device.log(*recorded_memory_kill)
    assert len(told(log)) == 1
    assert log.tells_of_all_kills
    monkeypatch.setattr(kernel_log, "in_first_pid_namespace", lambda: False)
    assert log.memory_kill_of(11006, 0) is None
    assert not log.tells_of_all_kills


def test_a_process_that_was_killed_for_the_limit_of_its_group(log: KernelLog, device: Device) -> None:
    device.log(*recorded_memory_kill)
    log.read()
    assert log.memory_kill_of(11006, 0) == ("/culprits-6a07ba638869",)
    assert log.memory_kill_of(11007, 0) is log.memory_kill_of(1100, 0) is None


def test_a_process_that_was_killed_since_the_machine_had_none_left(log: KernelLog, device: Device) -> None:
    device.log(*recorded_kill_of_the_machine)
    log.read()
    assert log.memory_kill_of(1440763, 0) == ("",)


def test_the_group_whose_limit_was_hit_may_be_above_the_one_of_the_process(log: KernelLog, device: Device) -> None:
    device.log(recorded_memory_kill[3].replace(b"oom_memcg=/culprits-6a07ba638869", b"oom_memcg=/slurm/job_7"))
    log.read()
    assert log.memory_kill_of(11006, 0) == ("/slurm/job_7",)


def test_a_number_that_the_kernel_has_given_away_again_is_that_of_the_last_one(log: KernelLog, device: Device) -> None:
    device.log(recorded_memory_kill[3].replace(b"oom_memcg=/culprits-6a07ba638869", b"oom_memcg=/slurm/job_7"))
    device.log(*recorded_memory_kill)
    log.read()
    assert log.memory_kill_of(11006, 0) == ("/culprits-6a07ba638869",)


@pytest.mark.parametrize(
    ("record", "pid"),
    [
        (recorded_memory_kill[4], 11006),
        (recorded_kill_of_the_machine[1], 1440763),
        (recorded_killed_before_linux_5[0], 42453),
        (recorded_killed_before_linux_5[1], 21518),
    ],
)
def test_that_a_process_was_killed_is_known_without_the_line_that_names_its_group(
    log: KernelLog, device: Device, record: bytes | str, pid: int
) -> None:
    """It is left out where many are killed at once, and before Linux 5."""
    device.log(record)
    log.read()
    assert log.memory_kill_of(pid, 0) == (None,)
    assert log.memory_kill_of(pid // 10, 0) is None


@pytest.mark.parametrize(("record", "pid"), [*zip(recorded_kill_before_linux_5, (42453, 21518), strict=True)])
def test_a_process_that_was_chosen_has_not_been_killed_by_that(
    log: KernelLog, device: Device, record: str, pid: int
) -> None:
    """Of what was chosen before Linux 5, a child is killed rather."""
    device.log(record, "Killed process 77 (child) total-vm:19100kB, anon-rss:12kB, file-rss:1404kB, shmem-rss:0kB")
    assert told(log) == [record]
    assert log.memory_kill_of(pid, 0) is None
    assert log.memory_kill_of(77, 0) == (None,)


@pytest.mark.parametrize(
    "text", ["Unkilled process 77", "NotKilled process 77", "Killed process x77", "killed process 77"]
)
def test_other_lines_about_processes_are_no_kills(log: KernelLog, device: Device, text: str) -> None:
    device.log(text)
    log.read()
    assert log.memory_kill_of(77, 0) is None


def test_a_kill_without_its_group_is_no_older_than_asked_for(log: KernelLog, device: Device, clock: Clock) -> None:
    device.log(recorded_memory_kill[4])
    log.read()
    assert log.memory_kill_of(11006, clock.now_ns) == (None,)
    assert log.memory_kill_of(11006, clock.now_ns + 1) is None


@pytest.mark.parametrize("order", [(3, 4), (4, 3)])
def test_of_two_lines_the_one_that_names_the_group_counts(
    log: KernelLog, device: Device, order: tuple[int, int]
) -> None:
    device.log(*(recorded_memory_kill[number] for number in order))
    log.read()
    assert log.memory_kill_of(11006, 0) == ("/culprits-6a07ba638869",)


@pytest.mark.parametrize(
    ("logged", "group"),
    [
        (r"/ft\x5cx2dtest.slice", r"/ft\x2dtest.slice"),
        (r"/a\x5cx5cx2d", r"/a\x5cx2d"),
        (r"/a\x5c\x5cb", r"/a\\b"),
        (r"/a\x09b", "/a\tb"),
        ("/x5c,x2d", "/x5c,x2d"),
    ],
)
def test_what_the_kernel_has_escaped_in_the_name_of_a_group_is_undone_once(
    log: KernelLog, device: Device, logged: str, group: str
) -> None:
    """Names of systemd's have backslashes of their own, which the kernel escapes."""
    device.log(f"oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={logged},task_memcg={logged},task=x,pid=11006,uid=0")
    log.read()
    assert log.memory_kill_of(11006, 0) == (group,)


@pytest.mark.parametrize(
    ("group", "of_task", "task"),
    [
        ("/a,b", "/a,b", "python"),
        ("/a,task=x,pid=7,uid=0", "/a/b", "python"),
        ("/a", "/a/b,c,pid=7", "python"),
        ("/a", "/a,task=x,pid=7", "python"),
        ("/a", "/a", "x,pid=7"),
        ("/a", "/a", "x,pid=7,uid=0"),
        ("/a", "/a", "pid=7"),
        ("/a b", "/a b", "a task_memcg=/"),
    ],
)
@pytest.mark.parametrize("uid", [",uid=1000", ""])
def test_commas_in_names_of_groups_and_processes(
    log: KernelLog, device: Device, group: str, of_task: str, task: str, uid: str
) -> None:
    """The number of the user is told since Linux 5.1."""
    device.log(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-3,5,"
        f"oom_memcg={group},task_memcg={of_task},task={task},pid=11006{uid}"
    )
    log.read()
    assert log.memory_kill_of(11006, 0) == (group,)
    assert log.memory_kill_of(7, 0) is None


@pytest.mark.parametrize("of_task", ["/a,b", "/a,pid=7,uid=0"])
def test_commas_where_the_machine_had_none_left(log: KernelLog, device: Device, of_task: str) -> None:
    device.log(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        f"task_memcg={of_task},task=x,pid=8,pid=11006,uid=0"
    )
    log.read()
    assert log.memory_kill_of(11006, 0) == ("",)
    assert log.memory_kill_of(7, 0) is log.memory_kill_of(8, 0) is None


def test_of_a_record_only_the_text_is_told(log: KernelLog, device: Device) -> None:
    """Who has logged it may come before the text, and key and value pairs are on lines that follow."""
    device.log(b"3,7,1,-,caller=T7;I/O error; dev sda\n SUBSYSTEM=block\n DEVICE=b8:0\n")
    device.log(b"3,8,1,c;I/O error, dev sdb\n")
    device.log(b"6,9,1,-;usb 1-1: new device\n SUBSYSTEM=I/O error\n", b"no record at all: I/O error\n", b"\n")
    assert told(log) == ["I/O error; dev sda", "I/O error, dev sdb"]


def test_a_line_is_safe_to_print_and_not_endless(log: KernelLog, device: Device) -> None:
    device.log(b"3,7,1,-;\x1b[31mI/O error \xff\n", "I/O error " + "x" * 2000)
    first, second = told(log)
    assert first == "\\x1b[31mI/O error �"
    assert second == "I/O error " + "x" * 290


def test_lines_that_were_overwritten_cost_those_lines_alone(log: KernelLog, device: Device) -> None:
    device.room = 2
    device.log(recorded_segfault, recorded_io_error, recorded_links_down[0])
    assert [line[:9] for line in told(log)] == ["I/O error", "mlx5_core"]
    device.log(*[recorded_hung_tasks[0]] * 5)
    assert len(told(log)) == 4
    assert device.is_open()


def test_after_lines_were_overwritten_the_log_does_not_tell_of_all_kills_for_a_minute(
    log: KernelLog, device: Device, clock: Clock
) -> None:
    """The kill of a rank may have been among them."""
    log.read()
    assert log.tells_of_all_kills
    device.room = 2
    clock.move(5)
    device.log(recorded_segfault, recorded_io_error, *recorded_memory_kill[3:])
    log.read()
    assert log.memory_kill_of(11006, 0) is not None, "it is told of what is there"
    assert not log.tells_of_all_kills
    clock.move(60)
    log.read()
    assert not log.tells_of_all_kills
    clock.move(0.1)
    assert log.tells_of_all_kills
    device.log(*[recorded_io_error] * 3)
    log.read()
    assert not log.tells_of_all_kills, "once more"


@pytest.mark.parametrize("up_seconds", [0, 5, 59])
def test_nothing_is_taken_for_lost_on_a_machine_that_has_just_started(
    device: Device, clock: Clock, up_seconds: float
) -> None:
    """There was no EPIPE; but where there was one, the instant 0 is an instant as any other."""
    clock.now_ns = 0
    clock.move(up_seconds)
    log = KernelLog()
    assert log.tells_of_all_kills
    log.read()
    assert log.tells_of_all_kills
    device.has_lost = True
    log.read()
    assert not log.tells_of_all_kills
    clock.move(60.1)
    assert log.tells_of_all_kills
    log.close()


def test_a_flood_is_taken_in_by_and_by_and_the_newest_lines_are_kept(log: KernelLog, device: Device) -> None:
    device.log(*(f"I/O error, dev sda, sector {number}" for number in range(MOST_AT_ONCE + 10)))
    log.read()
    assert device.reads == MOST_AT_ONCE
    assert len(device.records) == 10
    log.read()
    assert not device.records
    kept = log.since(0)
    assert len(kept) == MOST_KEPT
    assert kept[-1].endswith(f"sector {MOST_AT_ONCE + 9}")
    assert kept[0].endswith(f"sector {MOST_AT_ONCE + 10 - MOST_KEPT}")


def test_a_flood_that_does_not_end_holds_nobody_up(log: KernelLog, device: Device) -> None:
    device.is_endless = True
    device.log(recorded_memory_kill[3])
    log.read()
    device.records[0] = recorded_segfault
    log.read()
    assert device.reads == 2 * MOST_AT_ONCE
    assert len(log.since(0)) == MOST_KEPT
    assert log.memory_kill_of(11006, 0) is not None


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EPERM])
def test_a_log_that_cannot_be_read_any_more_is_let_go(log: KernelLog, device: Device, code: int) -> None:
    device.log(recorded_segfault, *recorded_memory_kill)
    assert len(told(log)) == 2
    device.error = code
    log.read()
    assert not device.is_open()
    device.error = None
    device.log(recorded_io_error)
    assert len(told(log)) == 2
    assert log.memory_kill_of(11006, 0) == ("/culprits-6a07ba638869",)
    log.close()


def test_a_log_that_was_closed_is_not_read(log: KernelLog, device: Device) -> None:
    device.log(recorded_segfault)
    assert device.is_open()
    log.close()
    assert not device.is_open()
    assert not log.tells_of_all_kills
    log.close()
    assert told(log) == []


@pytest.mark.parametrize("what", ["missing", "pipe", "folder"])
def test_where_there_is_no_log_there_is_no_evidence(tmp_path: Path, what: str) -> None:
    """A pipe, which nobody can go to the end of, is not waited for."""
    path = tmp_path / "kmsg"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    before = os.listdir("/proc/self/fd")
    log = KernelLog(str(path))
    assert told(log) == []
    assert not log.tells_of_all_kills
    assert log.memory_kill_of(1, 0) is None
    log.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_without_the_right_to_read_it_there_is_no_evidence(device: Device) -> None:
    """Containers seldom have it."""
    device.refuses = True
    log = KernelLog()
    device.log(recorded_segfault)
    assert told(log) == []
    assert device.reads == 0
    log.close()


def test_a_plain_file_is_read_from_its_end_on(tmp_path: Path) -> None:
    """As tests of others have it."""
    path = tmp_path / "kmsg"
    path.write_bytes(recorded_segfault)
    log = KernelLog(str(path))
    with open(path, "ab") as file:
        file.write(recorded_io_error)
    assert [line[:9] for line in told(log)] == ["I/O error"]
    log.close()


SEGFAULTS = "import ctypes, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)"


def test_the_real_kernel_tells_of_a_real_segfault(real_kernel_log: KernelLog) -> None:
    setting = Path("/proc/sys/debug/exception-trace")
    if not setting.exists() or setting.read_text().strip() == "0":
        pytest.skip("this kernel logs no segfaults (debug.exception-trace)")
    expected: set[str] = set()
    found: list[str] = []
    for _ in range(20):  # it logs no more than ten lines of all processes within five seconds
        process = subprocess.Popen([sys.executable, "-c", SEGFAULTS])
        assert process.wait(PATIENCE) == -signal.SIGSEGV
        expected.add(f"[{process.pid}]: segfault at 0 ip")
        real_kernel_log.read()
        if found := [line for line in real_kernel_log.since(0) if any(text in line for text in expected)]:
            break
    assert found
    assert found[0].startswith("kernel, ")


def test_the_null_device_in_its_place_tells_of_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers have that as /dev/kmsg: that it says nothing says nothing."""
    monkeypatch.setattr(kernel_log, "in_first_pid_namespace", lambda: True)
    log = KernelLog(os.devnull)
    log.read()
    assert not log.tells_of_all_kills
    log.close()
