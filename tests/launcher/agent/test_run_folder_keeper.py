"""What ranks find by path can be lost at any moment: it is made anew, in the same place or in another."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.control_socket import ControlSocket
from launcher.agent.run_folder_keeper import CONFIG_FILE, CONTROL_SOCKET, RunFolderKeeper
from launcher.agent.worker_cells import Cells
from launcher.records.log_folders import FolderError
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.protocol.cell_layout import CELL_SIZE, ERROR_TEXT, FIRST_LINE, PID, STATE, WATCHED
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest, send

RANKS = {0: 4, 1: 5}


class FakeMonitorProcess:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.parts: list[str] = []

    def show_run_folders(self, paths: list[str], parts: list[str]) -> None:
        self.folders, self.parts = paths, parts


class World:
    """A run folder in use."""

    def __init__(self, parent: Path, elsewhere: Path) -> None:
        self.folder = RunFolder(str(parent))
        self.folder.write(CONFIG_FILE, '{"a": 1}')
        self.control = ControlSocket(self.folder.file(CONTROL_SOCKET))
        self.monitor: Any = FakeMonitorProcess()
        self.events: list[str] = []
        self.facts: list[dict[str, Any]] = []
        self.run_folder_keeper = RunFolderKeeper(self.folder, self.control, self.monitor, self._tell, [str(elsewhere)])

    def _tell(self, event: str, **facts: Any) -> None:
        self.events.append(event)
        self.facts.append(facts)

    def begin(self) -> World:
        """Leave a first generation behind."""
        self.run_folder_keeper.make_cells(0, RANKS).drop()
        return self

    def assert_whole(self) -> None:
        path = Path(self.folder.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert sorted(os.listdir(path)) == ["cells", CONFIG_FILE, CONTROL_SOCKET, "lock"]
        assert stat.S_ISREG((path / CONFIG_FILE).lstat().st_mode)
        assert (path / CONFIG_FILE).read_text() == '{"a": 1}'
        assert self.monitor.parts == [str(path / name) for name in ("lock", "cells", CONFIG_FILE, CONTROL_SOCKET)]
        send(WorkloadControlRequest(WorkloadAction.Continue, "heard"), str(path / CONTROL_SOCKET), 1)
        assert [request.description for _, request in self.control.read()] == ["heard"]
        # Its lock is held: another launcher does not take it for abandoned.
        RunFolder(str(path.parent)).remove()
        assert path.exists()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        yield Path(folder)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A real tmpfs of so many bytes."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(place)]
        if os.getuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small tmpfs needs root")
        return place

    yield mount
    subprocess.run(["umount", str(place)], check=False, capture_output=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    world = World(tmp_path / "here", tmp_path / "there")
    yield world
    world.control.close()
    world.folder.remove()
    assert list((tmp_path / "here").iterdir()) == list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("what", ["", "cells", "lock", CONFIG_FILE, CONTROL_SOCKET])
def test_whatever_was_removed_is_made_anew_in_the_same_place(
    world: World, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path(world.folder.path, what)
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert world.run_folder_keeper.mend(None) == []

    world.assert_whole()
    assert world.events == ["run_folder_mended"]
    assert what in capfd.readouterr().err
    assert world.run_folder_keeper.mend(None) == []
    assert world.events == ["run_folder_mended"]


def _damage(path: Path, how: str) -> None:
    match how:
        case "cut off":
            os.truncate(path, 3)
        case "overwritten":
            path.write_bytes(b"x" * path.stat().st_size)
        case "appended to":
            path.write_bytes(path.read_bytes() + b"x")
        case "link":
            elsewhere = path.parent.parent.parent / "elsewhere"
            path.rename(elsewhere)
            path.symlink_to(elsewhere)
        case _:
            path.rmdir() if path.is_dir() else path.unlink()
            _put(path, how)


def _put(path: Path, what: str) -> None:
    match what:
        case "file":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
            (path / "x").touch()
        case "socket":
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as another:
                another.bind(str(path))


PUT = ("file", "pipe", "folder", "socket")


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        *((CONFIG_FILE, damage) for damage in ("cut off", "overwritten", "appended to", "link")),
        *((what, damage) for what in (CONFIG_FILE, "lock", CONTROL_SOCKET) for damage in PUT),
        *(("cells", damage) for damage in ("file", "pipe", "link")),
    ],
)
def test_whatever_was_damaged_is_made_anew_before_the_next_generation(
    world: World, what: str, damage: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    path = Path(world.folder.path, what)
    _damage(path, damage)
    monkeypatch.setattr(
        "launcher.agent.run_folder_keeper.time.sleep", pytest.fail
    )  # at once, not tried again and again

    world.run_folder_keeper.make_cells(1, RANKS).drop()

    world.assert_whole()
    assert (world.events, world.facts[0]["missing"], world.facts[0]["damaged"]) == (
        ["run_folder_mended"], [], [str(path)]
    )  # fmt: skip
    assert f"somebody has damaged {what}; made anew" in capfd.readouterr().err
    world.run_folder_keeper.make_cells(2, RANKS).drop()
    assert len(world.events) == 1


def test_a_file_whose_place_cannot_be_cleared_costs_another_folder(world: World, tmp_path: Path) -> None:
    """A file system is mounted there: neither to be renamed nor to be removed."""
    world.begin()
    former = Path(world.folder.path, CONFIG_FILE)
    former.unlink()
    former.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(former)]
    if os.getuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        world.run_folder_keeper.make_cells(1, RANKS).drop()
        world.assert_whole()
        assert os.path.dirname(world.folder.path) == str(tmp_path / "there")
        assert world.events == ["run_folder_moved"]
    finally:
        subprocess.run(["umount", str(former)], check=True)


def test_without_a_descriptor_to_look_with_nothing_is_said_to_be_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refusals, real_open = [OSError(errno.EMFILE, "Too many open files")], os.open

    def refuse(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return real_open(*arguments)

    with monkeypatch.context() as without:
        without.setattr("launcher.records.run_folders.os.open", refuse)
        world.run_folder_keeper.mend(None)
    assert "Too many open files" in (said := capfd.readouterr().err)
    assert "damaged" not in said
    assert world.events == []
    world.assert_whole()


def test_cells_that_nobody_has_opened_yet_are_replaced_and_the_others_go_on(world: World) -> None:
    cells = world.run_folder_keeper.make_cells(3, RANKS)
    opened = Cell(cells[0].path)
    opened.words[PID], opened.words[STATE], opened.words[FIRST_LINE] = os.getpid(), WATCHED, 7
    opened.write_text(ERROR_TEXT, "{}")
    shutil.rmtree(world.folder.path)

    assert world.run_folder_keeper.mend(cells) == [1]

    assert cells.view(0).pid == os.getpid()
    assert not os.path.exists(cells[0].path)
    late = Cell(cells[1].path)
    late.words[PID] = 4711
    assert {local_rank: view.pid for local_rank, view in cells.views().items()} == {0: os.getpid(), 1: 4711}
    assert (late.words[11], late.words[12]) == (RANKS[1], 3)
    assert cells.stamps()[0]["first_line_ns"] == 7
    assert world.run_folder_keeper.mend(cells) == []
    cells.drop()
    assert os.listdir(Path(world.folder.path, "cells")) == []


def test_a_cell_that_its_rank_claims_while_another_is_made_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = world.run_folder_keeper.make_cells(3, RANKS)
    opened, create = Cell(cells[0].path), Cell.create
    shutil.rmtree(world.folder.path)

    def slow_create(path: str, **arguments: int) -> Cell:
        opened.words[PID] = 4711
        return create(path, **arguments)

    monkeypatch.setattr(Cell, "create", slow_create)
    assert world.run_folder_keeper.mend(cells) == [1]
    assert cells.view(0).pid == 4711
    cells.drop()


def test_the_first_generation_is_refused_where_there_is_no_room(small: Callable[[int], Path], tmp_path: Path) -> None:
    world = World(small(8 * CELL_SIZE), tmp_path)
    _fill(tmp_path / "small" / "filler")
    with pytest.raises(CellError, match=r"No space left.*--ft-run-dir"):
        world.run_folder_keeper.make_cells(0, RANKS)
    assert world.folder.paths == [world.folder.path]
    world.control.close()
    world.folder.remove()


def test_a_place_where_another_ones_folder_stands_is_left(world: World, tmp_path: Path) -> None:
    former = world.begin().folder.path
    shutil.rmtree(former)
    os.mkdir(former, 0o777)
    os.chmod(former, 0o777)

    cells = world.run_folder_keeper.make_cells(1, RANKS)

    assert os.path.dirname(world.folder.path) == str(tmp_path / "there")
    assert world.monitor.folders == [former, world.folder.path]
    assert world.events == ["run_folder_moved"]
    world.assert_whole()
    assert os.path.dirname(os.path.dirname(cells[0].path)) == world.folder.path
    cells.drop()
    shutil.rmtree(former)


def test_a_folder_that_is_full_for_a_moment_is_waited_for(
    small: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "there"
    elsewhere.mkdir()
    parent = small(8 * CELL_SIZE)
    world = World(parent, elsewhere).begin()
    filler = parent / "filler"
    _fill(filler)
    monkeypatch.setattr("launcher.agent.run_folder_keeper.time.sleep", lambda seconds: filler.unlink(missing_ok=True))

    cells = world.run_folder_keeper.make_cells(1, RANKS)

    assert world.folder.paths == [os.path.dirname(os.path.dirname(cells[0].path))]
    assert world.events == []
    cells.drop()
    world.control.close()
    world.folder.remove()


def test_a_folder_that_stays_full_is_left_for_another(
    small: Callable[[int], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "there"
    elsewhere.mkdir()
    parent = small(8 * CELL_SIZE)
    world = World(parent, elsewhere).begin()
    _fill(parent / "filler")

    cells = world.run_folder_keeper.make_cells(1, RANKS)

    world.assert_whole()
    assert os.path.dirname(world.folder.path) == str(elsewhere)
    assert "No space left on device" in capfd.readouterr().err
    assert [os.path.getsize(cells[local_rank].path) for local_rank in RANKS] == [CELL_SIZE] * 2
    cells.drop()
    world.control.close()
    world.folder.remove()
    assert os.listdir(elsewhere) == []


def test_without_any_place_the_reason_is_said(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher.agent.run_folder_keeper.LONGEST_TRY_SECONDS", 0)
    world.begin()
    for name in ("here", "there"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(FolderError, match="there"):
        world.run_folder_keeper.make_cells(1, RANKS)
    assert world.run_folder_keeper.mend(None) == []  # nothing to be done; whoever runs, runs on
    for name in ("here", "there"):
        (tmp_path / name).mkdir()


def test_a_cell_that_was_cut_off_or_overwritten_ends_nobody_who_looks(world: World) -> None:
    cells = world.run_folder_keeper.make_cells(0, RANKS)
    cells[0].words[PID] = cells[1].words[PID] = 4711
    os.truncate(cells[0].path, 0)

    assert {local_rank: view.pid for local_rank, view in cells.views().items()} == {0: 0, 1: 4711}
    assert cells.errors() == {}
    assert set(cells.stamps()[0].values()) == {None}
    with pytest.raises(CellError, match="0 bytes"):
        cells[0].copy()
    for word in range(1, len(cells[1].words)):
        cells[1].words[word] = -word
    assert cells.view(1).pid == 0
    cells.drop()


def test_cells_that_do_not_all_fit_leave_none_behind(small: Callable[[int], Path]) -> None:
    parent = small(3 * CELL_SIZE)
    folder = RunFolder(str(parent))
    with pytest.raises(CellError, match="No space left"):
        Cells(folder, 0, dict.fromkeys(range(8), 0))
    assert os.listdir(Path(folder.path, "cells")) == []
    folder.remove()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
