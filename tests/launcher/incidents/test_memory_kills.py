"""Kills for want of memory: told from the counts of control groups, with the limit that was hit."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.incidents.memory_kills import MemoryKills
from tests.launcher.incidents.conftest import EATS_MEMORY, MIB, Clock, Kernel

PATIENCE = 180.0
OF_MACHINE = "out of memory of the machine, which has 16384 MiB"


@pytest.fixture
def kills(kernel: Kernel, clock: Clock) -> MemoryKills:
    """Have rank 0 in a group of its own, which has hit its limit before; it is not looked at yet."""
    kernel.set("/launcher", kills=0, limit=1 << 62)
    kernel.set("/job/0", kills=7, hits=9, limit=100 * MIB, peak=99 * MIB)
    kernel.put(10, "/job/0")
    return MemoryKills(kernel.proc, kernel.sys)


def either(kills: MemoryKills, local_rank: int) -> list[str | None]:
    """What is said of a rank: of one that needed another process, and of one that was killed itself."""
    return [kills.of(local_rank, was_killed=was_killed) for was_killed in (False, True)]


def limit_of(kernel: Kernel, group: str, figures: str) -> str:
    return f"out of memory, {figures} ({kernel.limit_file} of {kernel.group(group)})"


@pytest.mark.parametrize("was_killed", [True, False])
def test_a_kill_is_told_with_the_limit_that_was_hit(kills: MemoryKills, kernel: Kernel, was_killed: bool) -> None:
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8, hits=10)
    assert kills.of(0, was_killed=was_killed) == limit_of(kernel, "/job/0", "99 of 100 MiB")


def test_what_was_counted_before_the_rank_was_watched_is_no_kill(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job/0", kills=8, hits=10)
    kills.watch({0: 10})
    assert either(kills, 0) == [None, None]
    kills.watch({0: 10})
    assert either(kills, 0) == [None, None]


@pytest.mark.parametrize(
    ("seconds", "of_another", "of_the_killed"),
    [(0, True, True), (9.9, True, True), (10.1, True, False), (59, True, False), (61, False, False)],
)
def test_what_was_counted_long_ago_is_not_why_a_rank_was_killed(
    kills: MemoryKills, kernel: Kernel, clock: Clock, seconds: float, of_another: bool, of_the_killed: bool
) -> None:
    """A death is seen soon; any other rank may have gone on for a while without the process that it needed."""
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8, hits=10)
    kills.watch({0: 10})
    clock.move(seconds)
    kills.watch({0: 10})
    assert [said is not None for said in either(kills, 0)] == [of_another, of_the_killed]
    kernel.set("/job/0", kills=9)
    assert None not in either(kills, 0), "the next one is"


def test_each_kill_is_that_of_one_rank(kills: MemoryKills, kernel: Kernel) -> None:
    """Of three that are in one group and were killed by SIGKILL, the kernel has killed two; the others need them."""
    for pid in (11, 12):
        kernel.put(pid, "/job/0")
    kills.watch({0: 10, 1: 11, 2: 12})
    kernel.set("/job/0", kills=9, hits=10)
    said = [kills.of(local_rank, was_killed=True) for local_rank in (0, 1, 2)]
    assert [each is not None for each in said] == [True, True, False]
    assert kills.of(0, was_killed=False) is None


def test_a_rank_that_needed_a_process_takes_no_kill_from_another(kills: MemoryKills, kernel: Kernel) -> None:
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8, hits=10)
    assert kills.of(0, was_killed=False) is not None
    assert kills.of(0, was_killed=False) is not None
    assert kills.of(0, was_killed=True) is not None


def test_a_process_that_has_ended_is_in_no_group_and_its_groups_were_noted(kills: MemoryKills, kernel: Kernel) -> None:
    kills.watch({0: 10})
    shutil.rmtree(Path(kernel.proc) / "10")
    kernel.set("/job/0", kills=8, hits=10)
    kills.watch({0: 10})
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job/0", "99 of 100 MiB")


def test_a_process_that_is_ending_keeps_the_groups_that_it_was_in(kills: MemoryKills, kernel: Kernel) -> None:
    """It may take a second to give its memory back, and is looked at once a second."""
    kernel.set("/", limit=1 << 62)
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8, hits=10)
    kernel.begin_to_end(10)
    kills.watch({0: 10})
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job/0", "99 of 100 MiB")


def test_the_kill_of_one_rank_is_none_of_another_in_another_group(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job/1", kills=0, limit=100 * MIB, peak=50 * MIB)
    kernel.put(11, "/job/1")
    kills.watch({0: 10, 1: 11})
    kernel.set("/job/1", kills=1, hits=1)
    kernel.set("/launcher", kills=1)
    assert either(kills, 0) == [None, None]
    assert kills.of(1, was_killed=True) == limit_of(kernel, "/job/1", "50 of 100 MiB")


def test_the_lowest_limit_that_was_hit_is_told(kills: MemoryKills, kernel: Kernel) -> None:
    """Version 2 counts a hit in the groups above, too."""
    kernel.set("/job", limit=400 * MIB, peak=400 * MIB)
    kills.watch({0: 10})
    kernel.set("/job", hits=1)
    kernel.set("/job/0", kills=8)
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job", "400 of 400 MiB")
    kernel.set("/job", hits=2)
    kernel.set("/job/0", kills=9, hits=10)
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job/0", "99 of 100 MiB")


def test_a_group_without_a_limit_was_not_what_was_hit(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job", limit=400 * MIB, peak=401 * MIB)
    kernel.set("/job/0", limit=1 << 62)
    kills.watch({0: 10})
    kernel.set("/job", hits=1)
    kernel.set("/job/0", kills=8, hits=10)
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job", "400 of 400 MiB"), "no more than the limit"


def test_where_no_limit_was_hit_the_machine_had_no_memory_left(
    kills: MemoryKills, kernel: Kernel, clock: Clock
) -> None:
    """A hit of long ago is none of now, however near to its limit the group is."""
    kernel.set("/job/0", peak=100 * MIB)
    kills.watch({0: 10})
    kernel.set("/job/0", hits=10)
    kills.watch({0: 10})
    clock.move(61)
    kernel.set("/job/0", kills=8)
    assert either(kills, 0) == [OF_MACHINE, OF_MACHINE]


@pytest.mark.parametrize(
    ("peak_bytes", "is_told"), [(98 * MIB, False), (99 * MIB - 1, False), (99 * MIB, True), (100 * MIB, True)]
)
def test_a_group_of_version_1_that_is_full_is_told_without_a_hit(
    kills: MemoryKills, kernel: Kernel, peak_bytes: int, is_told: bool
) -> None:
    """Where memory and swap together have the same limit, that one is in the way, and no hit is counted."""
    kernel.set("/job/0", peak=peak_bytes, together=100 * MIB)
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8)
    is_told = is_told and kernel.version == 1
    said = limit_of(kernel, "/job/0", f"{peak_bytes // MIB} of 100 MiB") if is_told else OF_MACHINE
    assert kills.of(0, was_killed=True) == said


@pytest.mark.parametrize("together", [None, 101 * MIB, 1 << 62])
def test_a_full_group_is_not_told_without_a_hit_where_memory_alone_has_its_limit(
    kills: MemoryKills, kernel: Kernel, together: int | None
) -> None:
    """Its limit would have counted the hit: a full cache is given back, and here the machine had no memory left."""
    kernel.set("/job/0", peak=100 * MIB, together=together)
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8)
    assert kills.of(0, was_killed=True) == OF_MACHINE


def test_a_full_group_whose_limit_is_of_memory_alone_hides_none_above(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job", limit=400 * MIB, peak=400 * MIB, together=400 * MIB)
    kernel.set("/job/0", peak=100 * MIB)
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8)
    above = limit_of(kernel, "/job", "400 of 400 MiB")
    assert kills.of(0, was_killed=True) == (above if kernel.version == 1 else OF_MACHINE)


def test_the_lowest_group_of_version_1_that_is_full_is_told_and_a_hit_above_is_surer(
    kills: MemoryKills, kernel: Kernel
) -> None:
    kernel.set("/job", limit=400 * MIB, peak=400 * MIB, together=400 * MIB)
    kernel.set("/job/0", peak=50 * MIB, together=100 * MIB)
    kills.watch({0: 10})
    above = limit_of(kernel, "/job", "400 of 400 MiB")
    kernel.set("/job/0", kills=8)
    assert kills.of(0, was_killed=True) == (above if kernel.version == 1 else OF_MACHINE)
    kernel.set("/job/0", kills=9, peak=100 * MIB)
    own = limit_of(kernel, "/job/0", "100 of 100 MiB")
    assert kills.of(0, was_killed=True) == (own if kernel.version == 1 else OF_MACHINE)
    kernel.set("/job", hits=1)
    kernel.set("/job/0", kills=10)
    assert kills.of(0, was_killed=True) == above


def test_a_hit_of_a_moment_ago_is_the_one(kills: MemoryKills, kernel: Kernel, clock: Clock) -> None:
    kills.watch({0: 10})
    kernel.set("/job/0", hits=10)
    kills.watch({0: 10})
    clock.move(9)
    kernel.set("/job/0", kills=8)
    assert either(kills, 0) == [limit_of(kernel, "/job/0", "99 of 100 MiB")] * 2


def test_where_the_most_that_was_used_is_not_told_the_limit_is(kills: MemoryKills, kernel: Kernel) -> None:
    """As before Linux 5.19, in version 2: what is used after the kill is little."""
    (kernel.group("/job/0") / ("memory.peak" if kernel.version == 2 else "memory.max_usage_in_bytes")).unlink()
    usage = "memory.current" if kernel.version == 2 else "memory.usage_in_bytes"
    (kernel.group("/job/0") / usage).write_text(f"{MIB}\n")
    kills.watch({0: 10})
    kernel.set("/job/0", kills=8, hits=10)
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job/0", "limit 100 MiB")


def test_where_the_machine_does_not_tell_its_size(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job/0", peak=50 * MIB)
    kills.watch({0: 10})
    kernel.set("/job/0", kills=9)
    kernel.write("proc/meminfo", "MemTotal:\n")
    assert kills.of(0, was_killed=True) == "out of memory of the machine"
    (Path(kernel.proc) / "meminfo").unlink()
    assert kills.of(0, was_killed=True) == "out of memory of the machine"


def test_a_rank_that_was_never_looked_at_is_in_the_launchers_group(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job/0", kills=8)
    assert either(kills, 0) == [None, None]
    kernel.set("/launcher", kills=1)
    assert either(kills, 0) == [OF_MACHINE, OF_MACHINE]


def test_the_ranks_of_a_generation_that_is_over_are_forgotten(kills: MemoryKills, kernel: Kernel) -> None:
    kills.watch({0: 10})
    kills.begin_anew()
    kernel.set("/job/0", kills=8)
    assert either(kills, 0) == [None, None]


def test_a_rank_of_the_next_generation_that_was_never_looked_at_is_in_the_launchers_group(
    kills: MemoryKills, kernel: Kernel
) -> None:
    kills.watch({0: 10})
    kills.begin_anew()
    kernel.set("/launcher", kills=1)
    assert either(kills, 0) == [OF_MACHINE, OF_MACHINE]


@pytest.mark.parametrize("group", ["/job/0", "/launcher"])
def test_what_happened_in_a_generation_that_is_over_is_forgotten(
    kills: MemoryKills, kernel: Kernel, group: str
) -> None:
    """A rank of the next one may be in the same group."""
    kernel.set("/job/0", peak=50 * MIB)
    kernel.put(10, group)
    kernel.put(12, group)
    kills.watch({0: 10})
    kernel.set(group, kills=8, hits=10)
    kills.watch({0: 10})
    kills.begin_anew()
    kills.watch({0: 12})
    assert either(kills, 0) == [None, None]
    kernel.set(group, kills=9)
    assert either(kills, 0) == [OF_MACHINE, OF_MACHINE], "nor is the hit one of now"


def test_a_rank_of_the_next_generation_has_another_group(kills: MemoryKills, kernel: Kernel) -> None:
    kernel.set("/job/new", kills=3, limit=50 * MIB, peak=50 * MIB)
    kernel.put(12, "/job/new")
    kills.watch({0: 10})
    kills.begin_anew()
    kills.watch({0: 12})
    kernel.set("/job/0", kills=8)
    assert either(kills, 0) == [None, None]
    kernel.set("/job/new", kills=4, hits=1)
    assert kills.of(0, was_killed=True) == limit_of(kernel, "/job/new", "50 of 50 MiB")


def test_where_nothing_is_shown_nothing_is_said(tmp_path: Path) -> None:
    kills = MemoryKills(str(tmp_path / "proc"), str(tmp_path / "sys"))
    kills.watch({0: 10})
    assert either(kills, 0) == either(kills, 1) == [None, None]


def test_a_group_that_was_removed_or_does_not_count_says_nothing(kills: MemoryKills, kernel: Kernel) -> None:
    """Nor does one that counts again what was not known in between."""
    kills.watch({0: 10})
    shutil.rmtree(kernel.group("/job/0"))
    kills.watch({0: 10})
    assert either(kills, 0) == [None, None]
    kernel.set("/job/0", kills=9, hits=11)
    kills.watch({0: 10})
    assert either(kills, 0) == [None, None]


def test_a_count_that_begins_anew_is_no_kill_and_the_next_one_is(kills: MemoryKills, kernel: Kernel) -> None:
    """As of a group that was removed and made once more."""
    kills.watch({0: 10})
    kernel.set("/job/0", kills=0, hits=0)
    kills.watch({0: 10})
    assert either(kills, 0) == [None, None]
    kernel.set("/job/0", kills=1, hits=1)
    assert either(kills, 0) == [limit_of(kernel, "/job/0", "99 of 100 MiB")] * 2


def test_the_group_that_the_kernel_has_named(kills: MemoryKills, kernel: Kernel) -> None:
    said = limit_of(kernel, "/job/0", "99 of 100 MiB")
    assert kills.of_group("/job/0") == said, "nobody has to have looked at it"
    assert kills.of_group("/job/0/gone") == said, "the one above"
    kernel.set("/job/0/free", limit=1 << 62, peak=MIB)
    assert kills.of_group("/job/0/free") == said, "it has no limit of its own"
    assert kills.of_group("/elsewhere") == "out of memory of the control group /elsewhere"
    kernel.set("/", limit=10 * MIB, peak=10 * MIB)
    assert kills.of_group("/elsewhere") == limit_of(kernel, "/", "10 of 10 MiB"), "a container shows it as its root"
    assert kills.of_group("") == OF_MACHINE, "no limit was hit"


def test_a_real_kill_where_memory_and_swap_together_have_the_same_limit(
    memory_groups: Callable[[int], Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """The kernel counts no hit of the limit of memory then."""
    group = memory_groups(64 * MIB)
    together = group / "memory.memsw.limit_in_bytes"
    if not together.exists():
        pytest.skip("memory and swap together have no limit here: this is version 2, or without an account of swap")
    together.write_text(str(64 * MIB))
    eater = spawn(EATS_MEMORY)
    (group / "cgroup.procs").write_text(str(eater.pid))
    kills = MemoryKills()
    kills.watch({0: eater.pid})
    assert eater.communicate("\n", PATIENCE)[0] == ""
    assert eater.returncode == -signal.SIGKILL
    assert (group / "memory.failcnt").read_text() == "0\n"
    said = kills.of(0, was_killed=True) or ""
    assert re.fullmatch(rf"out of memory, 6[34] of 64 MiB \(memory\.limit_in_bytes of {group}\)", said)


def test_a_real_kill_is_told_with_figures_and_a_real_sigkill_is_not(
    memory_groups: Callable[[int], Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    group, other_group = memory_groups(64 * MIB), memory_groups(64 * MIB)
    eater, neighbour, other = spawn(EATS_MEMORY), spawn(EATS_MEMORY), spawn(EATS_MEMORY)
    for process, where in ((eater, group), (neighbour, group), (other, other_group)):
        (where / "cgroup.procs").write_text(str(process.pid))
    kills = MemoryKills()
    kills.watch({0: eater.pid, 1: neighbour.pid, 2: other.pid})

    neighbour.kill()
    assert neighbour.wait(PATIENCE) == -signal.SIGKILL
    assert either(kills, 1) == [None, None], "by whoever, but not by the kernel"

    assert eater.communicate("\n", PATIENCE)[0] == ""
    assert eater.returncode == -signal.SIGKILL
    said = kills.of(0, was_killed=False) or ""
    assert kills.of(0, was_killed=True) == said
    assert either(kills, 0) == [None, None], "it has killed one, and that was the one"
    assert re.fullmatch(rf"out of memory, 6[1-4] of 64 MiB \(memory\.(limit_in_bytes|max) of {group}\)", said)
    assert kills.of_group(f"/{group.name}") == said

    other.kill()
    assert other.wait(PATIENCE) == -signal.SIGKILL
    assert either(kills, 2) == [None, None]
