"""The module with the entry points: what it may not import must agree with what it stands for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import torch_resilience
from launcher.processes import exit_codes


def test_a_refusal_has_the_exit_code_of_the_launcher() -> None:
    """It is made where ``launcher`` may be somebody else's, so that the code cannot be imported there."""
    assert torch_resilience._REFUSED == exit_codes.REFUSED


def test_a_package_in_place_of_ours_is_refused_with_that_code(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch_resilience; torch_resilience.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == exit_codes.REFUSED
    assert "another package has taken an import name of ours" in done.stderr


@pytest.mark.parametrize("command", ["report", "top"])
def test_ctrl_c_while_modules_are_imported_ends_a_command_without_a_traceback(command: str) -> None:
    program = (
        "import importlib, sys, torch_resilience\n"
        "def interrupted(name): raise KeyboardInterrupt\n"
        "importlib.import_module = interrupted\n"
        f"torch_resilience.{command}()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
