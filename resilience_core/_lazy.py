"""Lazy package attributes (PEP 562), so that importing a package costs nothing until a name is used.

The monitor process imports ``launcher.monitor.monitor``; that must not drag in everything that ``launcher`` offers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["attach"]


def attach(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    ``__version__`` is one of its names, too. Each name is looked up once, and is an ordinary global from then on.

    Args:
        package: The package's ``__name__``.
        exports: Public name to the submodule that defines it, without the package's name.
    """

    def load(name: str) -> Any:
        if name == "__version__":
            value: Any = importlib.import_module("resilience_core._version").installed_version()
        elif (module := exports.get(name)) is not None:
            value = getattr(importlib.import_module(f"{package}.{module}"), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # from now on found without this function
        return value

    def listing() -> list[str]:
        return sorted(exports)

    return load, listing
