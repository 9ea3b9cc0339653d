"""Memory that is left: of the machine, and of the control groups of both versions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.health.check import Context, Machine
from launcher.health.memory import MemoryCheck
from tests.launcher.health.conftest import asked

GIB = 1 << 30
PATIENCE = 60.0


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Context]:
    """Make files as the kernel shows them, with 8 GiB available on the machine."""

    def make(cgroup: str, **files: str) -> Context:
        contents = {
            "proc/meminfo": f"MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n",
            "proc/self/cgroup": cgroup,
            **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
        }
        for path, text in contents.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Context(machine=Machine(str(tmp_path / "proc"), str(tmp_path / "sys")))

    return make


def available(context: Context) -> str:
    """What it says that there is, and where."""
    answer = asked(MemoryCheck(60, 1 << 60), context)
    assert answer is not None
    return answer.partition(")")[0]


def test_this_machine_has_memory_and_not_without_end():
    assert asked(MemoryCheck(60, 1)) is None
    answer = asked(MemoryCheck(60, 1 << 60))
    assert answer is not None
    assert "and 1048576 TiB must be; see what uses it" in answer


def test_without_a_group_it_is_that_of_the_machine(machine: Callable):
    context = machine("1:name=systemd:/\n")
    assert available(context) == f"8 GiB of memory are available (MemAvailable in {context.machine.proc}/meminfo"
    assert asked(MemoryCheck(60, 8 * GIB), context) is None
    assert asked(MemoryCheck(60, 8 * GIB + 1), context) is not None


def test_a_group_of_version_2_limits_it_and_its_page_cache_counts_as_free(machine: Callable):
    files = {
        "job/step/memory.max": f"{4 * GIB}\n",
        "job/step/memory.current": f"{3 * GIB}\n",
        "job/step/memory.stat": f"anon {GIB}\nfile {2 * GIB}\nshmem {GIB}\ninactive_file {GIB // 2}\n"
        f"active_file {GIB // 4}\nslab_reclaimable {GIB // 4}\n",
    }
    context = machine("0::/job/step\n", **files)
    assert available(context) == (
        f"2 GiB of memory are available (memory.max of {context.machine.sys}/fs/cgroup/job/step is {4 * GIB}"
    )


def test_a_group_above_counts(machine: Callable):
    files = {
        "job/step/memory.max": "max\n",
        "job/step/memory.current": "1\n",
        "job/memory.max": f"{2 * GIB}\n",
        "job/memory.current": f"{GIB}\n",
    }
    context = machine("0::/job/step\n", **files)
    assert available(context).startswith("1 GiB of memory are available (memory.max of")


def test_a_group_of_version_1(machine: Callable):
    files = {
        "memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{4 * GIB}\n",
        "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "1\n",
    }
    context = machine("4:cpu,memory:/job\n1:cpu:/job\n", **files)
    assert available(context).startswith("2 GiB of memory are available (memory.limit_in_bytes of")


def test_a_container_that_is_shown_the_path_of_its_host_finds_its_own_root(machine: Callable):
    files = {"memory.max": f"{GIB}\n", "memory.current": "0\n"}
    context = machine("0::/../kubepods/pod/x\n", **files)
    assert available(context).startswith("1 GiB of memory are available (memory.max of")


def test_a_group_beyond_its_limit_has_nothing(machine: Callable):
    context = machine("0::/\n", **{"memory.max": "1000\n", "memory.current": "2000\n"})
    assert available(context).startswith("0 B of memory are available")


def test_where_nothing_is_shown_it_says_so(tmp_path: Path):
    context = Context(machine=Machine(str(tmp_path), str(tmp_path)))
    answer = asked(MemoryCheck(60), context)
    assert answer is not None
    assert answer.startswith(f"memory cannot be told: {tmp_path}/meminfo has no MemAvailable")


@pytest.fixture
def real_group() -> Iterator[Path]:
    """Make a group below our own, with a limit; it is empty and removed in the end."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    parent, limit = Path("/sys/fs/cgroup") / next((path[1:] for _, name, path in lines if not name), ""), "memory.max"
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            parent, limit = Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"
    group = parent / f"ft-health-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this user may make no control group: {error}")
    try:
        try:
            (group / limit).write_text(str(GIB // 2))
        except OSError as error:
            pytest.skip(f"this group has no limit of memory: {error}")
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def test_in_a_real_group_its_limit_is_found(real_group: Path):
    program = f"""
import os
open({str(real_group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from launcher.health.check import Context
from launcher.health.memory import MemoryCheck
print(MemoryCheck(60, 1 << 30).check(Context()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert f"of {real_group} is {GIB // 2}), and 1 GiB must be" in done.stdout
