"""The exit codes that scripts decide by: the same in code, help, documentation and configuration."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.processes import exit_codes
from resilience_core import FaultToleranceConfig

ROOT = Path(__file__).parents[3]


def test_the_configurations_default_is_the_code_that_is_documented() -> None:
    assert FaultToleranceConfig().no_restart_exit_code == exit_codes.NO_RESTART


def test_help_and_documentation_name_every_code_once() -> None:
    codes = [exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.REFUSED, exit_codes.NO_RESTART]
    assert len(set(codes)) == len(codes)
    explained = [int(code) for code in re.findall(r"^  (\d+)  ", exit_codes.EXPLANATION, re.MULTILINE)]
    assert explained == [*codes, 128] or explained == codes
    text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    sentence = " ".join(text.partition("Exit codes: ")[2].split())
    assert [int(code) for code in re.findall(r"\b(\d+) (?:done|failed|not started|given up)", sentence)] == codes


def test_a_signal_is_reported_as_shells_do() -> None:
    assert exit_codes.by_signal(15) == 143
