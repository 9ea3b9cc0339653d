"""One module per framework: each translates the framework's own callbacks into the events of the bus.

``adapters.ddp`` for a raw loop, ``adapters.lightning``, ``adapters.megatron``, ``adapters.huggingface``. Importing
this package imports none of them, so that nobody needs a framework that is not theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from adapters.ddp import FaultTolerance as FaultTolerance

    __version__: str

__distribution__ = "torch-resilience"

_EXPORTS = {"FaultTolerance": "ddp"}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there
    __getattr__, __dir__ = attach(__name__, _EXPORTS)

__all__ = [
    "FaultTolerance",
]
