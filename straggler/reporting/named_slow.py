"""Who was named slow, from when until when: the verdicts of a log, put together to one entry per rank or node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from straggler.reporting.rank_lists import mostly, ranges

__all__ = ["Entry", "Episode", "Episodes", "entries"]


@attrs.define
class Episode:
    """A time in which one rank was named.

    Args:
        rank: Which.
        node: Its node.
        since: Index of the report in which it began to be slow.
        named: Index of the first report that names it.
        until: Index of the last one.
        slowdowns: Least and largest slowdown of the verdicts.
        section: Where, in the last verdict.
        because: Why, in the last verdict that says so.
    """

    rank: int
    node: str
    since: int
    named: int
    until: int
    slowdowns: tuple[float, float]
    section: str
    because: str = ""


class Episodes:
    """Puts the verdicts of one report after the other together."""

    def __init__(self) -> None:
        self.found: list[Episode] = []
        self._open: dict[int, Episode] = {}
        self._index_of: dict[int, int] = {}
        self._last_sequence = -1

    def add(self, index: int, sequence: int, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Take the verdicts of a report.

        Args:
            index: Place of the report in the log.
            sequence: Its number in its run; a number that is not larger than the last one begins a new run.
            verdicts: As they are in the log.
        """
        if sequence <= self._last_sequence:
            self._index_of.clear()
            self._open.clear()
        self._last_sequence, self._index_of[sequence] = sequence, index
        named: dict[int, Episode] = {}
        for verdict in verdicts:
            rank = int(verdict["rank"])
            known = self._open.get(rank)
            if verdict["state"] == "SLOW":
                named[rank] = self._named(known, index, rank, verdict)
            elif known is not None and verdict["state"] == "UNKNOWN":
                named[rank] = known  # it does not answer, which makes it neither slow nor sound
        self._open = named

    def _named(self, known: Episode | None, index: int, rank: int, verdict: Mapping[str, Any]) -> Episode:
        share = float(verdict["slowdown"] or 0.0)
        if known is None:
            since = min(self._index_of.get(int(verdict["since_report"]), index), index)
            known = Episode(rank, str(verdict["node"]), since, index, index, (share, share), "")
            self.found.append(known)
        known.until, known.section = index, str(verdict["section"])
        known.slowdowns = (min(known.slowdowns[0], share), max(known.slowdowns[1], share))
        known.because = str(verdict["because"] or known.because)
        return known


@attrs.frozen
class Entry:
    """One line of who was named: a rank, or a node of which most ranks were.

    Args:
        title: ``rank 17``, or ``8 of its 8 ranks (0-7)``.
        node: Its node.
        ranks: Who.
        since: Index of a report, as that of :class:`Episode`; of several the first.
        named: The same.
        until: The same, of several the last.
        much: ``12 to 15 %``.
        section: Where, ``forward``.
        because: Why, where that is known.
    """

    title: str
    node: str
    ranks: tuple[int, ...]
    since: int
    named: int
    until: int
    much: str
    section: str
    because: str


def entries(episodes: Sequence[Episode], node_sizes: Mapping[str, int]) -> list[Entry]:
    """Return the entries, the last to be named first, of those the slowest.

    Args:
        episodes: Of all ranks.
        node_sizes: Node to how many ranks it has.
    """
    together: list[list[Episode]] = []
    for episode in sorted(episodes, key=lambda e: (e.node, e.since, e.rank)):
        last = together[-1] if together else None
        if last and episode.node and last[0].node == episode.node and episode.since <= max(e.until for e in last):
            last.append(episode)
        else:
            together.append([episode])
    found: list[tuple[int, float, Entry]] = []
    for group in together:
        ranks = sorted({e.rank for e in group})
        is_node = bool(mostly(ranks, {e.rank: e.node for e in group}, node_sizes))
        for part in [group] if is_node else [[episode] for episode in group]:
            entry = _entry(part, node_sizes)
            found.append((-entry.until, -max(e.slowdowns[1] for e in part), entry))
    return [entry for _, _, entry in sorted(found, key=lambda each: each[:2])]


def _entry(part: Sequence[Episode], node_sizes: Mapping[str, int]) -> Entry:
    ranks = tuple(sorted({e.rank for e in part}))
    node = part[0].node
    low, high = (
        f"{100 * share:.{1 if len(part) == 1 else 0}f}"
        for share in (min(e.slowdowns[0] for e in part), max(e.slowdowns[1] for e in part))
    )
    sections = Counter(e.section for e in part).most_common(2)
    return Entry(
        title=f"rank {ranks[0]}"
        if len(ranks) == 1
        else f"{len(ranks)} of its {node_sizes.get(node, len(ranks))} ranks ({ranges(ranks)})",
        node=node,
        ranks=ranks,
        since=min(e.since for e in part),
        named=min(e.named for e in part),
        until=max(e.until for e in part),
        much=f"{low} %" if low == high else f"{low} to {high} %",
        section=("mostly " if len(sections) > 1 else "") + sections[0][0],
        because="; ".join(list(dict.fromkeys(e.because for e in part if e.because))[:2]),
    )
