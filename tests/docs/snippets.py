"""The code blocks of the documentation, and how each is run.

The information string of a block says what it is; the site's build shows its first word only::

    python                   a program of its own
    python continues         goes on where the page's last Python program ended
    python file=train.py     a file beside the others, for a later command (yaml, toml and text can be files, too)
    bash                     run by bash -eu; exit=1 if that is how it ends
    text output              lines that the last command or program has printed; numbers are not compared, ... stands
                             for any lines
    text                     shown, not run (also: yaml, toml, diff, console without a file)
    ... not-run: REASON      cannot be run here

A comment ``<!-- run`` ... ``-->`` around blocks hides them on the site; they are run all the same.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["LANGUAGES", "PAGES", "ROOT", "Block", "Page", "blocks"]

ROOT = Path(__file__).parents[2]
PAGES = (
    *sorted(path for path in (ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "README.md",
)
LANGUAGES = {"bash", "python", "yaml", "toml", "text", "diff"}
PATIENCE = 180.0

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One code block of a page."""

    line: int
    language: str
    info: str
    """What follows the language."""
    body: str

    @property
    def not_run(self) -> str | None:
        """Return why it cannot be run, if it says so."""
        _, found, reason = self.info.partition("not-run:")
        return reason.strip() if found else None

    def word(self, name: str) -> str | None:
        """Return the value of ``name=value``."""
        found = re.search(rf"\b{name}=(\S+)", self.info)
        return found[1] if found else None


def blocks(text: str) -> list[Block]:
    """Return all code blocks of a page."""
    found = []
    for match in _BLOCK.finditer(text):
        language, _, info = match["info"].strip().partition(" ")
        indent = len(match["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in match["body"].splitlines(keepends=True))
        found.append(Block(text.count("\n", 0, match.start()) + 1, language, info, body))
    return found


class Page:
    """Run the blocks of one page, in order, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._python = ""
        self._said = ""
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, block: Block) -> None:
        """Run one block, or write its file, or compare it with what was said last."""
        name = block.word("file")
        if block.not_run is not None:
            return
        if name is not None:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            self._python = self._python + "\n" + block.body if "continues" in block.info.split() else block.body
            (self.folder / "snippet.py").write_text(self._python, encoding="utf-8")
            self._call([sys.executable, "snippet.py"], 0, block)
        elif block.language == "bash":
            self._call(["bash", "-euo", "pipefail", "-c", block.body], int(block.word("exit") or 0), block)
        elif block.language == "text" and block.info == "output":
            self._compare(block)

    def _call(self, command: list[str], exit_code: int, block: Block) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FT_")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            self._said, _ = process.communicate(timeout=PATIENCE)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            self._said, _ = process.communicate()
            print(self._said)
            raise
        assert process.returncode == exit_code, f"line {block.line} ended with {process.returncode}:\n{self._said}"

    def _compare(self, block: Block) -> None:
        said = [_without_numbers(line) for line in self._said.splitlines()]
        for line in block.body.splitlines():
            if line.strip() in ("...", ""):
                continue
            wanted = _without_numbers(line)
            assert wanted in said, f"line {block.line}: nothing says {line!r}:\n{self._said}"
            said = said[said.index(wanted) + 1 :]


def _without_numbers(line: str) -> str:
    # Ranks that wait for each other pass their limits within milliseconds; which one is first is chance.
    line = re.sub(r", which would have passed \d+ ms later", "", line)
    # A page names its nodes; here all of them have the name of this machine.
    line = re.sub(r"^ft_launcher\[[^]]+\]", "ft_launcher[a node]", line)
    # What took less than 0.1 ms is written with an exponent: 9.1275e-05.
    return re.sub(r"\d[\d.,]*(?:e[-+]\d+)?", "#", line).strip()
