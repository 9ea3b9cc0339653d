"""What a type checker tells a user: a misspelt name of ours is an error, and so is a misspelt argument."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Line by line: what is checked, and whether it is in order.
LINES = (
    ("from resilience_core import RankMonitorClient, EventBus", True),
    ("from resilience_core import RankMonitorClinet", False),
    ("from adapters import FaultTolerance", True),
    ("from adapters import FaultTolerence", False),
    ("from launcher import start_monitor", True),
    ("from launcher import start_moniter", False),
    ("from straggler import Detector", True),
    ("from straggler import Detecter", False),
    ("import resilience_core; resilience_core.EventBuss", False),
    ("FaultTolerance(autoresume=True)", True),
    ("FaultTolerance(autoresum=True)", False),
    ("from adapters.huggingface import protect", True),
    ("protect(None, calculate_timeouts=True)", True),
    ("protect(None, calculate_timeout=True)", False),
)


@pytest.mark.long
def test_a_misspelt_name_is_a_type_error(tmp_path: Path):
    mypy = Path(sys.executable).with_name("mypy")
    if not mypy.exists():
        pytest.skip("mypy is not installed")
    script = tmp_path / "script.py"
    script.write_text("".join(f"{line}\n" for line, _ in LINES))
    done = subprocess.run(
        [mypy, "--config-file", ROOT / "setup.cfg", str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    wrong = {int(number) for number in re.findall(r"script\.py:(\d+): error", done.stdout)}
    assert wrong == {number for number, (_, is_right) in enumerate(LINES, 1) if not is_right}, done.stdout


@pytest.mark.parametrize("name", ["resilience_core", "adapters", "launcher", "straggler"])
def test_the_public_names_are_those_that_are_exported(name: str):
    package = __import__(name)
    assert sorted(package._EXPORTS) == list(package.__all__)
    assert set(package.__all__) <= set(dir(package))
