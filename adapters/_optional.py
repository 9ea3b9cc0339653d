"""Packages that only some users have."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = ["first_installed"]


def first_installed(*modules: str, adapter: str, install: str) -> ModuleType:
    """Import the first of some modules that is there, beginning with those that the script has imported already.

    Args:
        *modules: Full module names, the preferred one first.
        adapter: Who needs it.
        install: What to install when none is there.

    Raises:
        ModuleNotFoundError: None of them is installed; one line that says what to do.
    """
    for module in sorted(modules, key=lambda name: name.partition(".")[0] not in sys.modules):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
                raise  # it is there, and lacks something of its own
    raise ModuleNotFoundError(
        f"{adapter} needs {' or '.join(modules)}: pip install {install}", name=modules[0]
    ) from None
