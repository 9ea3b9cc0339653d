"""How the nodes that an incident names are called in a report.

Launchers name their host. Where several ran on one host at the same time, a report tells them apart (``vm (2)``), and
an incident has to use the same names: by the ranks that a launcher had, and by which of them have gone on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from launcher.reports.story import JobGeneration, Member, Story

__all__ = ["lost_nodes", "node_of_rank", "with_names"]


def node_of_rank(story: Story, generation: JobGeneration, host: str, rank: int) -> str:
    """Return the name of the node on which a rank ran.

    Args:
        story: What was read.
        generation: Of the rank.
        host: As the incident calls it; may be empty.
        rank: Which.
    """
    there = _on_host(story, generation, host)
    own = [member for member in there if rank in member.lives]
    return _name(story, own if len(own) == 1 else there, host)


def lost_nodes(
    story: Story, generation: JobGeneration, hosts: Sequence[str], heard: Collection[int]
) -> tuple[str, ...]:
    """Return the names of nodes that are to blame as a whole.

    Args:
        story: What was read.
        generation: In which they were.
        hosts: As the incident calls them.
        heard: Ranks of nodes that have told of themselves when it was gathered.
    """
    later = {m.launch for each in story.generations if _follows(each, generation) for m in each.members}
    names: list[str] = []
    for host in dict.fromkeys(hosts):
        there = _on_host(story, generation, host)
        gone = [m for m in there if m.launch not in later and not any(rank in heard for rank in m.lives)]
        if len(gone) == hosts.count(host):
            names += [story.node_of[member.launch] for member in gone]
        else:
            names.append(_name(story, gone or there, host))
    return tuple(names)


def with_names(text: str, hosts: Sequence[str], names: Sequence[str]) -> str:
    """Return a text of an incident in which nodes are called as in the report; where it is clear which is meant."""
    for host, name in zip(hosts, names, strict=False) if len(hosts) == len(names) else ():
        if host and name.startswith(f"{host} (") and hosts.count(host) == 1:
            parts = re.split(rf"\bnode {re.escape(host)}(?![\w.-]| \(\d)", text)
            text = f"node {name}".join(parts)
    return text


def _on_host(story: Story, generation: JobGeneration, host: str) -> list[Member]:
    return [member for member in generation.members if host and story.launches[member.launch].node == host]


def _follows(one: JobGeneration, other: JobGeneration) -> bool:
    return one.run == other.run and one.number > other.number


def _name(story: Story, members: Sequence[Member], host: str) -> str:
    """Return the one name that is possible, or all; what the incident says where nothing of the node is here."""
    names = [story.node_of[member.launch] for member in members]
    return host if not names else names[0] if len(names) == 1 else f"one of {', '.join(names)}"
