"""The link to the newest run's log folder: replaced in one step, never anything of somebody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.records import latest
from launcher.records.log_folders import make_log_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_leads_to_the_newest_run_also_after_a_move(tmp_path: Path) -> None:
    for run in ("first", "second"):
        assert latest.lead_to(make_log_folder(str(tmp_path / "logs"), run))
        assert os.path.samefile(tmp_path / "logs" / "latest", tmp_path / "logs" / run)
    assert names(tmp_path / "logs") == ["first", "latest", "second"]

    os.rename(tmp_path / "logs", tmp_path / "moved")
    assert os.path.samefile(tmp_path / "moved" / "latest", tmp_path / "moved" / "second")


def test_a_link_to_a_folder_that_is_gone_is_replaced(tmp_path: Path) -> None:
    os.symlink("removed", tmp_path / "latest")
    assert latest.lead_to(make_log_folder(str(tmp_path), "run"))
    assert os.readlink(tmp_path / "latest") == "run"


def what_is_at(place: Path) -> tuple[int, ...]:
    """File, kind and content of what stands there; looking at it changes the time of the last access."""
    found = os.lstat(place)
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("kind", ["file", "folder", "link elsewhere"])
def test_what_somebody_else_has_put_there_stays(tmp_path: Path, kind: str) -> None:
    (tmp_path / "logs").mkdir()
    place, elsewhere = tmp_path / "logs" / "latest", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "file":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(elsewhere)
    before = what_is_at(place)

    assert not latest.lead_to(make_log_folder(str(tmp_path / "logs"), "run"))

    assert what_is_at(place) == before
    assert names(tmp_path / "logs") == ["latest", "run"]


def test_where_no_link_can_be_made_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_log_folder(str(tmp_path), "run")
    assert not latest.lead_to(str(tmp_path / "gone" / "run"))

    def refuse(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        assert not latest.lead_to(folder)
    assert names(tmp_path) == ["run"]


def test_a_run_that_is_called_latest_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    latest.lead_to(make_log_folder(str(tmp_path), "first"))

    folder = make_log_folder(str(tmp_path), "latest")

    assert not os.path.islink(folder)
    assert not latest.lead_to(folder)
    assert names(tmp_path) == ["first", "latest"]


def test_a_link_that_was_removed_is_made_anew_and_another_run_s_is_left(tmp_path: Path) -> None:
    mine, newer = tmp_path / "a", tmp_path / "b"
    mine.mkdir(), newer.mkdir()
    latest.restore(str(mine))
    assert os.readlink(tmp_path / "latest") == "a"
    latest.lead_to(str(newer))
    latest.restore(str(mine))
    assert os.readlink(tmp_path / "latest") == "b"
