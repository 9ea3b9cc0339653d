"""KeptPast: what ranks took before, kept for the next generation of the job.

After a restart by the launcher each rank is compared with its own past of before. That is kept in a file beside the log
of reports, ``<log>.past``: the user has named that place, it outlives the processes, and rank 0, which scores, is the
only one that writes there. The state of learned limits is a file of each rank's, and most jobs without a log of reports
ask no such question. So without ``log_path`` the past begins anew with every generation.

The past is taken only by a later generation of the same run, with as many ranks, on the same hosts in the same order,
in the same peer groups, and only where all ranks are in the first report: a rank of which anything else is known would
be compared with another machine, or with other work. What ranks are to their peers is not kept, since a rank that is
slow against its peers only while it warms up would be measured against a past without that.

The file is read by a thread of its own, and written by one, to a new file that replaces the old one: a file system that
hangs stops no report. It holds numbers only, as text of base64. Something else that stands in its place is left there;
where that is a link, the file it leads to is replaced.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resilience_core.hookspecs import RunContext
from straggler.exchange.gathered import GatheredWindows
from straggler.reporting.own_files import begins_as, not_replaceable_because
from straggler.scoring.past import HasPast, Past
from straggler.scoring.scorer import Scorer, Scores

__all__ = ["KeptPast"]

logger = logging.getLogger(__name__)

_FORMAT, _VERSION = "straggler-past", 1
_RUN_VARIABLE = "TORCHELASTIC_RUN_ID"
_EVERY_SECONDS = 5.0
_LEAST_REST = 50.0
"""A write is followed by so many times its own length without one."""
_LAST_WRITE_SECONDS = 1.0


class KeptPast:
    """Keeps the past of a scorer in a file, and gives it to the scorer of the next generation.

    Args:
        path: The file.
        generation: Restarts of the job before this one; in generation 0 nothing is read.
        run: Name of the run.
    """

    def __init__(self, path: Path, generation: int, run: str) -> None:
        self.path = path
        self._run, self._generation = run, generation
        self._found: dict[str, Any] | None = None
        self._is_first = True
        self._rests_until = -np.inf
        self._latest: tuple[HasPast, GatheredWindows] | None = None
        self._writer: threading.Thread | None = None
        self._has_failed = False
        self._reader = threading.Thread(target=self._read, name="straggler-past", daemon=True)
        if generation > 0:
            with contextlib.suppress(RuntimeError):  # the system refuses a thread: the past begins anew
                self._reader.start()

    @classmethod
    def beside(cls, log_path: Path | None) -> KeptPast | None:
        """Return what is kept beside a log of reports; None without one, and without a launcher that restarts."""
        run = os.environ.get(_RUN_VARIABLE, "")
        if log_path is None or not run:
            return None
        return cls(log_path.with_name(log_path.name + ".past"), RunContext.from_environment().restart_count, run)

    def score(self, scorer: Scorer, gathered: GatheredWindows) -> Scores:
        """Score a report: the first one with the past of the generation before, and each is noted for the next."""
        if self._is_first and self._generation > 0:
            self._give(scorer.own_past, gathered)
        self._is_first = False
        scores = scorer.score(gathered)
        self._latest = (scorer.own_past, gathered)
        if time.monotonic() >= self._rests_until and (self._writer is None or not self._writer.is_alive()):
            self._start_to_write()
        return scores

    def _give(self, scorer: HasPast, gathered: GatheredWindows) -> None:
        if self._reader.ident is not None:
            self._reader.join(_LAST_WRITE_SECONDS)
        found = self._found
        if found is None:
            return
        try:
            reason = _unfit(found, self._head(gathered), self._generation)
            if not reason and not gathered.present.all():
                reason = "not all ranks were in the first report"
            if reason:
                logger.info("straggler: the past in %s is not used (%s); it begins anew", self.path, reason)
                return
            scorer.take_past({kind: _decoded(of, gathered.world_size) for kind, of in found["past"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._say_damaged(error)

    def close(self) -> None:
        """Write what was noted last; waits a second at most."""
        if self._writer is not None:
            self._writer.join(_LAST_WRITE_SECONDS)
            if self._writer.is_alive():
                return
        if self._latest is not None:
            self._start_to_write()
            if self._writer is not None:
                self._writer.join(_LAST_WRITE_SECONDS)
        self._latest = None

    def _start_to_write(self) -> None:
        assert self._latest is not None
        began = time.monotonic()
        scorer, gathered = self._latest
        kept = {**self._head(gathered), "past": {kind: _encoded(of) for kind, of in scorer.past().items()}}
        writer = threading.Thread(target=self._write, args=(kept, began), name="straggler-past", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system refuses a thread: the next report tries again
            writer.start()
            self._writer = writer

    def _write(self, kept: Mapping[str, Any], began: float) -> None:
        if not self._is_taken():
            self._replace(json.dumps(kept))
        self._rests_until = time.monotonic() + max(_EVERY_SECONDS, _LEAST_REST * (time.monotonic() - began))

    def _replace(self, text: str) -> None:
        new = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            target = self.path.resolve()
            new = target.with_name(f".{target.name}.{os.getpid()}")
            new.write_text(text, encoding="utf-8")
            os.replace(new, target)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            if new is not None:
                with contextlib.suppress(OSError, ValueError):
                    new.unlink()
            self._say_not_kept("%s", error)

    def _is_taken(self) -> bool:
        """Return whether something else stands at the path, and say so once."""
        why = not_replaceable_because(self.path, lambda head: begins_as(head, _FORMAT))
        if why:
            self._say_not_kept("%s and is left as it is; move it away, or give another log_path", why)
        return bool(why)

    def _say_not_kept(self, why: str, of: object) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning(f"straggler: the past of ranks cannot be kept in %s: {why} (said once)", self.path, of)

    def _read(self) -> None:
        if self._is_taken():
            return
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["format"] != _FORMAT or found["version"] != _VERSION:
                raise ValueError(f"format {found['format']!r}, version {found['version']!r}")
            self._found = found
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._say_damaged(error)

    def _say_damaged(self, error: Exception) -> None:
        logger.warning(
            "straggler: the past of ranks in %s cannot be read (%s: %s); it begins anew",
            self.path,
            type(error).__name__,
            error,
        )

    def _head(self, gathered: GatheredWindows) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "run": self._run,
            "generation": self._generation,
            "world_size": gathered.world_size,
            "nodes": list(gathered.nodes),
            "peer_groups": gathered.peer_groups.tolist(),
        }


def _unfit(found: Mapping[str, Any], head: Mapping[str, Any], generation: int) -> str:
    """Return why a past is not that of these ranks, ``""`` where it is."""
    for key, what in (
        ("run", "it is of another run"),
        ("world_size", "the job has another number of ranks"),
        ("nodes", "ranks are on other hosts"),
        ("peer_groups", "ranks are in other peer groups"),
    ):
        if found[key] != head[key]:
            return what
    return "" if found["generation"] < generation else "it is of no earlier generation"


def _encoded(past: Past) -> dict[str, str]:
    return {
        "names": _text(past.names.astype("<u8")),
        "seconds": _text(past.seconds.astype("<f4")),
        "learnt": _text(past.learnt.astype("<f4")),
    }


def _text(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _decoded(found: Mapping[str, str], ranks: int) -> Past:
    def array(key: str, kind: str) -> npt.NDArray[Any]:
        return np.frombuffer(base64.b64decode(found[key], validate=True), dtype=kind)

    names = array("names", "<u8").astype(np.uint64)
    shape = (len(names), ranks)
    seconds = array("seconds", "<f4").astype(np.float32).reshape(shape)
    learnt = array("learnt", "<f4").astype(np.float32).reshape(shape)
    if (seconds <= 0.0).any() or np.isinf(seconds).any() or not (np.isfinite(learnt) & (learnt >= 0.0)).all():
        raise ValueError("a time that is not above 0 and finite")
    if len(np.unique(names)) != len(names):
        raise ValueError("a row is there twice")
    return Past(names, seconds, learnt)
