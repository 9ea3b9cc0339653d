"""Find out which of a warm worker's modules its script must import again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from launcher.zygote.import_guard import TakenImport
from launcher.zygote.preloading import Preloading

__all__ = ["forget_our_own_modules", "found", "kept_alive", "survey"]

_OURS = ("launcher", "torch_resilience")
kept_alive: list[Any] = []
"""What a worker no longer uses and must not destroy: other modules may still refer to its contents."""


def survey(environment_before: Mapping[str, str], import_time: Mapping[str, str], preloading: Preloading) -> None:
    """Note what is loaded, in the zygote, so that no worker has to go through it.

    Args:
        environment_before: As it was before the imports.
        import_time: The part of it that was read by them.
        preloading: What is known about them.

    To look at two thousand module names writes their reference counts, and so copies pages that a worker shares with
    the zygote. In the worker, that would add ten milliseconds to every restart.
    """
    names = list(sys.modules)
    found.ours = [name for name in names if name.partition(".")[0] in _OURS]
    found.set_at_import = {name for name in os.environ if os.environ[name] != environment_before.get(name)}
    found.tops = frozenset(name.partition(".")[0] for name in names)
    found.import_time = dict(import_time)
    found.ignored = frozenset(found.set_at_import)
    found.taken = TakenImport.survey(preloading)


@attrs.define
class _Survey:
    ours: list[str] = attrs.field(factory=list)
    set_at_import: set[str] = attrs.field(factory=set)
    """Variables that preloaded modules have set; they would have set them in the worker, too."""
    tops: frozenset[str] = frozenset()
    import_time: dict[str, str] = attrs.field(factory=dict)
    """What the imports found of the variables that are read at import."""
    ignored: frozenset[str] = frozenset()
    taken: TakenImport = attrs.field(factory=TakenImport)


def forget_our_own_modules(first_path: str) -> None:
    """Forget our own modules, and each loaded module that a file in the script's folder would replace."""
    for name in found.ours:
        kept_alive.append(sys.modules.pop(name, None))
    beside = {name.partition(".")[0] for name in _names_in(first_path)}
    shadowed = {top for top in beside & found.tops if _comes_from_elsewhere(top, first_path)}
    if shadowed:
        for name in [name for name in sys.modules if name.partition(".")[0] in shadowed]:
            kept_alive.append(sys.modules.pop(name))


def _names_in(path: str) -> list[str]:
    """Return what lies in a folder or, at its top, in an archive."""
    with contextlib.suppress(OSError):
        if os.path.isdir(path or "."):
            return os.listdir(path or ".")
        if sys.path_importer_cache.get(path) is not None:
            import zipfile

            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
                return [name.partition("/")[0] for name in archive.namelist()]
    return []


def _comes_from_elsewhere(top: str, folder: str) -> bool:
    if top == "__main__" or top in sys.builtin_module_names:
        return False
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if not isinstance(origin, str) or not os.path.isabs(origin):
        return False
    # Only what an import would really find in the folder: a module file, or a package.
    if not os.path.isdir(folder or "."):
        return getattr(sys.path_importer_cache.get(folder), "find_spec", lambda _: None)(top) is not None
    candidates = (os.path.join(folder, top + ".py"), os.path.join(folder, top, "__init__.py"))
    return not origin.startswith(os.path.join(folder, "")) and any(map(os.path.exists, candidates))


found = _Survey()
"""What :func:`survey` has noted in this process."""
