"""Console entry points in a module with a unique name.

The packages of this distribution have common names (``resilience_core``, ``adapters``, ``launcher``,
``straggler``), and pip lets another distribution overwrite one of them without a warning. The commands
(``ft_launcher``, ``ft_autoresume``, ``ft_report``, ``ft_top``) therefore start here, in a module that no other
distribution has, and check the packages before they import them.

``python -m torch_resilience`` checks an installation and prints the result.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import sys
from typing import NoReturn

__all__ = ["PACKAGES", "autoresume", "foreign_packages", "main", "report", "top"]

PACKAGES = ("resilience_core", "adapters", "straggler", "launcher")
_HOME = os.path.dirname(os.path.realpath(__file__))
_REFUSED = 2
"""``launcher.processes.exit_codes.REFUSED``, which cannot be imported where ``launcher`` may be somebody else's."""


def foreign_packages() -> dict[str, str]:
    """Return which of our import names lead to something else.

    Returns:
        Name to the file or folder found in its place, or ``missing``; empty when every name leads to our package.
    """
    return {name: place for name in PACKAGES if (place := _found(name)) != os.path.join(_HOME, name)}


def _found(name: str) -> str:
    """Return the folder that a package's name leads to; the foreign file where it was overwritten in place."""
    loaded = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    if spec is None:
        return "missing"
    if spec.origin is None or spec.submodule_search_locations is None:
        return spec.origin or "a folder without __init__.py: " + ", ".join(spec.submodule_search_locations or ())
    folder = os.path.dirname(os.path.realpath(spec.origin))
    if folder == os.path.join(_HOME, name) and not _is_ours(spec.origin):
        return f"{spec.origin} (overwritten by another distribution)"
    return folder


def _is_ours(init_file: str) -> bool:
    """Return whether a package's ``__init__`` has our signature; pip overwrites files in place without a warning."""
    with open(init_file, encoding="utf-8", errors="replace") as file:
        return '__distribution__ = "torch-resilience"' in file.read()


def explain(foreign: dict[str, str]) -> str:
    """Return a message for people: which names are taken, by what, and what to do."""
    found = "\n".join(
        f"  {name}: expected {os.path.join(_HOME, name)}, found {place}" for name, place in foreign.items()
    )
    return (
        f"torch-resilience cannot run: another package has taken an import name of ours.\n{found}\n"
        "Uninstall the other distribution (or rename the folder that shadows ours), then reinstall "
        "torch-resilience; a new virtual environment with torch-resilience alone always works."
    )


def main() -> None:
    """Entry point of the command ``ft_launcher``."""
    _refuse_foreign("ft_launcher")
    from launcher.cli import console_main

    console_main()


def autoresume() -> None:
    """Entry point of the command ``ft_autoresume``."""
    _refuse_foreign("ft_autoresume")
    from launcher.autoresume import main as run_again

    sys.exit(run_again())


def report() -> None:
    """Entry point of the command ``ft_report``."""
    _refuse_foreign("ft_report")
    _exit_with("launcher.report")


def top() -> None:
    """Entry point of the command ``ft_top``."""
    _refuse_foreign("ft_top")
    _exit_with("launcher.top")


def _exit_with(module: str) -> NoReturn:
    """Run the ``main`` of a module; Ctrl-C ends it without a traceback, also while modules are imported."""
    try:
        code: int = importlib.import_module(module).main()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


def _refuse_foreign(command: str) -> None:
    foreign = foreign_packages()
    if foreign:
        print(f"{command}: error: {explain(foreign)}", file=sys.stderr)
        sys.exit(_REFUSED)


if __name__ == "__main__":
    _foreign = foreign_packages()
    print(explain(_foreign) if _foreign else f"torch-resilience is sound: {', '.join(PACKAGES)} in {_HOME}")
    sys.exit(_REFUSED if _foreign else 0)
