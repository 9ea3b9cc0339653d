"""Writing for people never stands in the way of a restart: nobody reads, nothing is open, a disk hangs or is full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

DIES_WHEN_TOLD = """
import os, sys, time
is_last = os.environ["TORCHELASTIC_RESTART_COUNT"] == "2"
while not os.path.exists(sys.argv[1] + "_to_end" * is_last):
    time.sleep(0.05)
sys.exit(3)
"""
SCRIPTS = Path(__file__).parent / "scripts"


def test_closed_standard_descriptors_are_no_reason_to_fail(tmp_path: Path) -> None:
    """As under some daemons; descriptors 0 to 2 must not become sockets that ranks then print into."""
    arguments = ["--nproc-per-node", "1", "--log-dir", tmp_path, SCRIPTS / "loop.py"]
    command = " ".join([sys.executable, "-m", "launcher", *map(str, arguments)])
    process = subprocess.run(["sh", "-c", f"exec {command} 0<&- 1>&- 2>&-"], check=False, timeout=180)
    assert process.returncode == 0
    log = tmp_path / "latest" / "events.jsonl"
    assert '"finished"' in log.read_text()


@pytest.mark.long
def test_a_standard_error_that_nobody_reads_delays_no_restart(tmp_path: Path) -> None:
    """Its pipe is full before the launcher has said anything."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    limits = ["--nproc-per-node", "1", "--max-restarts", "3", "--ft-restart-backoff-after", "0"]
    with subprocess.Popen(
        # The ranks get another one: what they do with theirs is their business.
        [
            *[sys.executable, "-m", "launcher", *limits, "--redirects", "3", "--log-dir", tmp_path],
            SCRIPTS / "dies_at_once.py",
        ],
        stderr=writer,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.wait(300) == 1
        finally:
            process.kill()
    os.close(reader)
    os.close(writer)
    log = tmp_path / "latest" / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["generation"] for event in events if event["event"] == "started"] == [0, 1, 2, 3]
    assert events[-1]["event"] == "ended"


FROZEN = """
mkfs.ext4 -q "$1/image" && mkdir "$1/disk" && mount -o loop "$1/image" "$1/disk" || exit 77
place=$1; shift
(sleep 150; fsfreeze -u "$place/disk") > /dev/null 2>&1 & watchdog=$!
"$@" 2> "$place/said" & launcher=$!
for _ in $(seq 700); do grep -qs started "$place"/disk/*/events.jsonl && break; sleep 0.1; done
url=http://127.0.0.1:$(grep -ho '"port": [0-9]*' "$place"/disk/latest/events.jsonl | grep -o '[0-9]*$')/metrics
fsfreeze -f "$place/disk" || exit 77
touch "$place/go"
for _ in $(seq 700); do grep -qs "generation 2 started" "$place/said" && break; sleep 0.1; done
cp "$place/said" "$place/said_while_frozen"
"$PYTHON" -c "$SCRAPE" "$url" > "$place/served_while_frozen"
touch "$place/go_to_end"
fsfreeze -u "$place/disk"
wait $launcher; echo "launcher ended with $?"
kill $watchdog
"""

SCRAPE = r"""
import re, sys, time, urllib.request
for _ in range(600):
    page = urllib.request.urlopen(sys.argv[1], timeout=60).read().decode()
    if re.search("^ft_generation.* 2.0$", page, re.MULTILINE):
        break
    time.sleep(0.1)
print(page)
"""


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount and freeze a file system")
def test_a_log_folder_whose_file_system_hangs_delays_no_restart_and_costs_no_count(tmp_path: Path) -> None:
    """A real one, frozen in mid-run: every write to it sleeps until it is thawed, and cannot be killed."""
    with open(tmp_path / "image", "wb") as image:
        image.truncate(16 << 20)
    script = tmp_path / "dies_when_told.py"
    script.write_text(DIES_WHEN_TOLD)
    limits = ["--nproc-per-node", "1", "--max-restarts", "2", "--ft-restart-backoff-after", "0"]
    limits += ["--ft-metrics-port", "0"]
    launcher = [sys.executable, "-m", "launcher", *limits, "--log-dir", tmp_path / "disk", script, tmp_path / "go"]
    shell = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", FROZEN, "bash"]
    process = subprocess.run(
        [*shell, tmp_path, *launcher],
        check=False,
        timeout=240,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, "SCRAPE": SCRAPE},
    )
    if process.returncode == 77:
        pytest.skip("no loop device may be mounted here")
    assert "launcher ended with 1" in process.stdout
    said = (tmp_path / "said_while_frozen").read_text()
    assert "generation 2 started" in said
    assert "no folders for the workers' logs can be made under" in said
    served = (tmp_path / "served_while_frozen").read_text()
    assert re.search(r'^ft_restarts_total\{.*cause="failure".*\} 2\.0$', served, re.MULTILINE)
    assert "Traceback" not in said
