"""Which colour stands for what in a timeline."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

from launcher.reports.model import (
    DOWN,
    IDLE,
    OUT_OF_SECTION,
    SECTION,
    SPAN_KINDS,
    STARTING,
    STOPPING,
    UNSEEN,
    Report,
    Span,
)

__all__ = ["Layer", "Palette", "palette_of", "shares_of"]

_COLOURS = 8
"""How many sections have a colour of their own (``s0`` to ``s7`` of the style sheet)."""
_SAVING = ("checkpointing", 4)
"""The section that saves checkpoints has the same colour in every report."""
_OTHERS = "other sections"


class Layer(NamedTuple):
    """One thing that a rank may do."""

    name: str
    """For people."""
    css_class: str
    meaning: str


class Palette(NamedTuple):
    """The layers of a report, in the order in which they are drawn from the top down."""

    layers: tuple[Layer, ...]
    by_section: Mapping[str, int]
    """Index of a section's layer."""
    by_kind: Mapping[str, int]
    """Index of the layer of a kind of span that is no section."""


def palette_of(report: Report) -> Palette:
    """Return a palette: the sections by the time that they took, then what is no section, if it occurs."""
    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    kinds = set()
    for rank in report.ranks:
        for span in rank.spans:
            kinds.add(span.kind)
            if span.kind == SECTION and span.section is not None:
                seconds[span.section] += 0.0
            for section, taken in _weights(span):
                if section is None:
                    kinds.add(OUT_OF_SECTION)
                else:
                    seconds[section] += taken
    names = [name for name, _ in sorted(seconds.items(), key=lambda item: (-item[1], item[0]))]
    colours = _colours(names)
    layers = [Layer(name, f"s{colours[name]}", "time in this section") for name in names if name in colours]
    by_section = {layer.name: index for index, layer in enumerate(layers)}
    if len(colours) < len(names):
        by_section |= {name: len(layers) for name in names if name not in colours}
        layers.append(Layer(_OTHERS, "other", "time in sections that take less than those that are named"))
    by_kind = {}
    for kind in (OUT_OF_SECTION, STARTING, STOPPING, DOWN, IDLE, UNSEEN):
        if kind in kinds:
            by_kind[kind] = len(layers)
            layers.append(Layer(kind, kind.replace(" ", "-"), SPAN_KINDS[kind]))
    return Palette(tuple(layers), by_section, by_kind)


def shares_of(span: Span, palette: Palette) -> list[tuple[int, float]]:
    """Return what a span's time was spent on: index of the layer and share of the span, which add up to 1."""
    weights = _weights(span)
    total = sum(taken for _, taken in weights)
    if not total:
        return [(palette.by_kind[span.kind], 1.0)]
    shares: collections.defaultdict[int, float] = collections.defaultdict(float)
    for section, taken in weights:
        layer = palette.by_section[section] if section is not None else palette.by_kind[OUT_OF_SECTION]
        shares[layer] += taken / total
    return sorted(shares.items())


def _weights(span: Span) -> list[tuple[str | None, float]]:
    if span.kind not in (SECTION, OUT_OF_SECTION):
        return []
    weights = [(part.section, part.seconds) for part in span.parts if part.seconds > 0]
    return weights or [(span.section if span.kind == SECTION else None, max(span.end - span.start, 1e-9))]


def _colours(names: list[str]) -> dict[str, int]:
    """Return a colour for each of the sections that take most."""
    special, reserved = _SAVING
    free = [number for number in range(_COLOURS) if number != reserved or special not in names]
    colours = {special: reserved} if special in names else {}
    for name in names:
        if name != special and free:
            colours[name] = free.pop(0)
    return colours
