"""The messages that rank 0 sends back, one per rank, with a version and what concerns that rank only.

Sent when every rank wants a report of its own (``gather_on_rank0=False``) or has to act on rank 0's decision.

A message is a line of JSON that is the same for all, a line of JSON with the few values that only this rank has, and
the rank's column of all score arrays, one below the other, as little-endian doubles. As JSON alone, numbers and all,
the messages of 8,192 ranks took seconds to write.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.errors import WireError
from straggler.pacing import pace
from straggler.scoring.robust_scores import UNKNOWN, RobustScores
from straggler.scoring.scorer import Scores

__all__ = ["VERSION", "RankMessage", "decode_for_rank", "encode_for_ranks", "unknown_scores"]

# Raised with every change of a field.
VERSION = 4
_RANKS_AT_ONCE = 256
"""Between two moments at which training may go on."""

_WINDOWS = ("against_peers", "against_past")
_TABLES = ("relative", "individual", "seconds")
_LINES = ("gpu_relative", "gpu_individual", "measured", "waited", "kept_waiting")
_OF_WINDOW = ("excess", "drift", "reference", "spread", "noise", "strength", "level_bar", "bar")

Columns = Mapping[str, npt.NDArray[np.float64]]
"""The rank's column of each score array, by name."""


@attrs.frozen
class RankMessage:
    """What rank 0 sends to one rank after a report.

    Args:
        decision: What rank 0 has decided; every rank is told the same.
        scores: The scores, known for that rank only; None where they were not asked for.
        missing: Ranks that did not answer rank 0; None as ``scores``.
    """

    decision: Mapping[str, Any]
    scores: Scores | None = None
    missing: tuple[int, ...] | None = None


def encode_for_ranks(
    scores: Scores, decision: Mapping[str, Any], present: npt.NDArray[np.bool_], *, details: bool
) -> dict[int, bytes]:
    """Return the encoded :class:`RankMessage` of each rank of the job.

    Args:
        scores: Of all ranks.
        decision: What rank 0 has decided, JSON values.
        present: Which ranks of the job have answered.
        details: Send each rank its own scores, too.
    """
    ranks = len(present)
    common: dict[str, Any] = {"version": VERSION, "decision": dict(decision)}
    if not details:
        return dict.fromkeys(range(ranks), json.dumps(common).encode())
    common["missing"] = np.flatnonzero(~present).tolist()
    tables = dict(_tables(scores, ranks))
    common["scores"] = {
        "names": scores.names.tolist(),
        "arrival": scores.arrival.tolist(),
        "job_wide": list(scores.job_wide),
        "tables": [(name, len(table)) for name, table in tables.items()],
        **{name: _facts(window) for name in _WINDOWS if (window := getattr(scores, name)) is not None},
    }
    head = json.dumps(common).encode() + b"\n"
    pairs: dict[int, list[tuple[int, int]]] = {}
    for pair in scores.ambiguous:
        for rank in pair:
            pairs.setdefault(rank, []).append(pair)
    own = {rank: json.dumps({"ambiguous": found}).encode() + b"\n" for rank, found in pairs.items()}
    messages: dict[int, bytes] = {}
    for first in range(0, ranks, _RANKS_AT_ONCE):
        pace()
        columns = np.concatenate([table[:, first : first + _RANKS_AT_ONCE] for table in tables.values()])
        for rank, column in enumerate(np.ascontiguousarray(columns.T, dtype="<f8"), first):
            messages[rank] = head + own.get(rank, b"{}\n") + column.tobytes()
    return messages


def _tables(scores: Scores, ranks: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield every array of scores with its name, as ``(rows, ranks)``."""
    for name in (*_TABLES, *_LINES):
        if (values := getattr(scores, name)) is not None:
            yield name, np.broadcast_to(values, (values.shape[0] if name in _TABLES else 1, ranks))
    for of in _WINDOWS:
        window: RobustScores | None = getattr(scores, of)
        if window is None:
            continue
        shape = (window.state.shape[0], ranks)
        for name in (*_OF_WINDOW, "state", "since", "in_means"):
            yield f"{of}.{name}", np.broadcast_to(getattr(window, name), shape)
        for number, x in enumerate(_recent(window)):
            yield f"{of}.recent.{number}", x


def _recent(window: RobustScores) -> list[npt.NDArray[np.float32]]:
    return [x for x in window.recent if x.shape[0] == window.state.shape[0]]


def _facts(window: RobustScores) -> dict[str, Any]:
    return {
        "names": window.names.tolist(),
        "k": window.k,
        "number": window.number,
        "recent": len(_recent(window)),
        "groups": [list(group) for group in window.groups],
    }


def decode_for_rank(message: bytes, rank: int, ranks: int) -> RankMessage:
    """Decode what rank 0 sent to a rank.

    Args:
        message: As :func:`encode_for_ranks` made it.
        rank: The rank that it was sent to.
        ranks: Ranks in the job.

    Raises:
        WireError: It is of another version, or no such message at all.
    """
    head, _, rest = message.partition(b"\n")
    try:
        plain = json.loads(head)
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
    if details is None:
        return RankMessage(decision)
    own, _, column = rest.partition(b"\n")
    try:
        with np.errstate(all="ignore"):  # numbers that do not fit an array are as good as unknown
            scores = _scores({**details, **json.loads(own)}, _columns(details, column), rank, ranks)
        return RankMessage(decision, scores, tuple(_rank(each, ranks) for each in plain["missing"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError, RecursionError) as error:
        raise WireError(f"rank 0 sent scores that do not fit: {type(error).__name__}: {error}") from error


def _rank(given: object, ranks: int) -> int:
    if not isinstance(given, int) or not 0 <= given < ranks:
        raise ValueError(f"no rank of the job: {reprlib.repr(given)}")
    return given


def _columns(details: Mapping[str, Any], column: bytes) -> Columns:
    tables = [(name, int(rows)) for name, rows in details["tables"]]
    values = np.frombuffer(column, dtype="<f8")
    ends = np.cumsum([rows for _, rows in tables], dtype=np.int64)
    if any(rows < 0 for _, rows in tables) or len(values) != (int(ends[-1]) if tables else 0):
        raise ValueError(f"{len(values)} numbers for the tables {reprlib.repr(tables)}")
    return {name: values[end - rows : end] for (name, rows), end in zip(tables, ends.tolist(), strict=True)}


def unknown_scores(rank: int, ranks: int) -> Scores:
    """Return the scores of a rank that rank 0 has told nothing: everything is unknown."""
    return _scores({}, {}, rank, ranks)


def _scores(details: Mapping[str, Any], columns: Columns, rank: int, ranks: int) -> Scores:
    def wide(name: str) -> npt.NDArray[np.float64] | None:
        column = columns.get(name)
        return None if column is None else _wide(column, rank, ranks)

    def flat(name: str) -> npt.NDArray[np.float64] | None:
        made = wide(name)
        return None if made is None else made[0]

    def window(of: str) -> RobustScores | None:
        facts = details.get(of)
        return None if facts is None else _window(of, facts, columns, rank, ranks)

    seconds, measured, waited, kept_waiting = wide("seconds"), flat("measured"), flat("waited"), flat("kept_waiting")
    return Scores(
        names=np.array(details.get("names", []), dtype=np.uint64),
        arrival=np.array(details.get("arrival", []), dtype=bool),
        relative=wide("relative"),
        individual=wide("individual"),
        gpu_relative=flat("gpu_relative"),
        gpu_individual=flat("gpu_individual"),
        against_peers=window("against_peers"),
        against_past=window("against_past"),
        seconds=seconds if seconds is not None else np.zeros((0, ranks)),
        measured=np.zeros(ranks) if measured is None else np.nan_to_num(measured),
        waited=waited if waited is not None else np.full(ranks, np.nan),
        job_wide=tuple(details.get("job_wide", ())),
        ambiguous=tuple((int(a), int(b)) for a, b in details.get("ambiguous", ())),
        kept_waiting=kept_waiting if kept_waiting is not None else np.full(ranks, np.nan),
    )


def _window(of: str, facts: Mapping[str, Any], columns: Columns, rank: int, ranks: int) -> RobustScores:
    def wide(name: str) -> npt.NDArray[np.float32]:
        return _wide(columns[f"{of}.{name}"], rank, ranks).astype(np.float32)

    state = np.full((len(facts["names"]), ranks), UNKNOWN, dtype=np.uint8)
    state[:, rank] = columns[f"{of}.state"]
    since = np.zeros(state.shape, dtype=np.int32)
    since[:, rank] = columns[f"{of}.since"]
    return RobustScores(
        names=np.array(facts["names"], dtype=np.uint64),
        excess=wide("excess"),
        drift=wide("drift"),
        state=state,
        since=since,
        reference=wide("reference"),
        spread=wide("spread"),
        noise=wide("noise"),
        recent=tuple(wide(f"recent.{number}") for number in range(facts["recent"])),
        k=facts["k"],
        number=facts["number"],
        strength=np.nan_to_num(wide("strength")),
        level_bar=wide("level_bar"),
        in_means=np.nan_to_num(wide("in_means")) > 0.0,
        bar=np.nan_to_num(wide("bar")),
        groups=tuple((int(name), int(count), float(apart)) for name, count, apart in facts["groups"]),
    )


def _wide(column: npt.NDArray[np.float64], rank: int, ranks: int) -> npt.NDArray[np.float64]:
    """Return an array of all ranks in which only this one's values are known."""
    full = np.full((len(column), ranks), np.nan)
    full[:, rank] = column
    return full
