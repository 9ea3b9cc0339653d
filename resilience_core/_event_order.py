"""The contract of the events: which order of them is right, and whether it is the expected one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

__all__ = ["Event", "Expected", "matches", "show", "violations"]

Event = tuple[str, dict[str, Any]]
"""An event's name and its arguments."""

Expected = str | tuple[str, Mapping[str, Any]] | EllipsisType
"""A name; a name with those arguments that matter; ``...`` for any events, or none."""


def violations(events: Iterable[Event]) -> list[str]:
    """Return where a trace breaks the contract of the events, one sentence each; empty when it keeps it.

    ``setup`` and ``teardown`` frame everything; starts and ends pair up, with the same arguments; a save's end
    fires after its start whatever happened between. A step that an exception has left needs no end.
    """
    wrong: list[str] = []
    is_running, has_failed = False, False
    opened: dict[str, list[tuple[int, dict[str, Any]]]] = {"step": [], "eval_step": [], "checkpoint": []}

    def leftovers(at: int) -> None:
        for span, starts in opened.items():
            for index, _ in starts:
                if span == "checkpoint" or not has_failed:
                    wrong.append(f"{span}_start at {index} has no end before {at}")
            starts.clear()

    index = -1
    for index, (name, arguments) in enumerate(events):
        if name == "setup":
            if is_running:
                wrong.append(f"setup at {index} comes before the teardown of the run it interrupts")
            leftovers(index)
            is_running, has_failed = True, False
            continue
        if not is_running:
            wrong.append(f"{name} at {index} is outside of setup and teardown")
        if name == "teardown":
            leftovers(index)
            is_running = False
        elif name == "training_error":
            has_failed = True
        elif name.endswith("_start"):
            span = name.removesuffix("_start")
            if opened[span] and span != "checkpoint":
                if not has_failed:
                    wrong.append(f"{name} at {index}: the one at {opened[span][-1][0]} is still open")
                opened[span].clear()
            opened[span].append((index, arguments))
        elif name.endswith("_end"):
            span = name.removesuffix("_end")
            if not opened[span]:
                wrong.append(f"{name} at {index} has no start")
                continue
            started, before = opened[span].pop()
            changed = [key for key in before if arguments.get(key) != before[key]]
            if before.get("kind") == "save" and arguments.get("kind") == "finalize":
                changed.remove("kind")  # a framework may say only afterwards which of them it was
            if changed:
                wrong.append(f"{name} at {index} and its start at {started} differ in {', '.join(changed)}")
    if is_running:
        wrong.append("the run that was set up last has no teardown")
        leftovers(index + 1)
    return wrong


def matches(events: Sequence[Event], expected: Sequence[Expected]) -> bool:
    """Return whether the events are the expected ones; each ``...`` may stand for any number of events."""
    reachable = {0}  # how many expected items the events so far may have used up
    for event in [*events, None]:
        for item in range(len(expected)):
            if item in reachable and expected[item] is ...:
                reachable.add(item + 1)
        if event is None:
            break
        nxt = set()
        for item in reachable:
            if item == len(expected):
                continue
            if expected[item] is ...:
                nxt.add(item)
            elif _is(event, expected[item]):
                nxt.add(item + 1)
        reachable = nxt
    return len(expected) in reachable


def _is(event: Event, expected: Expected) -> bool:
    name, arguments = event
    if isinstance(expected, str):
        return name == expected
    if isinstance(expected, EllipsisType):
        return True
    return name == expected[0] and all(
        key in arguments and arguments[key] == value for key, value in expected[1].items()
    )


def show(item: Expected | Event) -> str:
    if isinstance(item, EllipsisType):
        return "..."
    if isinstance(item, str):
        return item
    return f"{item[0]}({', '.join(f'{key}={value!r}' for key, value in item[1].items())})"
