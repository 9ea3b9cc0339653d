"""How the nodes of a job tell each other what they know of a failure, and what the leader makes of it. Pure.

Nothing here is agreed on, and nothing waits for it but the signal to a hung rank, within a bound. There are two rounds,
and neither needs the other:

* *Looks*, while the generation runs. A node whose rank is late says so (``Suspicion``); the leader has all others look
  at their ranks (``LookRequest``), each says when it has (``LookDone``), and then the late ranks may be signalled
  (``Proceed``, which tells who came back meanwhile). Where these only wait, and nobody on their node is to blame, all
  say once more who came back, after the other late ranks may be signalled: one for which they wait may have been spared
  then. A verdict that is withdrawn leaves nothing behind.
* *The story*, once the nodes have agreed that the generation is over. Each gives its ``Account``, the looks of before
  included; the leader decides once all have come, or the time is up, and tells everybody (``Story``).

A message that is lost, or a leader that is, costs at most the story of one failure: a node repeats its account until it
hears the story, or has waited long enough. One way not taken: accounts as commands of the replicated log. Every voter
would keep them, and a restart would wait for their replication, for a text that only people read.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.nodes.failure_messages import Account, LookDone, LookRequest, Proceed, Story, Suspicion
from launcher.nodes.looks import Looks
from launcher.nodes.membership import Membership, Phase

__all__ = [
    "LONGEST_GATHERING_NS",
    "Gathered",
    "Gatherer",
    "Heard",
    "NodeAccounts",
    "Word",
    "host_in",
    "longest_wait_ns",
]

LONGEST_GATHERING_NS = 800_000_000
"""From when the generation is over; within a second of the verdict people are to read who caused it."""
_LONGEST_WAIT_NS = 2_000_000_000
_WAIT_OF_A_NODE_NS = 2_000_000  # for each node of the job, whose account has to be read
_REPEAT_NS = 250_000_000
_REPEAT_OF_A_NODE_NS = 1_000_000
"""For each node of the job: who leads takes a thousand accounts a second at most."""


def longest_wait_ns(size: int) -> int:
    """Return how long a node of a job with so many waits for the story after it has given its account."""
    return _LONGEST_WAIT_NS + size * _WAIT_OF_A_NODE_NS


class Gathered(NamedTuple):
    """The accounts of one failure.

    Args:
        generation: Of the ranks.
        accounts: By name of the node's incarnation.
        silent: Hosts of members that have given none, though they are still there.
        lost: Hosts of members that are no longer there.
        why: Why the generation is over, as the nodes have agreed.
        seconds: From when it was over.
        may_blame_silent: Who has given no account has not heard the story from a leader before this one.
    """

    generation: int
    accounts: dict[str, str]
    silent: tuple[str, ...]
    lost: tuple[str, ...]
    why: str
    seconds: float
    may_blame_silent: bool = True


class _Open:
    """A generation of which something was said."""

    def __init__(self, members: dict[str, str]) -> None:
        self.members = members  # name to host
        self.looks = Looks()
        self.over_ns: int | None = None
        self.why = ""
        self.accounts: dict[str, str] = {}
        self.is_handed_over = False
        self.story: Story | None = None


class Gatherer:
    """The leader's part; dropped when it leads no more.

    Args:
        membership: What is agreed.
        told: The story that this node has heard last, perhaps of another leader; it is not told otherwise.
    """

    def __init__(self, membership: Membership, told: Story | None = None) -> None:
        self.outbox: list[tuple[str, LookRequest | Proceed | Story]] = []
        self.gathered: list[Gathered] = []
        """Complete; whoever takes one calls :meth:`decided` at some time."""
        self._membership = membership
        self._told = told
        self._open: dict[int, _Open] = {}
        is_over = membership.phase in (Phase.STOPPING, Phase.ENDED)
        self._late_for = membership.generation if is_over else -1
        """A generation that was over before this node led: who has heard its story does not speak again."""

    @property
    def due_ns(self) -> int | None:
        """When to call :meth:`flush`; None while nothing is awaited."""
        waiting = [each.over_ns for each in self._open.values() if each.over_ns is not None and not each.is_handed_over]
        return min(waiting) + LONGEST_GATHERING_NS if waiting else None

    def receive(self, sender: str, message: Suspicion | LookDone | Account, now_ns: int) -> None:
        """Take what a node says of a failure; of who was no member of that generation nothing is taken."""
        known = self._of(message.generation)
        if known is None or sender not in known.members:
            return
        if isinstance(message, (Suspicion, LookDone)):
            if isinstance(message, Suspicion):
                self.outbox += known.looks.suspected(sender, known.members, message.generation, now_ns)
            else:
                known.looks.told(sender, message, now_ns)
            self._let_proceed(known, message.generation, now_ns)
        elif known.story is not None:
            self.outbox.append((sender, known.story))
        else:
            known.accounts[sender] = message.text

    def _let_proceed(self, known: _Open, generation: int, now_ns: int) -> None:
        members = [name for name in known.members if name in self._membership.nodes]
        self.outbox += known.looks.proceed(members, generation, now_ns)

    def flush(self, now_ns: int) -> None:
        """Hand over what is complete, or has taken as long as it may."""
        membership = self._membership
        for generation, known in list(self._open.items()):
            self._let_proceed(known, generation, now_ns)  # who was still waited for may be gone
            if known.is_handed_over:
                continue
            if generation == membership.generation:
                if membership.phase == Phase.RUNNING:
                    continue
                known.why = membership.why
            if known.over_ns is None:
                known.over_ns = now_ns
            missing = [name for name in known.members if name not in known.accounts]
            silent = [name for name in missing if name in membership.nodes]
            if silent and now_ns - known.over_ns < LONGEST_GATHERING_NS:
                continue
            if not known.accounts:  # nothing has failed, or nobody knows of it any more
                del self._open[generation]
                continue
            known.is_handed_over = True
            self.gathered.append(
                Gathered(
                    generation,
                    dict(known.accounts),
                    tuple(known.members[name] for name in silent),
                    tuple(known.members[name] for name in missing if name not in membership.nodes),
                    known.why,
                    (now_ns - known.over_ns) / 1e9,
                    may_blame_silent=generation != self._late_for,
                )
            )

    def decided(self, generation: int, text: str) -> None:
        """Tell every member what has happened."""
        if (known := self._open.get(generation)) is not None and known.is_handed_over:
            known.story = Story(generation, text)
            self.outbox += [(name, known.story) for name in known.members]

    def has_told(self, generation: int) -> bool:
        """Return whether the story of a generation was told, or there was none to run."""
        known = self._open.get(generation)
        return generation < 0 or (known is not None and known.story is not None)

    def _of(self, generation: int) -> _Open | None:
        """Return what is known of the current generation, or of one that was spoken of while it was."""
        membership = self._membership
        if generation == membership.generation and generation >= 0 and generation not in self._open:
            # Of members that have gone since it was made, the leader does not know the host any more.
            nodes = membership.nodes
            members = {name: nodes[name].host if name in nodes else host_in(name) for name in membership.members}
            self._open = {number: each for number, each in self._open.items() if number >= generation - 1}
            self._open[generation] = known = _Open(members)
            if self._told is not None and self._told.generation == generation:
                known.is_handed_over, known.story = True, self._told
        return self._open.get(generation)


def host_in(name: str) -> str:
    """Return the host in the name of an incarnation, ``host-pid-token``."""
    return name.rsplit("-", 2)[0]


class Word:
    """What a node hears; plain words."""

    LOOK = "look"
    """It is to look at its ranks."""
    CONFIRM = "confirm"
    """It is to say who came back since."""
    PROCEED = "proceed"
    """All nodes have looked at theirs."""
    STORY = "story"
    SILENCE = "silence"
    """Nobody has told the story in time."""


class Heard(NamedTuple):
    """What a node has heard of a generation.

    Args:
        generation: Which.
        word: One of :class:`Word`.
        text: The story.
        came_back: Who came back on other nodes.
    """

    generation: int
    word: str
    text: str = ""
    came_back: tuple[int, ...] = ()


class NodeAccounts:
    """A node's part."""

    def __init__(self) -> None:
        self.outbox: list[Suspicion | LookDone | Account] = []
        """For whoever leads."""
        self.heard: list[Heard] = []
        self.story: Story | None = None
        """The last one."""
        self._given: Account | None = None
        self._repeat_ns = self._give_up_ns = self._period_ns = 0

    @property
    def due_ns(self) -> int | None:
        """When to call :meth:`tick`; None while nothing is awaited."""
        return None if self._given is None else min(self._repeat_ns, self._give_up_ns)

    def suspect(self, generation: int) -> None:
        """Say that a rank of this node is late."""
        self.outbox.append(Suspicion(generation))

    def looked(
        self, generation: int, came_back: tuple[int, ...] = (), *, only_waits: bool = False, is_brief: bool = False
    ) -> None:
        """Say that this node has looked at its ranks; see :class:`.LookDone`."""
        self.outbox.append(LookDone(generation, "", came_back, only_waits, is_brief))

    def give(self, generation: int, text: str, now_ns: int, size: int = 1) -> None:
        """Say what this node has seen of its ranks, until the story is heard."""
        if self._given is not None and self._given.generation < generation:
            self.heard.append(Heard(self._given.generation, Word.SILENCE))
        self._given = Account(generation, text)
        self.outbox.append(self._given)
        self._period_ns = max(_REPEAT_NS, size * _REPEAT_OF_A_NODE_NS)
        self._repeat_ns, self._give_up_ns = now_ns + self._period_ns, now_ns + longest_wait_ns(size)

    def receive(self, message: LookRequest | Proceed | Story) -> None:
        """Note what the leader says."""
        if isinstance(message, LookRequest):
            word = Word.CONFIRM if message.is_brief else Word.LOOK
            self.heard.append(Heard(message.generation, word, came_back=message.came_back))
        elif isinstance(message, Proceed):
            self.heard.append(Heard(message.generation, Word.PROCEED, came_back=message.came_back))
        else:
            if self._given is not None and self._given.generation == message.generation:
                self._given = None
            self.story = message
            self.heard.append(Heard(message.generation, Word.STORY, message.text))

    def tick(self, now_ns: int) -> None:
        """Repeat what nobody has answered, for a while."""
        if self._given is None:
            return
        if now_ns >= self._give_up_ns:
            self.heard.append(Heard(self._given.generation, Word.SILENCE))
            self._given = None
        elif now_ns >= self._repeat_ns:
            self._repeat_ns = now_ns + self._period_ns
            self.outbox.append(self._given)
