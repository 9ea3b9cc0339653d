"""A plugin: the duration of every training step, in one file per rank."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from resilience_core import RunContext, hookimpl


class StepLog:
    """Append the duration of every step to ``steps-RANK.jsonl``.

    Args:
        folder: Where the files are written; ``STEP_LOG_DIR`` when None, else the working folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = Path(folder or os.environ.get("STEP_LOG_DIR", "."))
        self.began = 0.0

    @hookimpl
    def setup(self, context: RunContext) -> None:
        self.file = self.folder / f"steps-{context.rank}.jsonl"

    @hookimpl
    def step_start(self) -> None:
        self.began = time.monotonic()

    @hookimpl
    def step_end(self, iteration: int) -> None:
        entry = {"iteration": iteration, "seconds": time.monotonic() - self.began}
        with self.file.open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
