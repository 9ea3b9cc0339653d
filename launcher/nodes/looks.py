"""How the leader has all nodes look at their ranks before a late one is signalled; a part of the gathering. Pure.

Who suspects a rank proceeds once all have looked. Where its late ranks only wait for others, and nobody on its node is
to blame, those with somebody to blame go first: theirs may come back at the last moment, and be spared. So all nodes
are asked once more, briefly, and a node with a verdict of its own answers when it has carried it out or withdrawn it.
One way not taken: to ask all once more for every verdict. A hang with a culprit would be ended a round later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launcher.nodes.failure_messages import LookDone, LookRequest, Proceed

__all__ = ["Looks"]

_LOOKS_COUNT_NS = 1_000_000_000
"""For how long a look is one and the same, whoever else suspects a rank."""
_MOST_COMEBACKS = 256
"""How many are passed on, the longest silent first: a word to a monitor has 64 KiB."""

_Look = tuple[int, tuple[int, ...]]
"""When it was told, and who came back."""
_Words = list[tuple[str, "LookRequest | Proceed"]]


class Looks:
    """The looks at the ranks of one generation."""

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._suspecting: set[str] = set()
        self._only_waiting: set[str] = set()
        """Whose late ranks wait for others."""
        self._have_looked: dict[str, _Look] = {}
        self._confirming: dict[str, dict[str, _Look]] = {}
        """Who of these waits for all to have said who came back since, and what was said."""

    def suspected(self, sender: str, members: Collection[str], generation: int, now_ns: int) -> _Words:
        """Have the other members look at their ranks, unless they do already."""
        words: _Words = []
        if self._began_ns is None or now_ns - self._began_ns > _LOOKS_COUNT_NS:
            self._began_ns = now_ns
            self._have_looked.clear()
            words = [(name, LookRequest(generation)) for name in members if name != sender]
        self._have_looked.pop(sender, None)  # it looks for this suspicion
        self._confirming.pop(sender, None)  # its last verdict was withdrawn
        self._suspecting.add(sender)
        return words

    def told(self, sender: str, message: LookDone, now_ns: int) -> None:
        """Note that a node has looked, or has said who came back since."""
        if message.is_brief:
            for said in self._confirming.values():
                said[sender] = now_ns, message.came_back
            return
        self._have_looked[sender] = now_ns, message.came_back
        if message.only_waits:
            self._only_waiting.add(sender)
        else:
            self._only_waiting.discard(sender)

    def proceed(self, members: Collection[str], generation: int, now_ns: int) -> _Words:
        """Return what follows from what was told.

        Args:
            members: Those of the generation that are still there.
            generation: Which.
            now_ns: The leader's clock.
        """
        words: _Words = []
        if self._suspecting and all(name in self._have_looked for name in members):
            came_back = _aged(self._have_looked.values(), now_ns)
            sure = self._suspecting - self._only_waiting
            words += [(name, Proceed(generation, came_back=came_back)) for name in sure]
            if waiting := self._suspecting & self._only_waiting:
                self._confirming |= {name: {} for name in waiting}
                request = LookRequest(generation, is_brief=True, came_back=came_back)
                words += [(name, request) for name in members]
            self._suspecting.clear()
        for name, said in list(self._confirming.items()):
            if all(member in said for member in members):
                came_back = _aged((*self._have_looked.values(), *said.values()), now_ns)
                words.append((name, Proceed(generation, came_back=came_back)))
                del self._confirming[name]
        return words


def _aged(looks: Iterable[_Look], now_ns: int) -> tuple[int, ...]:
    """Return who came back on all nodes, with the time added that has passed since it was told.

    Of a node that tells anything but whole numbers nothing is taken.
    """
    sound = [(at_ns, said) for at_ns, said in looks if isinstance(said, tuple) and all(type(v) is int for v in said)]
    told = [(at_ns, said[place : place + 3]) for at_ns, said in sound for place in range(0, len(said) - 2, 3)]
    rows = sorted(((row[0], row[1] + now_ns - at_ns, row[2]) for at_ns, row in told), key=lambda row: -row[2])
    return tuple(value for row in rows[:_MOST_COMEBACKS] for value in row)
