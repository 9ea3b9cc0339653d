"""Whether a training script names the client, told from its text, without running any of it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence

from launcher.processes.working_folder import completed, working_folder
from launcher.workers.script_text import module_files
from resilience_core.system.plain_files import only_plain

__all__ = ["names_the_client", "script_of"]

_PACKAGES = frozenset({"resilience_core", "adapters"})
_OURS = re.compile(rb"\b(?:resilience_core|adapters)\b")
_MOST_FILES = 200
_LARGEST_BYTES = 1 << 20


def names_the_client(command: Sequence[str]) -> bool:
    """Return whether the script of a command, or a module beside it that it imports, imports our packages.

    Files are found where Python would find the script's own modules: in its folder, and in the working folder for
    ``-m``. Installed packages are not searched. What is imported by other means (an entry point, a name in a
    configuration file) is not seen, so False means no more than that nothing tells.

    Args:
        command: Program and arguments, as a worker is started with.
    """
    script, folder = script_of(command)
    if script is None:
        return False
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MOST_FILES:
        text = _read(waiting.pop())
        try:
            names = list(_imports(text))
        except (SyntaxError, ValueError, RecursionError):
            if _OURS.search(text):
                return True  # not Python, perhaps a shell script around it, but it names our packages
            continue
        if not _PACKAGES.isdisjoint(name.partition(".")[0] for name in names):
            return True
        for path in (path for name in names for path in module_files(name, folder)):
            if path not in seen:
                seen.add(path)
                waiting.append(path)
    return False


def script_of(command: Sequence[str]) -> tuple[str | None, str]:
    """Return the script that a command runs, None where that cannot be told, and the folder that its modules lie in."""
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "-m":
            name = next(arguments, "")
            here = working_folder() or ""
            files = (path for module in (name, f"{name}.__main__") for path in module_files(module, here))
            return next(files, None), here
        if argument == "-c":
            return None, ""
        if not argument.startswith("-") and os.path.isfile(argument):
            return argument, os.path.dirname(completed(argument))
    return None, ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", opener=only_plain) as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return b""


def _imports(text: bytes) -> Iterator[str]:
    """Return every module that a text imports, wherever in it; of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)
