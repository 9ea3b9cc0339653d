"""Control groups of memory: of both versions, those above, what sets no limit, and what is not shown."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.processes.control_groups import MemoryGroup, groups_named, groups_of, read_number, read_text

GIB = 1 << 30
NONE_OF_VERSION_1 = 9223372036854771712
"""What the kernel writes on pages of 4 KiB where there is no limit."""


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., list[MemoryGroup]]:
    """Write the files of control groups, and find those of a process."""

    def show(cgroup: str, *, pid: int | None = None, **files: str) -> list[MemoryGroup]:
        contents = {
            f"proc/{'self' if pid is None else pid}/cgroup": cgroup,
            f"proc/{'self' if pid is None else pid}/stat": "1 (python) S 1 1 1 0 -1 4194304 0 0\n",
            **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
        }
        for path, text in contents.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return groups_of(pid, str(tmp_path / "proc"), str(tmp_path / "sys"))

    return show


def names(groups: list[MemoryGroup], tmp_path: Path) -> list[str]:
    return [os.path.relpath(group.folder, tmp_path / "sys/fs/cgroup") for group in groups]


def test_version_2_own_group_first_then_those_above(shown: Callable[..., list[MemoryGroup]], tmp_path: Path) -> None:
    own, above = shown(
        "0::/job/step\n",
        **{
            "job/step/memory.max": "max\n",
            "job/step/memory.current": f"{GIB}\n",
            "job/step/memory.peak": f"{2 * GIB}\n",
            "job/step/memory.events": "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n",
            "job/memory.max": f"{4 * GIB}\n",
            "job/memory.current": f"{3 * GIB}\n",
        },
    )
    assert names([own, above], tmp_path) == ["job/step", "job"]
    assert (own.limit_bytes, own.usage_bytes, own.peak_bytes) == (None, GIB, 2 * GIB)
    assert (own.kills, own.hits) == (5, 4)
    assert above.limit_bytes == 4 * GIB


def test_version_1_own_group_first_then_those_above(shown: Callable[..., list[MemoryGroup]], tmp_path: Path) -> None:
    own, above, root = shown(
        "9:memory_of_ours:/x\n4:cpu,memory:/job/step\n1:name=systemd:/y\n0::/\n",
        **{
            "memory/job/step/memory.limit_in_bytes": f"{4 * GIB}\n",
            "memory/job/step/memory.usage_in_bytes": f"{GIB}\n",
            "memory/job/step/memory.max_usage_in_bytes": f"{2 * GIB}\n",
            "memory/job/step/memory.oom_control": "oom_kill_disable 0\nunder_oom 1\noom_kill 7\n",
            "memory/job/step/memory.failcnt": "8\n",
            "memory/job/memory.limit_in_bytes": f"{NONE_OF_VERSION_1}\n",
            "memory/job/memory.usage_in_bytes": f"{GIB}\n",
            "memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        },
    )
    assert names([own, above, root], tmp_path) == ["memory/job/step", "memory/job", "memory"]
    assert (own.limit_bytes, own.usage_bytes, own.peak_bytes) == (4 * GIB, GIB, 2 * GIB)
    assert (own.kills, own.hits) == (7, 8)
    assert (above.limit_bytes, above.usage_bytes) == (None, GIB)


@pytest.mark.parametrize("where", ["unified/", ""])
def test_where_both_versions_are_mounted_that_which_has_memory_is_found(
    shown: Callable[..., list[MemoryGroup]], tmp_path: Path, where: str
) -> None:
    """Version 2 is below ``unified`` then, and seldom has the controller."""
    (tmp_path / "sys/fs/cgroup/unified/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/unified/job/cgroup.procs").touch()
    found = shown("4:memory:/job\n0::/job\n", **{"memory/job/memory.usage_in_bytes": "1\n"})
    assert names(found, tmp_path) == ["memory/job"]

    found = shown("4:cpu:/job\n0::/other\n", **{f"{where}other/memory.current": "1\n"})
    assert names(found, tmp_path) == [f"{where}other"]


def test_of_another_process_and_not_of_this_one(shown: Callable[..., list[MemoryGroup]], tmp_path: Path) -> None:
    files = {"ours/memory.current": "1\n", "theirs/memory.current": "2\n"}
    assert names(shown("0::/ours\n", **files), tmp_path) == ["ours"]
    assert names(shown("0::/theirs\n", pid=17), tmp_path) == ["theirs"]


def test_a_group_that_was_removed_is_told_by_its_name(shown: Callable[..., list[MemoryGroup]], tmp_path: Path) -> None:
    """Version 2 says so behind the name, of a process that has ended, too."""
    assert names(shown("0::/job (deleted)\n", **{"job/memory.current": "1\n"}), tmp_path) == ["job"]


@pytest.mark.parametrize("name", ["/", "/../kubepods/pod/x", "/kubepods/pod/x"])
def test_a_container_that_shows_only_the_root_finds_it(
    shown: Callable[..., list[MemoryGroup]], tmp_path: Path, name: str
) -> None:
    (found,) = shown(f"0::{name}\n", **{"memory.max": f"{GIB}\n", "memory.events": "oom_kill 1\n"})
    assert names([found], tmp_path) == ["."]
    assert (found.limit_bytes, found.kills) == (GIB, 1)

    (tmp_path / "sys/fs/kubepods").mkdir()
    (tmp_path / "sys/fs/kubepods/memory.current").write_text("1\n")
    assert names(shown(f"0::{name}\n"), tmp_path) == ["."], "nothing outside of it"

    of_version_1 = shown(f"4:memory:{name}\n", **{"memory/memory.usage_in_bytes": "1\n"})
    assert names(of_version_1, tmp_path) == ["memory"]


def test_what_is_not_shown_is_no_group(shown: Callable[..., list[MemoryGroup]], tmp_path: Path) -> None:
    assert groups_of(None, str(tmp_path / "proc"), str(tmp_path / "sys")) == []
    assert shown("0::/job\n4:memory:/job\n1:name=systemd:/job\n") == []
    assert shown("", pid=1) == []
    assert groups_of(2, str(tmp_path / "proc"), str(tmp_path / "sys")) == [], "it has ended"


@pytest.mark.parametrize(("cgroup", "place"), [("0::/job\n", "job/"), ("4:memory:/job\n", "memory/job/")])
def test_a_file_that_is_missing_is_not_known(shown: Callable[..., list[MemoryGroup]], cgroup: str, place: str) -> None:
    usage = "memory.usage_in_bytes" if "memory" in cgroup else "memory.current"
    (group,) = shown(cgroup, **{f"{place}{usage}": f"{GIB}\n"})
    assert group.usage_bytes == GIB
    assert [group.limit_bytes, group.peak_bytes, group.kills, group.hits] == [None] * 4
    assert not group.is_full
    os.unlink(os.path.join(group.folder, usage))
    assert group.usage_bytes is None


@pytest.mark.parametrize(
    ("limit", "peak", "is_full"),
    [
        (f"{GIB}", f"{GIB}", True),
        (f"{GIB}", f"{GIB + 1}", True),
        ("1000", "990", True),
        ("1000", "989", False),
        (f"{NONE_OF_VERSION_1}", f"{NONE_OF_VERSION_1}", False),
        ("1000", "", False),
    ],
)
def test_a_group_is_full_once_it_has_used_99_percent_of_its_limit(
    shown: Callable[..., list[MemoryGroup]], limit: str, peak: str, is_full: bool
) -> None:
    """What is used by now does not count: a process that was killed has given back what it had."""
    v1 = {"limit_in_bytes": limit, "usage_in_bytes": "1", "max_usage_in_bytes": peak}
    v2 = {"max": limit, "current": "1", "peak": peak}
    (of_version_1,) = shown("4:memory:/job\n", **{f"memory/job/memory.{name}": text for name, text in v1.items()})
    (of_version_2,) = shown("0::/two\n", **{f"two/memory.{name}": text for name, text in v2.items()})
    assert [of_version_1.is_full, of_version_2.is_full] == [is_full, is_full]


@pytest.mark.parametrize(
    ("limit", "together", "is_as_well"),
    [
        (f"{GIB}", f"{GIB}", True),
        (f"{GIB}", f"{GIB + 4096}", False),
        (f"{GIB}", f"{NONE_OF_VERSION_1}", False),
        (f"{NONE_OF_VERSION_1}", f"{NONE_OF_VERSION_1}", False),
        (f"{GIB}", None, False),
        (f"{GIB}", "", False),
        ("", "", False),
    ],
)
def test_memory_and_swap_together_have_the_limit_of_memory_where_both_are_the_same(
    shown: Callable[..., list[MemoryGroup]], limit: str, together: str | None, is_as_well: bool
) -> None:
    """Without an account of swap there is no such file; nor is there in version 2, where it means nothing."""
    v1 = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": "1"}
    v2 = {"memory.max": limit, "memory.current": "1"}
    both = {} if together is None else {"memory.memsw.limit_in_bytes": together}
    (of_version_1,) = shown("4:memory:/job\n", **{f"memory/job/{name}": text for name, text in {**v1, **both}.items()})
    (of_version_2,) = shown("0::/two\n", **{f"two/{name}": text for name, text in {**v2, **both}.items()})
    assert [of_version_1.limits_swap_as_well, of_version_2.limits_swap_as_well] == [is_as_well, False]


def test_a_kernel_that_does_not_count_kills(shown: Callable[..., list[MemoryGroup]]) -> None:
    """It was before 4.13, and only others of the file's lines are there."""
    (group,) = shown("4:memory:/job\n", **{"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"})
    assert group.kills is None


def test_a_count_that_is_no_number_is_not_known(shown: Callable[..., list[MemoryGroup]]) -> None:
    (group,) = shown("0::/job\n", **{"job/memory.events": "oom max\noom_kill -1\n"})
    assert [group.kills, group.hits] == [None, None]


def test_a_group_is_found_by_its_name_in_either_version(
    shown: Callable[..., list[MemoryGroup]], tmp_path: Path
) -> None:
    def named(name: str) -> list[str]:
        return names(groups_named(name, str(tmp_path / "sys")), tmp_path)

    shown("", **{"memory/job/step/memory.limit_in_bytes": "1\n", "memory/job/step/memory.usage_in_bytes": "1\n"})
    shown("", **{"memory/memory.usage_in_bytes": "1\n"})
    assert named("/job/step") == ["memory/job/step", "memory"]
    assert named("/gone") == ["memory"]
    shown("", **{"two/x/memory.current": "1\n", "two/memory.current": "1\n"})
    assert named("/two/x") == ["two/x", "two", "memory"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("12\n", 12), ("0", 0), (f"{NONE_OF_VERSION_1}\n", NONE_OF_VERSION_1)]
    + [(text, None) for text in ("max\n", "", "\n", "-1\n", "1 2\n", "0x10\n", "1.5\n")],
)
def test_a_whole_number_or_none(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "file").write_text(text)
    assert read_number(str(tmp_path / "file")) == number


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert read_text(str(tmp_path / "missing")) == read_text(str(tmp_path)) == ""
    assert read_number(str(tmp_path / "missing")) is None
    (tmp_path / "bytes").write_bytes(b"\xff1\n")
    assert read_text(str(tmp_path / "bytes")).endswith("1\n")
    assert read_number(str(tmp_path / "bytes")) is None


def test_the_groups_of_this_machine_are_real() -> None:
    """Whichever version it has: what is found has figures, and each is above the one before."""
    groups = groups_of(None)
    if not groups:
        pytest.skip("no control groups of memory are shown here")
    assert groups == groups_of(os.getpid())
    assert (groups[0].usage_bytes or 0) > 0
    assert groups[0].kills is not None
    assert all(a.folder.startswith(b.folder) for a, b in itertools.pairwise(groups))
