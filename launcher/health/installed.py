"""Checks of other distributions: entry points of the group ``resilience_health``.

An entry point leads to a check, or to a class that makes one without arguments. It is imported at the first look, in
the check's thread and within its bound, since the import may hang as well.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import math
import time
from typing import Any, NamedTuple, cast

from launcher.health.check import Check, Context
from launcher.records.console import WARNING, announce
from resilience_core.system.distributions import distributions_with

__all__ = ["GROUP", "InstalledCheck", "Offer", "installed_checks"]

GROUP = "resilience_health"


class Offer(NamedTuple):
    """An entry point of the group, and who offers it."""

    name: str
    distribution: str
    entry_point: importlib.metadata.EntryPoint


def installed_checks() -> list[Offer]:
    """Find the entry points of the group; warn of a distribution that cannot be read."""
    found = []
    for name in distributions_with(GROUP):
        try:
            distribution = importlib.metadata.distribution(name)
            label = f"{distribution.metadata['Name']} {distribution.version}"
            found += [Offer(each.name, label, each) for each in distribution.entry_points if each.group == GROUP]
        except Exception as error:  # noqa: BLE001 - whatever their files hold
            said = f"no health check of {name} is used: its entry points cannot be read: {error!r}"
            announce(said, level=WARNING, event="health")
    return found


class InstalledCheck:
    """A check of another distribution.

    Args:
        offer: Where it is. The entry point's name is what users write, and what messages say.
        bound_seconds: How long the import, and a check without a bound of its own, may take.
        is_named: Whether the user has named it. One that was not, and cannot be loaded, is left out with a warning.
    """

    def __init__(self, offer: Offer, bound_seconds: float, *, is_named: bool) -> None:
        self.name, self.bound_seconds = offer.name, bound_seconds
        self._offer, self._is_named = offer, is_named
        self._own_bound = bound_seconds
        self._loaded: Check | None = None
        self._is_left_out = False

    def check(self, context: Context) -> str | None:
        """Load the check at the first call, then call it."""
        if self._is_left_out:
            return None
        if self._loaded is None:
            began = time.monotonic()
            context.tell(f"importing {self._offer.entry_point.value} of {self._offer.distribution}")
            try:
                self._loaded = self._load()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it is not ours
                text = f"{self._offer.entry_point.value} of {self._offer.distribution} cannot be loaded: {error!r}"
                if self._is_named:
                    return f"{text}; mend it, or take '{self.name}' out of health_checks"
                self._is_left_out = True
                announce(f"health check '{self.name}' is left out: {text}", level=WARNING, event="health")
                return None
            context.tell("")
            self.bound_seconds = time.monotonic() - began + self._own_bound  # the import has had its time
        try:
            return self._loaded.check(context)
        finally:
            self.bound_seconds = self._own_bound

    def _load(self) -> Check:
        found = self._offer.entry_point.load()
        made: Any = found() if inspect.isclass(found) else found
        if not callable(getattr(made, "check", None)):
            raise TypeError("it has no method check(context)")
        bound = getattr(made, "bound_seconds", None)
        if bound is not None:
            if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 < bound < math.inf:
                raise TypeError(f"its bound_seconds is {bound!r}: give seconds above 0")
            self._own_bound = float(bound)
        return cast("Check", made)
