"""Apply what a script sets before it imports torch, in a warm worker, where torch is imported already.

A new interpreter reads many environment variables while it imports torch. A warm worker's torch was imported in the
zygote. So the worker hides torch (takes it out of ``sys.modules``) until the script imports it, and then compares what
an import would find with what the zygote found. Where the two differ, the worker applies what it still can, and tells
the launcher. From the next generation on, workers come from a zygote that was started with these values, or are
spawned where ranks differ. The launcher announces that.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import attrs

from launcher.zygote.import_time import import_environment, may_be_set_by_a_script
from launcher.zygote.preloading import Preloading
from launcher.zygote.protocol import ImportsDiffer, send_message

__all__ = ["ImportGuard", "TakenImport"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@attrs.define
class TakenImport:
    """What to hide, found once in the zygote."""

    names: tuple[str, ...] = ()
    """Top-level modules whose import is the moment to compare: torch, and what was preloaded that uses torch."""
    reads: frozenset[str] = frozenset()
    """Variables that were seen to be read by the imports."""

    @classmethod
    def survey(cls, preloading: Preloading) -> TakenImport:
        """Look through what the zygote has imported."""
        tops = {name.partition(".")[0] for name in preloading.chosen}
        return cls(("torch", *sorted(top for top in tops if _uses_torch(top))), frozenset(preloading.reads))


class ImportGuard:
    """A finder at the front of ``sys.meta_path`` until torch is imported.

    Args:
        taken: What to hide.
        before: What the zygote's imports found.
        ignored: Variables that the imports themselves set.
        link: To the launcher; closed after the last message.
    """

    def __init__(
        self, taken: TakenImport, before: Mapping[str, str], ignored: Collection[str], link: socket.socket
    ) -> None:
        self._taken = taken
        self._before = before
        self._ignored = ignored
        self._link = link
        self._hidden: dict[str, ModuleType] = {}

    def install(self) -> None:
        """Take the modules out of ``sys.modules``, and wait for their import."""
        self._hidden = {name: sys.modules.pop(name) for name in self._taken.names if name in sys.modules}
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find one of the hidden modules; see ``importlib.abc.MetaPathFinder``.

        Who looks for a module (``importlib.util.find_spec``, as transformers does) does not always import it.
        """
        wanted = self._hidden.get(name)
        if wanted is None:
            return None
        found = wanted.__spec__
        spec = ModuleSpec(name, _Returned(wanted, self._bring_back), origin=found.origin if found else None)
        spec.has_location = found is not None and found.has_location
        if hasattr(wanted, "__path__"):
            spec.submodule_search_locations = list(wanted.__path__)
        return spec

    def _bring_back(self) -> None:
        """Bring everything back: one of the hidden modules is imported."""
        if not self._hidden:
            return
        sys.modules.update(self._hidden)
        self._hidden = {}
        sys.meta_path.remove(self)
        torch = sys.modules.get("torch")
        differences = self.differences()
        with contextlib.suppress(OSError):
            if differences:
                applied = _apply(differences, torch)
                send_message(self._link, ImportsDiffer(differences, tuple(applied)))
        with contextlib.suppress(OSError):  # the script may have closed every descriptor that it finds
            self._link.close()

    def differences(self) -> dict[str, str | None]:
        """Return what an import would find now and did not find then; None for a variable that is gone."""
        now = import_environment(os.environ, self._taken.reads)
        names = {name for name in now.keys() | self._before.keys() if now.get(name) != self._before.get(name)}
        return {
            name: now.get(name)
            for name in sorted(names - set(self._ignored))
            if name in self._taken.reads or may_be_set_by_a_script(name)
        }


class _Returned(Loader):
    """The loader of a module that is loaded already."""

    def __init__(self, module: ModuleType, bring_back: Callable[[], object]) -> None:
        self._module, self._bring_back = module, bring_back
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._bring_back()
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _apply(differences: Mapping[str, str | None], torch: Any) -> list[str]:
    """Apply those settings that torch still takes after it was imported.

    Returns:
        The names of what counts from now on.
    """
    applied: list[str] = []
    for name in _THREADS:
        value = differences.get(name)
        if value is not None and value.isdigit() and int(value) > 0 and torch is not None and not applied:
            torch.set_num_threads(int(value))
            applied.append(name)
    if "TORCH_DISTRIBUTED_DEBUG" in differences and torch is not None and torch.distributed.is_available():
        with contextlib.suppress(RuntimeError, AttributeError):  # a value that torch refuses
            torch.distributed.set_debug_level_from_env()
            applied.append("TORCH_DISTRIBUTED_DEBUG")
    return applied


def _uses_torch(top: str) -> bool:
    """Return whether any module of a package holds something of torch's."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == top:
            for value in list(vars(module).values()):
                owner = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                if isinstance(owner, str) and owner.partition(".")[0] == "torch":
                    return True
    return False
