"""`python -m benchmarks.top` measures a table that is really shown. No timings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytestmark = pytest.mark.benchmark_guard

ROOT = Path(__file__).resolve().parents[2]


def test_it_watches_ranks_that_move_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.top", "--ranks", "4", "--seconds", "1", "--interval", "0.1"]
    said = subprocess.run(
        [*command, "--step", "0.05", "--goal", "1000", "--parent", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (said.returncode, said.stderr) == (0, "")
    found = re.search(
        r"^4 ranks, .* s: ([\d.]+) s of processor time in ([\d.]+) s, .*; (\d+) writes", said.stdout, re.MULTILINE
    )
    assert found is not None, said.stdout
    assert float(found[1]) > 0
    assert int(found[3]) >= 3
    assert list(tmp_path.iterdir()) == []


PATCHED = """
import sys
from benchmarks import top
top._PROGRAM, top._LONGEST_START_SECONDS, top._LONGEST_END_SECONDS = sys.argv.pop(1), 1.0, 0.5
sys.exit(top.main())
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)", "has shown no table within 1 s"),
        ("pass", "has ended by itself"),
    ],
)
def test_it_waits_neither_for_a_table_nor_for_an_end_that_never_come(tmp_path: Path, program: str, said: str) -> None:
    command = [sys.executable, "-c", PATCHED, program, "--ranks", "1", "--seconds", "1", "--parent", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"ft_top {said}\n")
    assert list(tmp_path.iterdir()) == []
