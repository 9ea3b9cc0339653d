"""The last lines of ranks whose output goes to files of the log folder."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incident
from launcher.incidents.incident_writer import IncidentWriter
from launcher.incidents.output_tails import MOST_LINES, OutputTail, output_tail, with_output
from launcher.incidents.rank_report import RankReport


def hang(pid: int) -> Incident:
    return Incident("hang", 0, "why", "SIGKILL to rank 0", (RankReport(0, 0, pid, True, True),))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to two files of the log folder."""
    (tmp_path / "logs").mkdir()
    code = "import sys; print('a step'); print('a warning', file=sys.stderr); sys.stdout.flush(); sys.stdin.read()"
    with (
        open(tmp_path / "logs" / "out", "w") as out,
        open(tmp_path / "logs" / "err", "w") as err,
        subprocess.Popen([sys.executable, "-u", "-c", code], stdin=-1, stdout=out, stderr=err, text=True) as process,
    ):
        while not (tmp_path / "logs" / "err").read_text():
            select.select([], [], [], 0.01)
        yield process
        process.kill()


def test_a_pipe_where_output_went_is_left_alone(tmp_path: Path) -> None:
    """Whoever opens it to read as a file waits until somebody writes."""
    path = tmp_path / "stderr.log"
    os.mkfifo(path)
    found: list[OutputTail] = []
    reader = threading.Thread(target=lambda: found.append(output_tail(str(path), str(path))), daemon=True)
    reader.start()
    reader.join(30)
    assert found == [((), ())]
    path.unlink()
    assert output_tail(str(path), "") == output_tail("/dev/zero", "/dev/null") == ((), ())


def test_the_last_lines_of_both_files_are_read(tmp_path: Path) -> None:
    path, other = tmp_path / "stdout.log", tmp_path / "stderr.log"
    path.write_text("".join(f"line {number}\n" for number in range(MOST_LINES + 10)))
    other.write_bytes(b"caf\xe9\n" + b"x" * 20_000 + b"\nend")
    assert MOST_LINES == 50
    told = output_tail(str(path), str(other))
    assert told.stdout == tuple(f"line {number}" for number in range(10, MOST_LINES + 10))
    assert (len(told.stderr), told.stderr[-1]) == (2, "end")


def test_a_rank_that_hangs_is_told_with_what_it_has_written(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    (told,) = with_output(hang(rank.pid), str(tmp_path / "logs")).ranks
    assert (told.stdout_tail, told.stderr_tail) == (("a step",), ("a warning",))
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    assert with_output(hang(rank.pid), str(tmp_path / "link")).ranks == (told,)


def test_what_goes_elsewhere_is_shared_with_others_and_is_not_told(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    assert with_output(hang(rank.pid), str(tmp_path / "log")) == hang(rank.pid)
    rank.kill()
    rank.wait()
    assert with_output(hang(rank.pid), str(tmp_path / "logs")) == hang(rank.pid)


def test_the_incident_of_a_hang_has_it_on_disk(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    written, problem = IncidentWriter(str(tmp_path / "logs")).write(hang(rank.pid))
    assert problem is None
    assert written.folder is not None
    assert read_incident(written.folder).ranks[0].stdout_tail == ("a step",)
    report = Path(written.folder, "report.txt").read_text()
    assert "  last lines of standard output\n    a step\n  last lines of standard error\n    a warning\n" in report
