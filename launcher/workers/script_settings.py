"""What a script sets in its environment before it imports torch: guessed from its text, corrected by its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from launcher.workers.script_text import SetByText, read_script, script_file
from launcher.zygote.import_time import may_be_set_by_a_script

__all__ = ["ImportSettings"]


@attrs.define
class ImportSettings:
    """What workers find set at the import of torch, other than what they were started with."""

    values: dict[str, str | None] = attrs.field(factory=dict)
    """By name; None for a variable that is taken out."""
    why_not: str | None = None
    """Why workers have to be spawned; None while they need not."""
    _learned: dict[str, str | None] = attrs.field(factory=dict, init=False)

    @classmethod
    def of_script(cls, target: str, is_module: bool, environment: Mapping[str, str]) -> ImportSettings:
        """Guess from the text.

        Args:
            target: The script, or the module's name.
            is_module: Which of the two.
            environment: What workers are started with.
        """
        path = script_file(target, is_module)
        found = SetByText() if path is None else read_script(path, environment)
        why_not = None
        for name, place in found.untold.items():
            if may_be_set_by_a_script(name):
                why_not = f"{place} sets {name} before torch is imported, to what only a run can tell"
        return cls(found.values, why_not)

    def change(self, environment: Mapping[str, str]) -> bool:
        """Return whether an import of torch finds something else because of them."""
        names = [name for name in self.values if may_be_set_by_a_script(name)]
        return any(environment.get(name) != self.values[name] for name in names)

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment as it is when the script imports torch."""
        merged = {**environment, **self.values}
        return {name: value for name, value in merged.items() if value is not None}

    def learn(self, found: Mapping[str, str | None], applied: Sequence[str], announce: Callable[[str], None]) -> None:
        """Record what a worker found set when it imported torch, where that was not as expected.

        Args:
            found: Values that were not what the zygote's imports had found.
            applied: Names of those that the worker could still apply.
            announce: Called once with a line for people.
        """
        for name, value in found.items():
            if self._learned.setdefault(name, value) != value:
                self.why_not = f"the script sets {name} before it imports torch, not to the same value everywhere"
                return
        if all(name in self.values and self.values[name] == value for name, value in found.items()):
            return
        self.values.update(found)
        told = ", ".join(f"{name}={value}" if value is not None else f"{name} unset" for name, value in found.items())
        late = [name for name in found if name not in applied]
        counts = f"{', '.join(late)} counts from the next generation on" if late else "applied"
        announce(f"the script sets {told} before it imports torch, which its text does not show: {counts}")
