"""Reports that never were, for the page: values of the model, not files, with what is hard to show well."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from launcher.reports.model import (
    CATEGORIES,
    DOWN,
    IDLE,
    OUT_OF_SECTION,
    SECTION,
    STARTING,
    STOPPING,
    FoldedStack,
    Generation,
    Incident,
    Ledger,
    LedgerEntry,
    Limit,
    NearMiss,
    Node,
    Part,
    Rank,
    RankLedger,
    Recommendation,
    Report,
    Run,
    SlowRank,
    Span,
    Suspect,
)
from launcher.reports.page import page

__all__ = ["HOSTILE", "story", "write_page"]

Said: TypeAlias = "Callable[[str], str]"
"""What makes a text of what is to be said."""

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'\x00\x1b[31m\u202eevil\u2066\udcff" + "A" * 40
"""What may stand in a stack or message: markup, control characters, a turned direction, half of a surrogate pair."""
_EPOCH = 1_790_000_000.0
_DOWN, _START, _STOP, _HANG = 0.002, 0.004, 0.001, 0.012
"""Shares of the whole time that parts of a restart take."""


def story(
    ranks: int = 64,
    incidents: int = 1,
    seconds: float = 7_500.0,
    *,
    ranks_per_node: int = 8,
    is_running: bool = False,
    is_hostile: bool = False,
    spans_each: int = 20,
) -> Report:
    """Return a report.

    Args:
        ranks: How many.
        incidents: Each in a generation of its own: hangs, failures, one lost node, one without a culprit.
        seconds: The whole time.
        ranks_per_node: The last node may have fewer.
        is_running: It goes on.
        is_hostile: Every text from outside is :data:`HOSTILE`.
        spans_each: About how many spans a rank has.
    """
    chance = random.Random(ranks * 1000 + incidents)

    def text(usual: str) -> str:
        return HOSTILE if is_hostile else usual

    node_of = [text(f"node-{chr(97 + number // ranks_per_node % 26)}{number // ranks_per_node:02d}") if ranks > 26 * 8
               else text(f"node-{chr(97 + number // ranks_per_node)}") for number in range(ranks)]  # fmt: skip
    edges = [seconds * (number + 1) / (incidents + 1) for number in range(incidents)]
    edges = [edge * chance.uniform(0.94, 1.0) for edge in edges]
    culprits = [37 % ranks if not number else chance.randrange(ranks) for number in range(incidents)]
    kinds = ["hang" if number % 3 == 0 else "failure" for number in range(incidents)]
    if incidents >= 3:
        kinds[2] = "lost"
    happened = [
        _incident(number, edge, culprits[number], kinds[number], ranks, node_of, text)
        for number, edge in enumerate(edges)
    ]
    if incidents >= 5:
        happened[4] = happened[4]._replace(culprits=(), why="every rank waits for the others: one has skipped one")
    lives = []
    began = 0.0
    for edge in [*edges, seconds]:
        lives.append((began, edge))
        began = edge + seconds * (_DOWN + _STOP)
    all_ranks = tuple(
        Rank(rank, node_of[rank], rank % ranks_per_node, _spans(rank, lives, happened, seconds, spans_each, text))
        for rank in range(ranks)
    )
    generations = tuple(
        Generation(0, number, start, start + seconds * _START, end if number < incidents else None, end, ranks,
                   100 * (number + 1), 100 * (number + 1) - 1, None, None, number if number < incidents else None, 3)
        for number, (start, end) in enumerate(lives)
    )  # fmt: skip
    run = Run(text("pretrain-7b"), ("/logs/pretrain-7b",), 0.0, None if is_running else seconds, seconds, is_running,
              None if is_running else "succeeded", None if is_running else 0, None, ranks,
              len(set(node_of)), incidents, "2026-09-21T14:13:20+0000")  # fmt: skip
    nodes = tuple(
        Node(name, tuple(r for r in range(ranks) if node_of[r] == name), (0,), 0.0) for name in dict.fromkeys(node_of)
    )
    return Report(
        title=text("pretrain-7b"),
        made_at="2026-09-21T16:20:01+0000",
        began_at="2026-09-21T14:13:20+0000",
        began_epoch=_EPOCH,
        seconds=seconds,
        is_running=is_running,
        runs=(run,),
        nodes=nodes,
        generations=generations,
        ranks=all_ranks,
        incidents=tuple(happened),
        near_misses=tuple(
            NearMiss(seconds * 0.11 * (n + 1), 0, 0, (n * 17 + 3) % ranks, node_of[(n * 17 + 3) % ranks],
                     text("section backward"), 30.0, 0.004) for n in range(2)
        ),
        limits=_limits(text),
        slow_ranks=(SlowRank(ranks - 1, node_of[-1], 0.214, text("backward"), 12, 40, seconds * 0.3,
                             text("its GPU runs at 1,095 of 1,980 MHz"), text("/logs/reports.jsonl")),),
        ledger=_ledger(seconds, incidents, ranks, node_of),
        recommendations=_recommendations(text),
        notes=(text("node-c: figures.jsonl ends in the middle of a line; its last 3 s are unknown"),),
    )  # fmt: skip


def _incident(number: int, at: float, rank: int, kind: str, ranks: int, node_of: Sequence[str], said: Said) -> Incident:
    node = node_of[rank]
    section = said("backward" if number % 2 == 0 else "data")
    frames = tuple(said(f) for f in ("load_batch (train.py:31)", "train (train.py:88)", "<module> (train.py:131)"))
    waiting = tuple(
        said(f) for f in ("all_reduce (torch/distributed/distributed_c10d.py:2501)", "step (train.py:70)",
                          "<module> (train.py:131)")
    )  # fmt: skip
    headline = (
        f"rank {rank} (pid 4711): section '{section}' open for 31.004 s at iteration 4120; limit 30 s (learned)"
        if kind == "hang"
        else f"rank {rank} (pid 4711) exited with code 1 at train.py:31, in section '{section}'"
    )
    suspect = Suspect(rank, node, rank % 8, section, 4120 + number, frames[0], said(headline),
                      None if kind == "hang" else said("ValueError: batch 4120 holds no sample"),
                      90.0 if kind == "hang" else None, 30.0, frames)  # fmt: skip
    victims = tuple(other for other in range(ranks) if other != rank)
    stacks = [FoldedStack("MainThread", frames, 0, (rank,), True)]
    if victims:
        stacks.append(FoldedStack("MainThread", waiting, 1, victims, False))
    return Incident(
        number=number + 1,
        at=at,
        wall_time="2026-09-21T15:15:50+0000",
        run=0,
        generation=number,
        kind=kind,
        why=said("its stack stands outside any collective, the others wait in one"),
        is_likely=number % 4 == 1,
        culprits=() if kind == "lost" else (suspect,),
        nodes_to_blame=(node,) if kind == "lost" else (),
        victims=victims,
        stacks=tuple(stacks),
        machine=(said("kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus"),) if not number else (),
        action=said(f"SIGKILL to rank {rank}, the peers are ended"),
        report=said(f"/logs/pretrain-7b/incidents/{number + 1:04d}/report.txt"),
        late_seconds=0.004 if kind == "hang" else None,
        cost_seconds=92.4,
        is_cost_about=False,
        repeated=7,
    )


def _spans(
    rank: int,
    lives: Sequence[tuple[float, float]],
    incidents: Sequence[Incident],
    seconds: float,
    most: int,
    said: Said,
) -> tuple[Span, ...]:
    names = [said(name) for name in ("forward", "backward", "checkpointing", "data")]
    names = [f"{name}{number}" if names[0] == names[1] else name for number, name in enumerate(names)]
    chance = random.Random(rank)
    spans: list[Span] = []
    each = max(1, most // len(lives))
    for number, (start, end) in enumerate(lives):
        if spans:
            spans.append(Span(spans[-1].end, start, DOWN, None, None, None, ()))
        first = min(start + seconds * _START, end)
        spans.append(Span(start, first, STARTING, None, number, None, ()))
        incident = incidents[number] if number < len(incidents) else None
        is_hang = incident is not None and incident.kind == "hang"
        stuck = max(end - seconds * _HANG, first) if is_hang else end
        for part in range(each):
            a, b = (first + (stuck - first) * (part + k) / each for k in (0, 1))
            wobble = chance.uniform(0.98, 1.02)
            parts = [Part(names[1], 0.5 * wobble, 40), Part(names[0], 0.3, 40), Part(names[3], 0.12, 40),
                     Part(None, 0.03, 40)]  # fmt: skip
            if part % 4 == 3:
                parts.append(Part(names[2], 0.15, 2))
            spans.append(Span(a, b, SECTION, names[1], number, part, tuple(parts)))
        if incident is None:
            continue
        if is_hang and stuck < end:
            is_it = rank in [suspect.rank for suspect in incident.culprits]
            own = names[1] if is_it else names[0]
            spans.append(Span(stuck, end, SECTION, own, number, None, (Part(own, end - stuck, 0),)))
        spans.append(Span(end, end + seconds * _STOP, STOPPING, None, number, None, ()))
    if lives[-1][1] < seconds:
        spans.append(Span(lives[-1][1], seconds, IDLE, None, None, None, ()))
    if rank == 1:
        spans[1] = spans[1]._replace(kind=OUT_OF_SECTION, section=None, parts=())
    return tuple(span for span in spans if span.end > span.start)


def _ledger(seconds: float, incidents: int, ranks: int, node_of: Sequence[str]) -> Ledger:
    spent = dict.fromkeys((category.key for category in CATEGORIES), 0.0)
    spent |= {"checkpointing": seconds * 0.031, "start": seconds * _START * (incidents + 1), "idle": 4.2}
    spent |= {
        key: seconds * each * incidents
        for key, each in (("lost_work", 0.004), ("detection", 0.004), ("stop", _STOP), ("rendezvous", _DOWN))
    }
    spent["productive"] = seconds - sum(spent.values())
    entries = tuple(
        LedgerEntry(category, spent[category.key], spent[category.key] / seconds, spent[category.key] * ranks,
                    category.key == "lost_work")
        for category in CATEGORIES
        if spent[category.key]
    )  # fmt: skip
    by_rank = tuple(
        RankLedger(node_of[rank], rank % 8, rank, seconds, tuple(spent[c.key] for c in CATEGORIES))
        for rank in range(ranks)
    )
    return Ledger(seconds, seconds * ranks, entries, by_rank, 7 * incidents, 12_480, 0.552)


def _limits(said: Said) -> tuple[Limit, ...]:
    return (
        Limit(said("section backward"), 30.0, 34.0, "learned", 27.2, 37, 0.41, 0.093, 3, 2, 12_480,
              said("--ft-rank-section-timeouts backward:SECONDS")),
        Limit(said("section checkpointing"), 60.0, 60.0, "configured", 24.0, 0, 11.5, 0.6, 0, 0, 96,
              said("--ft-rank-section-timeouts checkpointing:SECONDS")),
        Limit(said("out of section"), 45.0, 45.0, "default", 0.61, 5, 0.05, 0.986, 0, 0, 37_440,
              said("--ft-rank-out-of-section-timeout SECONDS")),
        Limit(said("heartbeat"), None, None, None, None, None, None, None, 0, 0, 0,
              said("--ft-rank-heartbeat-timeout SECONDS")),
    )  # fmt: skip


def _recommendations(said: Said) -> tuple[Recommendation, ...]:
    return (
        Recommendation(said("checkpoint interval"), said(
            "Save every 780 steps (430 s): a failure every 52 min and 11.5 s for a save lose least so. "
            "With so few failures the best interval lies between 510 and 1,240 steps."), None, 780.0, "steps", 3,
            510.0, 1240.0),
        Recommendation(said("limit"), said(
            "Raise the limit of section 'backward' to 136 s, five times the longest: it left 9 % of room."),
            said("--ft-rank-section-timeouts backward:136"), 136.0, "s", 12_480, None, None),
    )  # fmt: skip


def write_page(report: Report, path: Path) -> Path:
    """Write the page of a report; return where it is."""
    path.write_text(page(report), encoding="utf-8")
    return path
