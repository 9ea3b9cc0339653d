"""Short names of what a page shows in several places."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.reports.formats import count, rank_list
from launcher.reports.model import Incident, Rank, Suspect

__all__ = ["blamed", "nodes_phrase", "ranks_phrase", "row_name", "shortened", "some", "text_width", "what_happened"]

_NARROW = frozenset("fijlrt.,:;'|!()[]- ")
_WIDE = frozenset("mwMW@%…<>=&+~^")


def shortened(text: str, longest: int) -> str:
    """Return a name without its middle where it is too long: hosts often differ in the first and last letters."""
    if len(text) <= longest:
        return text
    end = (longest - 1) // 2
    return f"{text[: longest - 1 - end]}…{text[-end:]}"


def what_happened(incident: Incident, suspects: Sequence[Suspect] | None = None) -> str:
    """Return ``hang in backward``: what kind of failure, and where the culprit was.

    Args:
        incident: Which.
        suspects: Those of its culprits that are meant; by default all.
    """
    culprits = incident.culprits if suspects is None else suspects
    sections = dict.fromkeys(suspect.section for suspect in culprits)
    if incident.kind == "lost":
        return "lost"
    if len(sections) != 1:
        return incident.kind
    (section,) = sections
    return f"{incident.kind} in {shortened(section, 24)}" if section is not None else f"{incident.kind} out of section"


def blamed(incident: Incident, longest_node: int = 24) -> str:
    """Return ``rank 37 node-b``: who is to blame; several ranks by their numbers, or a node as a whole."""
    if incident.culprits:
        nodes = list(dict.fromkeys(suspect.node for suspect in incident.culprits))
        return f"{ranks_phrase([s.rank for s in incident.culprits], 3)} {nodes_phrase(nodes, longest_node)}"
    if incident.nodes_to_blame:
        return nodes_phrase(incident.nodes_to_blame, longest_node)
    return "culprit unknown"


def ranks_phrase(ranks: Sequence[int], most: int = 12) -> str:
    """Return ``rank 3`` or ``ranks 0-36, 38``."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {rank_list(ranks, most)}"


def nodes_phrase(nodes: Sequence[str], longest: int = 24) -> str:
    """Return a node's name, or the first and the last one of several."""
    if len(nodes) <= 1:
        return shortened(nodes[0], longest) if nodes else ""
    half = max(longest // 2 - 2, 6)
    return f"{shortened(nodes[0], half)} … {shortened(nodes[-1], half)}"


def some(number: int, one: str, many: str) -> str:
    """Return ``1 near miss`` or ``2 near misses``; nothing for 0."""
    return "" if not number else f"1 {one}" if number == 1 else f"{count(number)} {many}"


def row_name(ranks: Sequence[Rank]) -> str:
    """Return the name of neighbouring ranks that share a row."""
    return ranks_phrase([rank.rank for rank in ranks])


def text_width(text: str, size: float = 12.0, *, is_bold: bool = False) -> float:
    """Return about how many pixels a text takes: rather more than less, whatever sans-serif font there is."""
    return sum(map(_width, text)) * size / 12 * (1.12 if is_bold else 1.0)


def _width(character: str) -> float:
    """Return how wide a character is at a size of 12 pixels."""
    if character in _NARROW:
        return 4.3
    if character in _WIDE:
        return 11.5
    if character.isascii():
        return 9.2 if character.isupper() else 7.6
    return 12.5
