"""Find py-spy, which takes stacks from outside of a process."""

from __future__ import annotations

import os
import shutil
import sys

from resilience_core.environment import PY_SPY_VARIABLE

__all__ = ["find_py_spy"]


def find_py_spy() -> str | None:
    """Return the program named by ``FT_PY_SPY`` (``none``: do without), else that beside this Python, else on PATH."""
    named = os.environ.get(PY_SPY_VARIABLE)
    if named:
        return None if named == "none" else named
    beside_python = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside_python if os.access(beside_python, os.X_OK) else shutil.which("py-spy")
