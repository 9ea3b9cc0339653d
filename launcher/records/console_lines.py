"""Make the bytes of a message for people (text, coloured on a terminal) or for programs (one JSON object).

A message of several lines is a story: its first line says what has happened, and a line that begins with two spaces and
a word, filled up to eight characters, is a fact about it (``  why     ...``). As JSON each such word is a field.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.records.readable import readable

__all__ = [
    "CRITICAL",
    "DEBUG",
    "ERROR",
    "FORMATS",
    "INFO",
    "RESET",
    "WARNING",
    "Line",
    "Message",
    "Speaker",
    "coloured",
    "has_colours",
    "lines_of",
    "plain",
]

# As in logging, which the monitor does without.
DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50
_NAMES = {CRITICAL: "CRITICAL", ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO", DEBUG: "DEBUG"}

FORMATS = ("text", "json")
LOG_RECORD = "log"
"""The event of a record of Python's logging; as text it begins with its level and its logger."""
LONGEST_TEXT = 1 << 16
LONGEST_OBJECT = select.PIPE_BUF
"""Of a JSON object with its line's end: what is no longer is written to a pipe in one piece, whoever else writes there.
"""
_ONE_OF_A_KIND = ("why", "action", "report")
"""Facts that a story has one of; of each of the others it may have several, so they are lists."""
_OURS = frozenset({"time", "level", "source", "node", "event", "text", "rank", "ranks", "generation", "who", "is_cut"})
"""Fields of a meaning of their own; no fact has such a name."""
RESET = b"\x1b[0m"
_RED, _YELLOW, _BOLD, _BOLD_RED = b"\x1b[31m", b"\x1b[33m", b"\x1b[1m", b"\x1b[1;31m"


class Speaker(NamedTuple):
    """Who speaks, and how."""

    program: str = "ft_launcher"
    """What a line of text begins with."""
    source: str = "launcher"
    """The part that speaks: ``launcher``, ``monitor``, ``zygote`` or ``autoresume``."""
    names_node: bool = False
    """Whether a line of text names the node, since the job has several."""
    format: str = FORMATS[0]

    @property
    def prefix(self) -> str:
        """What every line of text begins with."""
        return f"{readable(f'{self.program}[{os.uname().nodename}]')}: " if self.names_node else f"{self.program}: "


class Message(NamedTuple):
    """What is to be said."""

    lines: tuple[str, ...]
    level: int = WARNING
    event: str = "message"
    ranks: tuple[int, ...] = ()
    """The ranks of the whole job that it is about."""
    generation: int | None = None
    culprits_from: int | None = None
    """The first of the lines that name a culprit; facts are not counted as such."""
    facts: Mapping[str, Any] = {}
    """Further fields of a JSON object."""


class Line(NamedTuple):
    """A line as it is written, with its end."""

    raw: bytes
    style: bytes = b""


def lines_of(message: Message, speaker: Speaker) -> list[Line]:
    """Return a message as it is written: lines of text, or one line with a JSON object."""
    if speaker.format == "json":
        return [Line(_object(message, speaker))]
    lines: list[Line] = []
    room, prefix = LONGEST_TEXT, speaker.prefix
    texts = message.lines
    if message.event == LOG_RECORD:
        texts = (f"{_name(message.level)} {message.facts.get('logger', speaker.source)}: {texts[0]}", *texts[1:])
    for number, text in enumerate(texts):
        style = _style(message, number, text)
        for line in readable(text, prefix).split("\n"):
            raw = line.encode("utf-8", errors="backslashreplace") + b"\n"
            if len(raw) > room:
                cut = raw[: max(0, room - len(b" ...\n"))].decode("utf-8", errors="ignore")
                return [*lines, Line(cut.encode() + b" ...\n", style)]
            lines.append(Line(raw, style))
            room -= len(raw)
    return lines


def plain(lines: Sequence[Line]) -> bytes:
    """Return the bytes of lines without colours."""
    return b"".join(line.raw for line in lines)


def coloured(lines: Sequence[Line]) -> bytes:
    """Return the bytes of lines for a terminal; each line ends as it began, without a colour."""
    return b"".join(line.style + line.raw[:-1] + RESET + b"\n" if line.style else line.raw for line in lines)


def has_colours(descriptor: int) -> bool:
    """Return whether colours are wanted at a descriptor: a terminal, and neither NO_COLOR nor ``TERM=dumb`` is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", ""):
        return False
    return os.isatty(descriptor)


def _name(level: int) -> str:
    """Return the name of the last level that a level reaches."""
    return next((name for least, name in _NAMES.items() if level >= least), _NAMES[DEBUG])


def _fact(line: str) -> tuple[str, str] | None:
    """Return the word and the text of a line that is a fact of a story; None for any other line."""
    word = line[2:9].rstrip(" ")
    if not line.startswith("  ") or line[9:10] != " " or line[10:11] in ("", " ") or not word.isidentifier():
        return None
    return word, line[10:]


def _style(message: Message, number: int, text: str) -> bytes:
    names_culprit = message.culprits_from is not None and number >= message.culprits_from and _fact(text) is None
    if message.level >= ERROR:
        is_detail = text.startswith("  ")
        return (_BOLD if is_detail else _BOLD_RED) if names_culprit else (b"" if is_detail else _RED)
    return _YELLOW if message.level >= WARNING and not text.startswith("  ") else b""


# ---- JSON -----------------------------------------------------------------------------------------------


def _object(message: Message, speaker: Speaker) -> bytes:
    now = time.time()
    zone = time.strftime("%z", time.localtime(now))
    about: dict[str, Any] = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
        f"{zone[:3]}:{zone[3:]}",
        "level": _name(message.level),
        "source": speaker.source,
        "node": os.uname().nodename,
        "event": message.event,
    }
    if message.ranks:
        about["ranks"] = list(message.ranks)
    if message.generation is not None:
        about["generation"] = message.generation
    further = {name: value for name, value in message.facts.items() if name not in _OURS}
    told = {**further, **_told(message, further)}
    try:
        raw = _dumped({**about, **told})
    except Exception:  # noqa: BLE001 - values that JSON does not take; what is said is text
        told, about["is_cut"] = _told(message, ()), True
        raw = _dumped({**about, **told})
    longest = LONGEST_OBJECT
    while len(raw) > LONGEST_OBJECT and longest > 16:
        longest //= 2
        ranks = {"ranks": list(message.ranks[: max(16, longest // 16)])} if message.ranks else {}
        cut = {name: _shortened(value, longest) for name, value in told.items()}
        raw = _dumped({**about, **ranks, **cut, "is_cut": True})
    if len(raw) > LONGEST_OBJECT:  # so many fields
        raw = _dumped({**about, "ranks": list(message.ranks[:16]), "text": str(told["text"])[:256], "is_cut": True})
    return raw


def _dumped(document: dict[str, Any]) -> bytes:
    return json.dumps(document, default=str, allow_nan=False).encode() + b"\n"


def _told(message: Message, taken: Collection[str]) -> dict[str, Any]:
    """Return what a message says: ``text``, ``who`` where it names culprits, and its facts by name.

    Args:
        message: What is to be said.
        taken: Names of further fields; a fact of such a name stays in the text, so that nothing of it is lost.
    """
    told: dict[str, Any] = {"text": ""}
    texts: list[str] = []
    who: list[str] = []
    for number, line in enumerate(message.lines):
        fact = _fact(line)
        if fact is not None and (fact[0] in taken or fact[0] in _OURS):
            texts.append(line)
        elif fact is not None and fact[0] in _ONE_OF_A_KIND:
            told[fact[0]] = f"{told[fact[0]]}\n{fact[1]}" if fact[0] in told else fact[1]
        elif fact is not None:
            told.setdefault(fact[0], []).append(fact[1])
        elif message.culprits_from is not None and number >= message.culprits_from:
            who.append(line.strip())
        else:
            texts.append(line)
    if who:
        told["who"] = who
    told["text"] = "\n".join(texts) if texts else (who or [""])[0]
    return told


def _shortened(value: Any, longest: int) -> Any:
    """Return a value with no text longer than so many characters, and no list longer than a 64th of that."""
    if isinstance(value, str):
        return value if len(value) <= longest else value[:longest] + " ..."
    if isinstance(value, list):
        return [_shortened(each, longest) for each in value[: max(1, longest // 64)]]
    return value
