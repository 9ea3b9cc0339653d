"""The messages that rank 0 sends back: JSON with a version, one per rank, with what concerns that rank only.

Sent when every rank wants a report of its own (``gather_on_rank0=False``) or has to act on rank 0's decision.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.errors import WireError
from straggler.scoring.robust_scores import UNKNOWN, RobustScores
from straggler.scoring.scorer import Scores

__all__ = ["VERSION", "RankMessage", "decode_for_rank", "encode_for_ranks", "unknown_scores"]

# Raised with every change of a field.
VERSION = 2


@attrs.frozen
class RankMessage:
    """What rank 0 sends to one rank after a report.

    Args:
        decision: What rank 0 has decided; every rank is told the same.
        scores: The scores, known for that rank only; None where they were not asked for.
    """

    decision: Mapping[str, Any]
    scores: Scores | None = None


def encode_for_ranks(scores: Scores, decision: Mapping[str, Any], ranks: int, *, details: bool) -> dict[int, bytes]:
    """Return the encoded :class:`RankMessage` of each rank of the job.

    Args:
        scores: Of all ranks.
        decision: What rank 0 has decided, JSON values.
        ranks: Ranks in the job.
        details: Send each rank its own scores, too.
    """
    common = {"version": VERSION, "decision": dict(decision)}
    if not details:
        message = json.dumps(common).encode()
        return dict.fromkeys(range(ranks), message)
    return {rank: json.dumps({**common, "scores": _details(scores, rank)}).encode() for rank in range(ranks)}


def _details(scores: Scores, rank: int) -> dict[str, Any]:
    return {
        "names": scores.names.tolist(),
        "arrival": scores.arrival.tolist(),
        "relative": _column(scores.relative, rank),
        "individual": _column(scores.individual, rank),
        "gpu_relative": _cell(scores.gpu_relative, rank),
        "gpu_individual": _cell(scores.gpu_individual, rank),
        "against_peers": _robust(scores.against_peers, rank),
        "against_past": _robust(scores.against_past, rank),
        "seconds": _column(scores.seconds, rank),
        "measured": _number(float(scores.measured[rank])),
        "waited": _number(float(scores.waited[rank])),
        "kept_waiting": None if scores.kept_waiting is None else _number(float(scores.kept_waiting[rank])),
        "job_wide": list(scores.job_wide),
        "ambiguous": [list(pair) for pair in scores.ambiguous if rank in pair],
    }


def _robust(window: RobustScores | None, rank: int) -> dict[str, Any] | None:
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
        "strength": column(window.strength),
        "level_bar": column(window.level_bar),
        "in_means": column(window.in_means),
        "groups": [list(group) for group in window.groups],
    }


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _cell(values: npt.NDArray[np.float64] | None, rank: int) -> list[float | None] | None:
    return None if values is None else [_number(float(values[rank]))]


def _column(values: npt.NDArray[np.float64] | None, rank: int) -> list[float | None] | None:
    return None if values is None else [_number(float(value)) for value in values[:, rank]]


def decode_for_rank(message: bytes, rank: int, ranks: int) -> RankMessage:
    """Decode what rank 0 sent to a rank.

    Args:
        message: As :func:`encode_for_ranks` made it.
        rank: The rank that it was sent to.
        ranks: Ranks in the job.

    Raises:
        WireError: It is of another version, or no such message at all.
    """
    try:
        plain = json.loads(message)
        version, decision, details = plain["version"], plain["decision"], plain.get("scores")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WireError(f"rank 0 sent no message of a report: {message[:80]!r}") from None
    if version != VERSION:
        raise WireError(
            f"rank 0 sent a message of version {reprlib.repr(version)}, and this rank reads {VERSION}: mixed "
            "installations?"
        )
    if not isinstance(decision, dict):
        raise WireError(f"rank 0 sent a decision that is {type(decision).__name__} and no mapping")
    try:
        return RankMessage(decision, None if details is None else _scores(details, rank, ranks))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise WireError(f"rank 0 sent scores that do not fit: {type(error).__name__}: {error}") from error


def unknown_scores(rank: int, ranks: int) -> Scores:
    """Return the scores of a rank that rank 0 has told nothing: everything is unknown."""
    return _scores({}, rank, ranks)


def _scores(details: Mapping[str, Any], rank: int, ranks: int) -> Scores:
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

    def window(plain: Mapping[str, Any] | None) -> RobustScores | None:
        if plain is None:
            return None
        state = np.full((len(plain["names"]), ranks), UNKNOWN, dtype=np.uint8)
        state[:, rank] = plain["state"]
        since = np.zeros(state.shape, dtype=np.int32)
        since[:, rank] = plain["since"]
        unknown: list[float | None] = [None] * len(plain["names"])
        return RobustScores(
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
            strength=np.nan_to_num(wide(plain.get("strength", unknown), np.float32)),
            level_bar=wide(plain.get("level_bar", unknown), np.float32),
            in_means=np.nan_to_num(wide(plain.get("in_means", unknown), np.float32)) > 0.0,
            bar=np.zeros(state.shape, dtype=np.float32),
            groups=tuple((int(name), int(count), float(apart)) for name, count, apart in plain.get("groups", ())),
        )

    relative, seconds = wide(details.get("relative")), wide(details.get("seconds"))
    waited, measured = np.full(ranks, np.nan), np.zeros(ranks)
    measured[rank] = details.get("measured") or 0.0
    if details.get("waited") is not None:
        waited[rank] = details["waited"]
    kept_waiting = np.full(ranks, np.nan)
    if details.get("kept_waiting") is not None:
        kept_waiting[rank] = details["kept_waiting"]
    return Scores(
        names=names,
        arrival=np.array(details.get("arrival", []), dtype=bool),
        relative=relative,
        individual=wide(details.get("individual")),
        gpu_relative=flat(details.get("gpu_relative")),
        gpu_individual=flat(details.get("gpu_individual")),
        against_peers=window(details.get("against_peers")),
        against_past=window(details.get("against_past")),
        seconds=seconds if seconds is not None else np.zeros((0, ranks)),
        measured=measured,
        waited=waited,
        job_wide=tuple(details.get("job_wide", ())),
        ambiguous=tuple((int(a), int(b)) for a, b in details.get("ambiguous", ())),
        kept_waiting=kept_waiting,
    )
