"""Why the CPU was slow: read from files as the kernel writes them, and from the real ones."""

import numpy as np
import pytest

from straggler.measurement.measured import STATE_FIELDS
from straggler.probes.host_cpu import HostCpuProbe
from straggler.reporting.verdict import core_wait, device_reasons


class FakeKernelFiles:
    """The files of one thread, with the numbers that the test wants."""

    def __init__(self, root, cgroup, stat):
        self.stat = root / "cgroup" / stat
        self.stat.parent.mkdir(parents=True)
        (root / "proc" / "thread-self").mkdir(parents=True)
        (root / "proc" / "self").mkdir()
        (root / "proc" / "self" / "cgroup").write_text(cgroup)
        self.schedstat = root / "proc" / "thread-self" / "schedstat"
        self.probe = HostCpuProbe(root / "proc", root / "cgroup")

    def tell(self, waited, throttled):
        self.schedstat.write_text(f"123456 {int(waited * 1e9)} 42\n")
        self.stat.write_text(throttled)


def told(probe):
    state = dict(zip(STATE_FIELDS, probe.collect().device.tolist(), strict=True))
    assert np.isnan(state["sm_clock_mhz"])
    return state["cpu_waited"], state["cpu_throttled"]


@pytest.mark.parametrize(
    ("cgroup", "stat", "throttled"),
    [
        ("3:cpuset:/\n1:cpu:/job\n0::/\n", "cpu/job/cpu.stat", "nr_throttled {0}\nthrottled_time {0}000000000\n"),
        ("4:cpu,cpuacct:/\n", "cpu,cpuacct/cpu.stat", "throttled_time {0}000000000\n"),
        ("0::/job/rank\n", "job/rank/cpu.stat", "usage_usec 7\nthrottled_usec {0}000000\n"),
    ],
)
def test_both_shares_are_told(tmp_path, monkeypatch, cgroup, stat, throttled):
    files = FakeKernelFiles(tmp_path, cgroup, stat)
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("straggler.probes.host_cpu.time.monotonic", lambda: next(clock))
    files.tell(1.0, throttled.format(5))
    assert files.probe.unavailable_because() == ""
    files.probe.start()
    files.tell(2.0, throttled.format(7))
    assert told(files.probe) == (pytest.approx(0.1), pytest.approx(0.2))
    files.tell(2.0, throttled.format(99))
    assert told(files.probe) == (0.0, 1.0)


def test_a_kernel_that_does_not_tell_is_said(tmp_path):
    probe = HostCpuProbe(tmp_path, tmp_path)
    assert "scheduler statistics" in probe.unavailable_because()


def test_without_a_quota_only_the_wait_is_known(tmp_path):
    files = FakeKernelFiles(tmp_path, "0::/\n", "cpu.stat")
    files.tell(1.0, "usage_usec 7\n")
    files.probe.start()
    waited, throttled = told(files.probe)
    assert waited == 0.0
    assert np.isnan(throttled)


def device(**known):
    return np.array([known.get(field, np.nan) for field in STATE_FIELDS])


@pytest.mark.parametrize(
    ("own", "peers", "said"),
    [
        ({"cpu_throttled": 0.17}, {"cpu_throttled": 0.0}, "its CPU quota throttled it 17 % of the time"),
        ({"cpu_throttled": 0.17}, {}, "its CPU quota throttled it 17 % of the time"),
        ({"cpu_waited": 0.4}, {"cpu_waited": 0.1}, ""),
        ({"cpu_waited": 0.01, "cpu_throttled": 0.0}, {}, ""),
        ({}, {"cpu_waited": 0.4}, ""),
    ],
)
def test_what_is_unusual_is_a_reason(own, peers, said):
    assert device_reasons(device(**own), np.array([device(**peers)] * 3)) == said


@pytest.mark.parametrize(
    ("own", "peers", "said"),
    [
        ({"cpu_waited": 0.4}, {"cpu_waited": 0.1}, "it also waited for a core 40 % of the time"),
        ({"cpu_waited": 0.4}, {"cpu_waited": 0.4}, ""),
        ({"cpu_waited": 0.02}, {"cpu_waited": 0.0}, ""),
        ({}, {"cpu_waited": 0.4}, ""),
    ],
)
def test_a_wait_for_a_core_is_said_beside(own, peers, said):
    assert core_wait(device(**own), np.array([device(**peers)] * 3)) == said
