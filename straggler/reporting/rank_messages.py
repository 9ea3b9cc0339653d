"""The words that rank 0 sends back: JSON, one per rank, with what concerns that rank only.

Sent when every rank wants a report of its own (``gather_on_rank0=False``) or has to act on rank 0's decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from straggler.scoring.robust_scores import UNKNOWN, Window
from straggler.scoring.scorer import Outcome

if TYPE_CHECKING:
    from straggler.reporting.report import Report

__all__ = ["restrict", "words_for"]

Float32 = npt.NDArray[np.float32]


def words_for(report: Report, decision: Mapping[str, Any], *, details: bool) -> dict[int, bytes]:
    """One word for each rank of the job.

    Args:
        report: Of all ranks.
        decision: What rank 0 has decided; every rank is told the same.
        details: Also each rank's own scores and verdict.
    """
    common = {"decision": dict(decision)}
    if not details:
        word = json.dumps(common).encode()
        return dict.fromkeys(range(report.world_size), word)
    return {
        rank: json.dumps({**common, **_details(report.outcome, rank)}).encode() for rank in range(report.world_size)
    }


def _details(outcome: Outcome, rank: int) -> dict[str, Any]:
    return {
        "names": outcome.names.tolist(),
        "arrival": outcome.arrival.tolist(),
        "relative": _column(outcome.relative, rank),
        "individual": _column(outcome.individual, rank),
        "gpu_relative": _cell(outcome.gpu_relative, rank),
        "gpu_individual": _cell(outcome.gpu_individual, rank),
        "window": _window(outcome.window, rank),
        "own_past": _window(outcome.own_past, rank),
        "seconds": _column(outcome.seconds, rank),
        "measured": _number(float(outcome.measured[rank])),
        "waited": _number(float(outcome.waited[rank])),
        "job_wide": list(outcome.job_wide),
        "ambiguous": [list(pair) for pair in outcome.ambiguous if rank in pair],
    }


def _window(window: Window | None, rank: int) -> dict[str, Any] | None:
    if window is None:
        return None

    def column(values: npt.NDArray[Any]) -> list[float | None]:
        wide = np.broadcast_to(values, window.state.shape)
        return [_number(float(value)) for value in wide[:, rank]]

    rows = window.state.shape[0]
    return {
        "names": window.names.tolist(),
        "excess": column(window.excess),
        "drift": column(window.drift),
        "state": window.state[:, rank].tolist(),
        "since": window.since[:, rank].tolist(),
        "reference": column(window.reference),
        "spread": column(window.spread),
        "noise": column(window.noise),
        "recent": [column(x) for x in window.recent if x.shape[0] == rows],
        "k": window.k,
        "number": window.number,
    }


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _cell(values: npt.NDArray[np.float64] | None, rank: int) -> list[float | None] | None:
    return None if values is None else [_number(float(values[rank]))]


def _column(values: npt.NDArray[np.float64] | None, rank: int) -> list[float | None] | None:
    return None if values is None else [_number(float(value)) for value in values[:, rank]]


def restrict(word: Mapping[str, Any] | None, rank: int, ranks: int) -> Outcome:
    """An outcome that knows one rank only.

    Args:
        word: What rank 0 sent with details; None: nothing, so that everything is unknown.
        rank: The rank that it is about.
        ranks: Ranks in the job.
    """
    details = dict(word or {})
    names = np.array(details.get("names", []), dtype=np.uint64)

    def wide(column: list[float | None] | None, kind: type = np.float64) -> Any:
        if column is None:
            return None
        full: npt.NDArray[Any] = np.full((len(column), ranks), np.nan, dtype=kind)
        full[:, rank] = [np.nan if value is None else value for value in column]
        return full

    def flat(cell: list[float | None] | None) -> Any:
        made = wide(cell)
        return None if made is None else made[0]

    def window(plain: Mapping[str, Any] | None) -> Window | None:
        if plain is None:
            return None
        state = np.full((len(plain["names"]), ranks), UNKNOWN, dtype=np.uint8)
        state[:, rank] = plain["state"]
        since = np.zeros(state.shape, dtype=np.int32)
        since[:, rank] = plain["since"]
        return Window(
            names=np.array(plain["names"], dtype=np.uint64),
            excess=wide(plain["excess"], np.float32),
            drift=wide(plain["drift"], np.float32),
            state=state,
            since=since,
            reference=wide(plain["reference"], np.float32),
            spread=wide(plain["spread"], np.float32),
            noise=wide(plain["noise"], np.float32),
            recent=tuple(wide(x, np.float32) for x in plain["recent"]),
            k=plain["k"],
            number=plain["number"],
        )

    relative, seconds = wide(details.get("relative")), wide(details.get("seconds"))
    waited, measured = np.full(ranks, np.nan), np.zeros(ranks)
    measured[rank] = details.get("measured") or 0.0
    if details.get("waited") is not None:
        waited[rank] = details["waited"]
    return Outcome(
        names=names,
        arrival=np.array(details.get("arrival", []), dtype=bool),
        relative=relative,
        individual=wide(details.get("individual")),
        gpu_relative=flat(details.get("gpu_relative")),
        gpu_individual=flat(details.get("gpu_individual")),
        window=window(details.get("window")),
        own_past=window(details.get("own_past")),
        seconds=seconds if seconds is not None else np.zeros((0, ranks)),
        measured=measured,
        waited=waited,
        job_wide=tuple(details.get("job_wide", ())),
        ambiguous=tuple((int(a), int(b)) for a, b in details.get("ambiguous", ())),
    )
