"""Where pictures are written: what stays as it is, and what is said where one cannot be written."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from straggler.__main__ import main
from straggler.simulation.reports import write_log
from straggler.simulation.simulator import SimulatedJob

MISSING = "No such file or directory"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    write_log(SimulatedJob(ranks=4, windows=2), path)
    return path


@pytest.fixture(params=["html", "png"])
def kind(request):
    if request.param == "png":
        pytest.importorskip("matplotlib")
    return request.param


def plot(log, *options):
    return main(["plot", str(log), *map(str, options)])


def said(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_where_a_picture_cannot_be_written_one_line_says_why_and_what_to_do(log, kind, tmp_path, capsys):
    (tmp_path / "file").touch()
    for place, why in [
        ("/dev/full", "No space left on device; free some space, or name a file on another disk, with"),
        (
            tmp_path / "none" / "x",
            f"{MISSING}; make its folder first, or name a file in another one, with",
        ),
        (tmp_path / "file" / "x", "Not a directory; name a file in a folder, with"),
        (tmp_path, "Is a directory; name a file in it, with"),
    ]:
        assert plot(log, "--only", kind, f"--{kind}", place) == 1
        assert said(capsys) == f"python -m straggler plot: {place} cannot be written: {why} --{kind} FILE"


def test_a_log_in_a_read_only_folder_asks_for_another_file(log, kind, capsys, monkeypatch):
    def refuse(self, content):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert plot(log, "--only", kind) == 1
    assert said(capsys).endswith(
        f"run.{kind} cannot be written: Read-only file system; name a file that you may write, with --{kind} FILE"
    )


def test_another_file_beside_the_log_stays_as_it_is_and_can_be_named(log, kind, capsys):
    beside = log.with_suffix(f".{kind}")
    beside.write_text("my own page")
    assert plot(log, "--only", kind) == 1
    assert said(capsys) == (
        f"python -m straggler plot: {beside} stays as it is: it holds something else, and was not written by this "
        f"command; name the file to be written with --{kind} FILE"
    )
    assert beside.read_text() == "my own page"
    assert plot(log, "--only", kind, f"--{kind}", beside) == 0
    assert beside.stat().st_size > 1000


def test_the_picture_of_an_earlier_call_and_an_empty_file_are_replaced(log, kind):
    beside = log.with_suffix(f".{kind}")
    beside.touch()
    assert plot(log, "--only", kind) == 0
    first = beside.read_bytes()
    write_log(SimulatedJob(ranks=4, windows=3), log)
    assert plot(log, "--only", kind) == 0
    assert beside.read_bytes() != first


def test_none_is_written_where_one_may_not_be_replaced(log, capsys):
    pytest.importorskip("matplotlib")
    log.with_suffix(".html").write_text("my own page")
    assert plot(log) == 1
    assert "run.html stays as it is" in said(capsys)
    assert not log.with_suffix(".png").exists()


def test_a_log_that_is_named_as_a_page_is_not_replaced_by_it(log, capsys):
    named = log.rename(log.with_suffix(".html"))
    before = named.read_bytes()
    assert plot(named, "--only", "html") == 1
    assert "run.html stays as it is" in said(capsys)
    assert named.read_bytes() == before


def test_a_png_is_written_under_any_name(log, tmp_path):
    pytest.importorskip("matplotlib")
    assert plot(log, "--only", "png", "--png", tmp_path / "picture.of-the-job") == 0
    assert (tmp_path / "picture.of-the-job").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("link", [False, True])
def test_the_log_is_never_written_over(log, kind, tmp_path, capsys, link):
    target = log
    if link:
        target = tmp_path / "link"
        target.symlink_to(log)
    before = log.read_bytes()
    assert plot(log, "--only", kind, f"--{kind}", target) == 1
    assert said(capsys) == (
        f"python -m straggler plot: {target} is the log, so it is not written; name another file with --{kind} FILE"
    )
    assert log.read_bytes() == before


def test_two_pictures_are_two_files(log, tmp_path, capsys):
    assert plot(log, "--png", tmp_path / "x", "--html", tmp_path / "x") == 1
    assert "is where the PNG goes, so it is not written; name another file with --html FILE" in said(capsys)
    assert not (tmp_path / "x").exists()


def test_a_file_for_a_picture_that_is_not_made_is_refused(log, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        plot(log, "--only", "html", "--png", tmp_path / "x")
    assert "--only html makes no other picture" in capsys.readouterr().err


def test_output_that_nobody_takes_makes_no_traceback(log):
    command = [sys.executable, "-m", "straggler", "plot", str(log), "--only", "html"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    why = "the output cannot be written: No space left on device; what it made is there"
    assert (done.returncode, done.stderr) == (1, f"python -m straggler plot: {why}\n")
    assert log.with_suffix(".html").exists()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
