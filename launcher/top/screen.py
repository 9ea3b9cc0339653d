"""The live table: a frame each interval, of which only the lines that differ from the last one are written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from launcher.live.live_run import RunLook
from launcher.top.header import HeaderLine, Headers
from launcher.top.other_nodes import OtherNodes
from launcher.top.output import encoded
from launcher.top.rows import Row, all_rows, in_order, late_ones
from launcher.top.styles import Styles
from launcher.top.table import Table
from launcher.top.terminal import Terminal, TerminalGoneError
from launcher.top.waiting import Waiting

__all__ = ["Screen", "die_of"]

_MOST_HEADER_LINES = 8
_EMPTY = "\x1b[K"


class Screen:
    """Shows a run until it ends or somebody leaves.

    Args:
        terminal: Where.
        styles: How texts look there.
        interval_seconds: Between two frames.
        others: Other nodes, whose metrics are read.
    """

    def __init__(self, terminal: Terminal, styles: Styles, interval_seconds: float, others: OtherNodes | None) -> None:
        self._terminal = terminal
        self._styles = styles
        self._interval_seconds = interval_seconds
        self._others = others
        self._headers = Headers()
        self._drawn: list[str] = []
        self._by_rank = False
        self._section_width = 0

    def run(self, look: Callable[[], RunLook]) -> tuple[RunLook | None, int | None]:
        """Show what ``look`` finds, again and again.

        Args:
            look: Takes one look.

        Returns:
            The last look where the run has ended, and the signal that asked to end, where one did.

        Raises:
            OSError: As ``look``; the terminal is as it was then.
            UnknownVersionError: As ``look``.
        """
        with Waiting() as waiting:
            try:
                self._take_over()
                return self._show(look, waiting)
            except TerminalGoneError:
                return None, signal.SIGHUP
            finally:
                self._terminal.close()

    def _show(self, look: Callable[[], RunLook], waiting: Waiting) -> tuple[RunLook | None, int | None]:
        found = look()
        due = time.monotonic()
        while found.goes_on:
            self._draw(found)
            due = max(due + self._interval_seconds, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                keys = self._terminal.keys if self._terminal.is_ours() else None
                numbers, has_keys = waiting.wait(left, keys)
                for number in numbers:
                    if waiting.is_ending(number):
                        return None, number
                    self._heed(number, waiting)
                if has_keys:
                    pressed = self._terminal.read_keys().lower()
                    if b"q" in pressed:
                        return None, None
                    if pressed.count(b"s") % 2:
                        self._by_rank = not self._by_rank
                        numbers.append(signal.SIGWINCH)
                if numbers:
                    self._draw(found)
            found = look()
        return found, None

    def _heed(self, number: int, waiting: Waiting) -> None:
        if number == signal.SIGTSTP:
            self._terminal.leave()
            waiting.stop_here()
            self._take_over()
        elif number == signal.SIGCONT:  # after SIGSTOP, which nobody hears of; a shell may have changed the modes
            self._terminal.leave()
            self._take_over()
        elif number == signal.SIGWINCH:
            self._drawn = []

    def _take_over(self) -> None:
        self._drawn = []
        if self._terminal.is_ours():
            self._terminal.enter()

    # ---- frames -------------------------------------------------------------------------------------------------

    def _draw(self, found: RunLook) -> None:
        """Write the lines that have changed; nothing while the terminal is somebody else's, or takes nothing."""
        if not self._terminal.is_ours():
            return
        if not self._terminal.is_entered:
            self._take_over()
        if self._terminal.is_busy:
            self._terminal.write(b"")
            if self._terminal.is_busy:
                return
        width, height = self._terminal.size()
        frame = self.frame(found, width, height)
        output = []
        if not self._drawn:
            output.append("\x1b[H\x1b[2J")
        for number, line in enumerate(frame):
            if number >= len(self._drawn) or line != self._drawn[number]:
                # As wide as the screen: to erase the rest of a full line would erase its last character.
                output.append(f"\x1b[{number + 1};1H{line or _EMPTY}")
        if len(frame) < len(self._drawn):
            output.append(f"\x1b[{len(frame) + 1};1H\x1b[J")
        self._drawn = frame
        if output:
            self._terminal.write(encoded("".join(output), "replace"))

    def frame(self, found: RunLook, width: int, height: int) -> list[str]:
        """Return the lines of a screen, with their styles.

        Args:
            found: What to show.
            width: Columns of the terminal.
            height: Its lines.
        """
        others = self._others.look() if self._others is not None else ()
        rows = in_order(all_rows(found, (row for other in others for row in other.rows)), by_rank=self._by_rank)
        lines = []
        for number, line in enumerate(self._headers.lines(found, others)):
            lines += self._header_lines(line, width, is_first=not number)
        lines = lines[: max(1, min(_MOST_HEADER_LINES, height - 4))]
        room = height - len(lines) - 2  # the heading of the table, and the last line
        shown = rows[: max(0, room)]
        table = Table(rows, width, self._styles.fit, self._section_width)
        self._section_width = table.wanted
        lines.append(self._styles.heading(table.heading))
        lines += [self._row(table, row) for row in shown]
        lines += [""] * (height - len(lines) - 1)
        lines.append(self._styles.faint(self._styles.fit(self._last_line(rows, len(shown)), width)))
        return lines[:height]

    def _header_lines(self, line: HeaderLine, width: int, *, is_first: bool) -> list[str]:
        """Return a line above the table, in two where it is too long for one."""
        pieces = [line.text]
        if len(line.text) > width:
            cut = line.text.rfind(" ", width // 2, width + 1)
            cut = width if cut < 0 else cut
            pieces = [line.text[:cut], f"  {line.text[cut:].lstrip()}"]
        texts = [self._styles.fit(piece, width) for piece in pieces]
        if line.is_bad:
            return [self._styles.bad(text) for text in texts]
        return [self._styles.strong(text) for text in texts] if is_first else texts

    def _row(self, table: Table, row: Row) -> str:
        line = table.line(row)
        if row.is_bad:
            return self._styles.bad(line)
        return self._styles.warned(line) if row.used >= 0.8 else line

    def _last_line(self, rows: Sequence[Row], shown: int) -> str:
        keys = f"q: quit   s: sort by {'lateness' if self._by_rank else 'rank'}"
        left = rows[shown:]
        if not left:
            return keys if self._terminal.keys is not None else ""
        late = late_ones(left)
        return f"and {len(left)} more, {late or 'none'} of them late or in trouble   {keys}"


def die_of(number: int) -> int:
    """End this process by a signal that it has heard, so that whoever started it sees that.

    Returns:
        The exit code of a shell, where the signal is ignored.
    """
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
