"""The exit codes that scripts decide by: the same in code, help, documentation and configuration."""

from __future__ import annotations

import ast
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
    named = re.findall(r"\b(\d+) (?:done|failed|not started|refused|given up)", sentence)
    assert [int(code) for code in named] == codes


def test_a_signal_is_reported_as_shells_do() -> None:
    assert exit_codes.by_signal(15) == 143


def test_no_module_exits_with_a_bare_number() -> None:
    """Each code has a name, with a line that says what it means."""
    bare = []
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os._exit", "sys.exit"):
                bare += [
                    f"{path.name}:{node.lineno}"
                    for argument in node.args
                    for each in ast.walk(argument)
                    if isinstance(each, ast.Constant) and isinstance(each.value, int)
                ]
    assert bare == []
