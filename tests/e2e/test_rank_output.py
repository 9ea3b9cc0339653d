"""What ranks write arrives byte for byte, whatever it is and whoever writes in between; all files are in one folder."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, SCRIPTS
from tests.e2e.scripts.writes_bytes import BLOB

pytestmark = pytest.mark.e2e

NEVER_GIVES_UP = {"max_no_progress_cycles": 0, "restart_backoff_after": 0}
OURS = {
    "text": rb"ft_launcher: (?!it was not me)[^\n]*\n",
    "json": rb'\{"time": "2[^\n]*\}\n',
}


def run(launch: Callable[..., Any], *options: object, nproc: int = 1, **ft: Any) -> Any:
    job = launch("writes_bytes.py", nproc=nproc, options=("--max-restarts", 2, *options), **{**NEVER_GIVES_UP, **ft})
    assert job.wait() == 0, job.stderr_path.read_bytes()[-2000:]
    assert len(job.events("started")) == 3
    return job


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_rank_writes_passes_the_launcher_untouched(launch: Callable[..., Any], form: str) -> None:
    job = run(launch, log_format=form)

    assert job.stdout_path.read_bytes() == 3 * BLOB
    said = job.stderr_path.read_bytes()
    assert re.sub(OURS[form], b"", said) == 3 * BLOB
    lines = re.findall(OURS[form], said)
    assert len(lines) > 4
    if form == "json":
        assert {json.loads(line)["event"] for line in lines} >= {"failure", "restart", "started"}


def files_of(job: Any, name: str) -> list[Path]:
    """Those of all generations and ranks, wherever below the log folders."""
    return sorted(job.logs.rglob(name))


@pytest.mark.parametrize("option", ["--redirects", "--tee"])
def test_files_of_ranks_hold_what_they_wrote_and_lie_in_the_run_s_folder(
    launch: Callable[..., Any], option: str
) -> None:
    job = run(launch, option, 3, nproc=2)

    for name in ("stdout.log", "stderr.log"):
        assert [path.read_bytes() for path in files_of(job, name)] == 6 * [BLOB]
    assert {path.relative_to(job.logs).parts[0] for path in files_of(job, "*.log")} == {job.log_folder.name}
    assert list(job.temporary.iterdir()) == []
    shown = job.stdout_path.read_bytes()
    if option == "--redirects":
        assert shown == b""
        assert re.sub(OURS["text"], b"", job.stderr_path.read_bytes()) == b""
    else:
        assert sorted(re.split(rb"(?:\[default[01]\]:)", shown)) == sorted(
            re.split(rb"(?:\[default[01]\]:)", 6 * _prefixed(BLOB))
        )


def test_of_one_rank_the_copy_of_tee_is_what_it_wrote(launch: Callable[..., Any]) -> None:
    job = run(launch, "--tee", 3)

    assert job.stdout_path.read_bytes().replace(b"[default0]:", b"") == 3 * BLOB
    said = job.stderr_path.read_bytes()
    for line in re.findall(rb"^.*ft_launcher: (?!it was not me).*$", said, re.MULTILINE):
        assert line.startswith(b"ft_launcher: "), line[-200:]
    parts = re.split(OURS["text"], said.replace(b"[default0]:", b""))
    assert parts[-1].endswith(b"no end of line\n")
    assert 3 * BLOB in _without_ends_of_lines(parts, 3 * BLOB)


def _without_ends_of_lines(parts: list[bytes], whole: bytes) -> list[bytes]:
    """Return what parts may be of, where each may have been given the end of its line before something else came."""
    begins = {b""}
    for part in parts:
        pieces = {part, part.removesuffix(b"\n")}
        begins = {made for begin in begins for piece in pieces if whole.startswith(made := begin + piece)}
    return list(begins)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_begins_on_a_line_of_its_own_behind_a_copy_of_tee(
    launch: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    """Two ranks leave a line without an end in each generation."""
    script = tmp_path / "tails.py"
    script.write_text(
        "import os\nos.write(2, b'tail')\nos._exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    )
    options = ("--max-restarts", 1, "--tee", 3)
    job = launch(script, nproc=2, options=options, log_format=form, **NEVER_GIVES_UP)
    assert job.wait() == 0
    lines = job.stderr.splitlines()
    assert job.stderr.endswith("\n")
    copies = [line for line in lines if line.startswith("[default")]
    assert all(re.fullmatch(r"(\[default[01]\]:tail)+", line) for line in copies), lines
    assert sum(line.count("tail") for line in copies) in (3, 4)  # a rank may be ended before it writes
    ours = [line for line in lines if line not in copies]
    assert len(ours) > 2
    assert all(json.loads(line)["event"] if form == "json" else line.startswith("ft_launcher: ") for line in ours)
    assert {path.read_bytes() for path in files_of(job, "stderr.log")} - {b""} == {b"tail"}


def _prefixed(raw: bytes) -> bytes:
    """Return what was written with the prefix of ``--tee`` in front of each line and of each carriage return's."""
    return b"".join(b"[default0]:" + piece for piece in re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", raw))


def test_a_message_of_the_monitor_begins_on_a_line_of_its_own(launch: Callable[..., Any], tmp_path: Path) -> None:
    """It is a process of its own, and the launcher, which copies, is stopped."""
    script, end = tmp_path / "bar.py", tmp_path / "end"
    script.write_text(
        "import os, sys, time\nos.write(2, b'50 %\\r')\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n"
    )
    job = launch(script, end, nproc=1, options=("--tee", 3, "--ft-metrics-port", 0), log_format="json")
    job.wait_for_error_output("50 %")
    job.signal(signal.SIGSTOP)
    job.wait_for_error_output("launcher_stopped")
    job.signal(signal.SIGCONT)
    end.touch()
    assert job.wait() == 0
    copies, ours = [], []
    for line in job.stderr_path.read_bytes().split(b"\n")[:-1]:
        (copies if b"50 %" in line else ours).append(line)
    assert copies == [b"[default0]:50 %\r"]
    # Stopped just after it had written the copy, the launcher notes only later that it is in mid-line, and ends that.
    said = [json.loads(line) for line in ours if line]
    assert ours.count(b"") <= 1
    assert ("monitor", "launcher_stopped") in [(each["source"], each["event"]) for each in said]


@pytest.mark.long
def test_no_restart_waits_for_who_reads_the_copy_of_tee(tmp_path: Path) -> None:
    """The job goes on through two restarts and ends; then the reader gets all of it."""
    command = [sys.executable, "-m", "launcher", "--nproc-per-node", "2", "--max-restarts", "2", "--tee", "1"]
    command += ["--log-dir", str(tmp_path / "logs"), "--ft-max-no-progress-cycles", "0", SCRIPTS / "writes_much.py"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, cwd=tmp_path, start_new_session=True) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        end = time.monotonic() + PATIENCE
        while len(list(tmp_path.glob("done.*.2"))) < 2:
            assert job.poll() is None
            assert time.monotonic() < end, list(tmp_path.glob("done*"))
            select.select([], [], [], 0.02)
        shown, said = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, said
    files = sorted((tmp_path / "logs").rglob("stdout.log"))
    assert len(files) == 6
    for rank in (0, 1):
        written = b"".join(path.read_bytes() for path in files if path.parent.name == str(rank))
        assert [line for line in shown.splitlines() if line.startswith(b"[default%d]:" % rank)] == [
            b"[default%d]:" % rank + line for line in written.splitlines()
        ]
    assert said.count(b"the output of ranks (--tee) is not read") == 1
