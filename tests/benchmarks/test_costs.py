"""`python -m benchmarks.costs` measures what its lines say. No timings."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import costs
from launcher.processes import process_marks as marks_module

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.benchmark_guard


def test_a_mark_is_left_each_time_and_the_limit_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(costs._RLIMIT_LOCKS)
    seen: list[int] = []

    def note(cell: str) -> None:
        marks_module.leave_mark(cell)
        seen.append(resource.getrlimit(costs._RLIMIT_LOCKS)[0])

    monkeypatch.setattr(costs, "leave_mark", note)
    assert len(costs.marks(3, str(tmp_path))) == 3
    assert len(seen) == 3
    assert before[0] not in seen
    assert resource.getrlimit(costs._RLIMIT_LOCKS) == before


def test_first_lines_are_reached_by_workers_of_both_zygotes(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from benchmarks import costs; costs.become_subreaper(); "
        "print(*map(len, costs.first_lines(2, Path(sys.argv[1]), 'json')))"
    )  # to adopt orphans is for the rest of a process's life
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (["2", "2"], 0), done.stderr


def test_a_line_has_median_maximum_and_ratio(capsys: pytest.CaptureFixture[Any]) -> None:
    costs.show("a mark", [1e-6, 3e-6, 2e-6])
    costs.show("a group", [1e-3, 4e-3], [1e-3])
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"a mark +2\.00 us in the median, +3\.00 us at most", first)
    assert re.fullmatch(r"a group +2\.50 ms in the median, +4\.00 ms at most, 2\.50 times that before", second)
