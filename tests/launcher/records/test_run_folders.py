"""The two folders of a run: the one in memory is private and goes, the one with the logs stays."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from launcher.agent.bounded_logs import BoundedLogs
from launcher.agent.job import _run_name
from launcher.command_line.options import parse
from launcher.processes.background import Background
from launcher.records.log_folders import FolderError, as_file_name, make_log_folder, new_run_id
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell, CellError

is_root = os.getuid() == 0


def test_cells_of_a_folder_that_somebody_removed_need_no_dropping(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    shutil.rmtree(folder.path)
    folder.remove_cells(0)
    folder.remove()


def test_the_run_folder_is_its_owners_alone_and_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    written = folder.write("config.json", "{}")
    Cell.create(folder.cell(0, 0)).close()

    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(written).st_mode) == 0o600
    assert Path(written).read_text() == "{}"
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_cells_of_a_generation_that_is_over_are_dropped_and_no_others(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    for generation in (1, 11):
        for local_rank in (0, 1):
            Cell.create(folder.cell(generation, local_rank)).close()

    folder.remove_cells(1)

    assert sorted(os.listdir(Path(folder.path) / "cells")) == ["11-0", "11-1"]
    folder.remove()


def test_a_folder_whose_launcher_was_killed_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    program = "import os,sys; from launcher.records.run_folders import RunFolder; RunFolder(sys.argv[1]); os._exit(1)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1

    first = RunFolder(str(tmp_path))
    second = RunFolder(str(tmp_path))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        os.path.basename(folder.path) for folder in (first, second)
    )
    first.remove()
    second.remove()


def test_launchers_that_start_at_one_moment_do_not_sweep_each_other(tmp_path: Path) -> None:
    folders: list[RunFolder] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        for _ in range(10):
            folders.append(RunFolder(str(tmp_path)))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(folders) == 80
    assert all(os.path.isdir(os.path.join(folder.path, "cells")) for folder in folders)
    for folder in folders:
        folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_another_program_left_is_not_swept(tmp_path: Path) -> None:
    others = tmp_path / f"ft_launcher-{os.getuid()}-by-hand"
    others.mkdir()
    RunFolder(str(tmp_path)).remove()
    assert others.exists()


@pytest.mark.parametrize(("kind", "why"), [("missing", "No such file"), ("file", "not a folder|Not a directory")])
def test_a_parent_that_cannot_be_used_is_named_with_the_option(tmp_path: Path, kind: str, why: str) -> None:
    parent = tmp_path / "parent"
    if kind == "file":
        parent.write_text("")
    with pytest.raises(FolderError, match=f"{parent}.*({why}).*--ft-run-dir"):
        RunFolder(str(parent))


def test_a_parent_that_others_may_write_to_needs_the_sticky_bit(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(FolderError, match=r"no sticky bit.*--ft-run-dir"):
        RunFolder(str(parent))
    assert list(parent.iterdir()) == []

    parent.chmod(0o1777)
    RunFolder(str(parent)).remove()


@pytest.mark.skipif(not is_root, reason="only root can give a folder to another user")
def test_a_parent_of_another_user_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "theirs"
    parent.mkdir()
    os.chown(parent, 12345, 12345)
    with pytest.raises(FolderError, match=r"belongs to another user \(uid 12345\).*--ft-run-dir"):
        RunFolder(str(parent))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of a few pages."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,mode=1777", "tmpfs", str(place)]
    if not is_root or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_where_the_disk_for_their_output_is_full_workers_write_to_the_launchers(full: Path, tmp_path: Path) -> None:
    """A folder can still be made there; the workers would fail at their first line."""
    instead, said = tmp_path / "instead", []
    specs = DefaultLogsSpecs(str(full / "workers"), redirects=Std.ALL)
    logs = BoundedLogs(specs, Background("test", 1), lambda: str(instead), said.append)
    envs = {0: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}}
    assert logs.reify(envs).stdouts[0].startswith(str(full))

    for number in range(4):
        (full / str(number)).write_bytes(b"x" * 4096)

    made = logs.reify({0: {**envs[0], "TORCHELASTIC_RESTART_COUNT": "1"}})
    assert made.stdouts == made.stderrs == {0: ""}
    assert made.error_files[0].startswith(str(instead))
    assert "No space left on device" in said[0]


def test_a_full_tmpfs_is_an_error_now_and_no_sigbus_later(full: Path) -> None:
    folder = RunFolder(str(full))
    for number in range(4):
        (full / str(number)).write_bytes(b"x" * 4096)

    with pytest.raises(FolderError, match=r"config.json: No space left on device.*--ft-run-dir"):
        folder.write("config.json", "{}")
    with pytest.raises(CellError, match=r"No space left on device.*--ft-run-dir"):
        Cell.create(folder.cell(0, 0))
    folder.remove()


def test_the_log_folder_is_the_runs_own_and_may_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert make_log_folder(None, "run") == str(tmp_path / "ft_logs" / "run")
    assert make_log_folder(None, "run") == str(tmp_path / "ft_logs" / "run")
    assert make_log_folder("elsewhere", "a/b") == str(tmp_path / "elsewhere" / "a_b")


def test_a_log_folder_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot make the log folder.*--log-dir"):
        make_log_folder(str(tmp_path / "file"), "run")


@pytest.mark.parametrize(
    "options", [["--nnodes", "2", "--master-addr", "127.0.0.1"], ["--rdzv-backend", "c10d"], ["--nnodes", "1:2"]]
)
def test_a_run_without_a_name_has_a_log_folder_of_its_own(options: list[str], tmp_path: Path) -> None:
    """Two runs that torchrun both calls "none" do not add to each other's events; those with a name have theirs."""
    (tmp_path / "train.py").touch()
    script = str(tmp_path / "train.py")
    names = {_run_name(parse([*options, script])) for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("20") for name in names)
    assert all(name.endswith(os.uname().nodename) == ("--nnodes" in options) for name in names)
    assert _run_name(parse([*options, "--rdzv-id", "job 7", script])) == "job 7"


def test_run_ids_are_unique() -> None:
    assert len({new_run_id() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("job-17", "job-17"),
        ("team/job", "team_job"),
        ("../../elsewhere", ".._.._elsewhere"),
        ("..", "__"),
        (".", "_"),
        ("", "_"),
        ("\0", "_"),
        ("x" * 300, "x" * 200),
        ("\u00e9" * 150, "\u00e9" * 100),
    ],
)
def test_a_run_may_have_any_name_and_its_folders_stay_where_they_belong(tmp_path: Path, run_id: str, name: str) -> None:
    assert as_file_name(run_id) == name
    assert make_log_folder(str(tmp_path), run_id) == str(tmp_path / name)
    logs = BoundedLogs(
        DefaultLogsSpecs(str(tmp_path / "workers")), Background("test", 1), lambda: "", lambda said: None
    )
    envs = {0: {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": "0"}}

    made = logs.reify(envs)

    assert made.error_files[0].startswith(f"{tmp_path}/workers/{name}_")
    assert envs[0] == {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_ERROR_FILE": made.error_files[0],
    }


def test_a_generation_without_a_restart_removes_no_output_of_the_one_before(tmp_path: Path) -> None:
    """After a hand-over torch's count of restarts stays, and torch removes the folder of an attempt that was there."""
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.ALL)
    logs = BoundedLogs(specs, Background("test", 1), lambda: str(tmp_path / "instead"), print)
    env = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}
    first = logs.reify({0: dict(env)}).stdouts[0]
    Path(first).write_text("said before the hand-over")
    envs = {0: dict(env)}
    second = logs.reify(envs).stdouts[0]

    assert Path(first).read_text() == "said before the hand-over"
    assert second != first
    assert envs[0]["TORCHELASTIC_RESTART_COUNT"] == "0"
