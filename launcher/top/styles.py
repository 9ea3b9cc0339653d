"""How texts look in a terminal, by rich: which colours it has, and how wide a character is. The only module with rich.

rich's own tables measure every cell anew for each frame, which would take most of the time of a frame
(``python -m benchmarks.top`` measures the whole). So :class:`launcher.top.table.Table` puts the lines together, and
rich is asked once for each style, and for the width of texts that are not ASCII.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

__all__ = ["Styles"]


class Styles:
    """The styles of one terminal."""

    def __init__(self) -> None:
        self._console = Console()
        name = self._console.color_system
        self._system = None if name is None else ColorSystem[_NAMES.get(name, "STANDARD")]
        self._bad = self._codes("bold red")
        self._warned = self._codes("yellow")
        self._strong = self._codes("bold")
        self._heading = self._codes("reverse")
        self._faint = self._codes("dim")

    @property
    def is_dumb(self) -> bool:
        """Whether the terminal cannot move its cursor."""
        return self._console.is_dumb_terminal

    def fit(self, text: str, width: int) -> str:
        """Cut or pad a text to so many columns."""
        if text.isascii():  # each character takes one column
            return text.ljust(width)[:width]
        return set_cell_size(text, width)

    def bad(self, text: str) -> str:
        """Return a text that somebody should look at."""
        return self._bad[0] + text + self._bad[1]

    def warned(self, text: str) -> str:
        """Return a text that may soon be one to look at."""
        return self._warned[0] + text + self._warned[1]

    def strong(self, text: str) -> str:
        """Return a title."""
        return self._strong[0] + text + self._strong[1]

    def heading(self, text: str) -> str:
        """Return the heading of a table."""
        return self._heading[0] + text + self._heading[1]

    def faint(self, text: str) -> str:
        """Return a text of less weight."""
        return self._faint[0] + text + self._faint[1]

    def _codes(self, definition: str) -> tuple[str, str]:
        style = Style.parse(definition)
        if self._console.no_color:
            style = style.without_color
        # Without colours there are bold and reverse still, but for a terminal that is no terminal.
        before, _, after = style.render("\0", color_system=self._system or ColorSystem.STANDARD).partition("\0")
        return before, after


_NAMES = {"standard": "STANDARD", "256": "EIGHT_BIT", "truecolor": "TRUECOLOR", "windows": "STANDARD"}
