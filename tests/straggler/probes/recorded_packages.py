"""Stand-ins for cupti-python and nvidia-ml-py that have the names and signatures of a recorded version, and no others.

``recorded_gpu_packages.json`` is the recording, ``record_gpu_packages.py`` makes it from the real packages.
"""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.straggler.probes.record_gpu_packages import RECORDING

RECORDED: dict[str, dict[str, Any]] = json.loads(RECORDING.read_text())
CUPTI_VERSIONS = sorted(RECORDED["cupti-python"])
NVML_VERSIONS = sorted(RECORDED["nvidia-ml-py"])


def signature(arguments: list[str]) -> inspect.Signature:
    """Return the signature of recorded arguments; those followed by ``=`` have a default."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(name.rstrip("="), kind, default=None if name.endswith("=") else inspect.Parameter.empty)
            for name in arguments
        ]
    )


class RecordedPackage:
    """The module of a recorded version: other names raise AttributeError, other arguments TypeError, as the real ones.

    Args:
        package: Name of the distribution.
        version: One that is recorded.
        behaviour: What answers: attributes of the functions' names; a function that it lacks returns 0.
    """

    def __init__(self, package: str, version: str, behaviour: object = None) -> None:
        self._recorded = RECORDED[package][version]
        self._behaviour = behaviour
        self._takes_addresses = package == "cupti-python"
        self.called: list[str] = []
        for name in self._recorded.get("exceptions", ()):
            setattr(self, name, type(name, (Exception,), {}))
        for name, value in self._recorded["values"].items():
            first, _, rest = name.partition(".")
            setattr(self, first, SimpleNamespace(**{rest: value}) if rest else value)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions = self._recorded["functions"]
        if name not in functions:
            raise AttributeError(f"this version has no {name}")

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.called.append(name)
            bound = signature(functions[name]).bind(*arguments, **keywords)
            for argument, value in bound.arguments.items():
                if self._takes_addresses and not argument.startswith("func_"):
                    operator.index(value)  # a number or an address; the binding raises TypeError for all else
            answer = getattr(self._behaviour, name, None)
            return 0 if answer is None else answer(*arguments, **keywords)

        return call
