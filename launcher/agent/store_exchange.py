"""How nodes tell each other of failures where torch's rendezvous is all that they have: through the store of a round.

The node of group rank 0 gathers. A thread does all of it, since a store whose host is gone may block for a minute; it
asks the store only from the first word of a failure until the story is known. Nobody gathers in that node's place
should it be lost: each node then tells what it has seen itself.

What :mod:`launcher.nodes.gathering` sends as messages are keys here. Suspicions are counted; a node that has looked at
its ranks says so for every suspicion up to then, and who suspects may signal once all nodes have said so for its own.
Who only waits asks once more, who came back since, and signals when all have answered.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

# These are documented; torch exports them without saying so.
# pyright: reportPrivateImportUsage=false
from torch.distributed import Store

from launcher.agent.store_questions import Questions
from launcher.nodes.gathering import LONGEST_GATHERING_NS, Gathered, Heard, Word, longest_wait_ns
from launcher.nodes.plane import FailureListener
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["NEWS", "SUSPICIONS", "StoreExchange", "StoreRound"]

logger = logging.getLogger(__name__)

NEWS = "ft/news"
"""Set where there is something to be asked for, so that a look asks for one key."""
SUSPICIONS = "ft/suspicions"
"""How many there were."""
_POLL_SECONDS = 0.02
_MOST_POLLS_PER_SECOND = 2000
_LONGEST_WATCH_NS = 4 * NS_PER_SECOND
_LEARNS_LATE_NS = 2 * NS_PER_SECOND
"""How much later than another node the one that gathers may learn of a failure, on machines with much to do."""


class StoreRound(NamedTuple):
    """One generation's round of the rendezvous, as this node takes part in it."""

    generation: int
    store: Store
    """For what is said of its failure."""
    news: Store
    """Where :data:`NEWS` is looked for."""
    group_rank: int
    size: int
    hosts: tuple[str, ...]
    """By group rank; known to the first node."""

    @property
    def poll_seconds(self) -> float:
        """How often to ask: the more nodes, the less often, since one process answers all."""
        return max(_POLL_SECONDS, self.size / _MOST_POLLS_PER_SECOND)

    @property
    def longest_wait_ns(self) -> int:
        """How long a story is waited for, until what this node has seen is told; no restart waits for that."""
        return longest_wait_ns(self.size) + _LEARNS_LATE_NS + int(10 * self.poll_seconds * NS_PER_SECOND)


class _Watched:
    """What is waited for in a round."""

    def __init__(self, round_: StoreRound) -> None:
        self.round = round_
        self.until_ns = 0
        """``CLOCK_MONOTONIC`` until which the store is asked."""
        self.looks, self.confirmations = Questions(SUSPICIONS, "ft/looks"), Questions("ft/confirm", "ft/confirmed")
        self.only_waits = False
        """The last verdict here is on ranks that wait for others."""
        self.came_back: tuple[int, ...] = ()
        """Who came back until the others were asked who came back since."""
        self.given_ns: int | None = None
        self.accounts: dict[int, str] = {}
        self.first_account_ns: int | None = None
        self.is_gathered = self.is_told = self.is_late = False

    def is_awaited(self, now_ns: int) -> bool:
        """Return whether the store is to be asked: for a story, or for a while after a suspicion."""
        return not self.is_told and (self.given_ns is not None or now_ns < self.until_ns)


class StoreExchange:
    """See :class:`launcher.agent.agreement.FailureExchange`."""

    def __init__(self) -> None:
        self._listener: FailureListener | None = None
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._called = threading.Event()
        self._watched: _Watched | None = None
        self._former: list[_Watched] = []
        """The round before, where its story has not come yet."""
        self._thread: threading.Thread | None = None

    def listen(self, listener: FailureListener) -> None:
        """See :class:`launcher.agent.agreement.FailureExchange`."""
        self._listener = listener

    def began(self, round_: StoreRound) -> None:
        """Note the round that a generation runs in."""
        self._call(lambda: self._begin(round_))

    def noticed(self) -> None:
        """Note that some node suspects a rank, or has, as the agent finds at each of its looks from then on."""
        watched = self._watched
        if watched is not None and time.monotonic_ns() >= watched.until_ns:
            self._call(lambda: self._look_for_more(watched))

    def suspect(self, generation: int) -> None:
        """See :class:`launcher.agent.agreement.FailureExchange`."""

        def suspect(watched: _Watched) -> None:
            watched.confirmations.drop()
            watched.looks.ask(watched.round.store)
            watched.round.news.set(NEWS, "1")

        self._of(generation, suspect)

    def looked(
        self, generation: int, came_back: tuple[int, ...] = (), *, only_waits: bool = False, is_brief: bool = False
    ) -> None:
        """See :class:`launcher.agent.agreement.FailureExchange`."""

        def say(watched: _Watched) -> None:
            if not is_brief:
                watched.only_waits = only_waits
            (watched.confirmations if is_brief else watched.looks).tell(watched.round.store, came_back)

        self._of(generation, say)

    def give_account(self, generation: int, text: str) -> None:
        """See :class:`launcher.agent.agreement.FailureExchange`."""

        def give() -> None:
            if (watched := self._watch_on(generation)) is not None:
                watched.given_ns = time.monotonic_ns()
                watched.round.store.set(_account(watched.round.group_rank), text)
            else:  # its round is long over
                self._hear(Heard(generation, Word.SILENCE))

        if not self._call(give):
            self._hear(Heard(generation, Word.SILENCE))

    def decided(self, generation: int, text: str) -> None:
        """See :class:`launcher.agent.agreement.FailureExchange`."""
        self._of(generation, lambda watched: watched.round.store.set(_STORY, text))

    def _of(self, generation: int, call: Callable[[_Watched], object]) -> None:
        def of() -> None:
            if (watched := self._watch_on(generation)) is not None:
                call(watched)

        self._call(of)

    def _call(self, call: Callable[[], object]) -> bool:
        """Have the thread call something; False where the system grants no thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ft_store_exchange", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # pids.max
                return False
            self._thread = thread
        self._calls.append(call)
        self._called.set()
        return True

    # ---- the thread -------------------------------------------------------------------------------------

    def _begin(self, round_: StoreRound) -> None:
        """Watch a new round; of the one before, its story may be on its way."""
        for each in self._former:
            self._give_up(each)
        self._former = [] if self._watched is None or self._watched.given_ns is None else [self._watched]
        self._watched = _Watched(round_)

    def _watch_on(self, generation: int) -> _Watched | None:
        for watched in self._all():
            if watched.round.generation == generation:
                watched.until_ns = time.monotonic_ns() + _LONGEST_WATCH_NS
                return watched
        return None

    def _look_for_more(self, watched: _Watched) -> None:
        """Ask once; only a suspicion that is new is worth asking more often for."""
        if watched is self._watched and watched.looks.are_new(watched.round.store):
            self._watch_on(watched.round.generation)

    def _all(self) -> list[_Watched]:
        return [*self._former, *([] if self._watched is None else [self._watched])]

    def _run(self) -> None:
        while True:
            now_ns = time.monotonic_ns()
            busy = [each for each in self._all() if each.is_awaited(now_ns)]
            self._called.wait(min((each.round.poll_seconds for each in busy), default=None))
            self._called.clear()
            while self._calls:
                self._try(self._calls.popleft())
            for watched in self._all():
                if not self._try(lambda watched=watched: self._poll(watched)):  # type: ignore[misc]
                    watched.until_ns = 0  # it is asked no more, unless something new is said
                    self._give_up(watched)

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever the store of a backend raises; its host may be gone
            logger.info("the store of the rendezvous does not answer of a failure: %s", error)
            return False
        return True

    def _poll(self, watched: _Watched) -> None:
        store, generation, now_ns = watched.round.store, watched.round.generation, time.monotonic_ns()
        if not watched.is_awaited(now_ns):
            return
        if watched.given_ns is None:
            if watched.looks.take_new(store):
                self._hear(Heard(generation, Word.LOOK))
            if watched.confirmations.take_new(store):
                self._hear(Heard(generation, Word.CONFIRM))
            came_back = watched.looks.answers(store, watched.round.size)
            if came_back is not None and watched.only_waits:
                watched.confirmations.ask(store)
                watched.came_back = came_back
                self._hear(Heard(generation, Word.CONFIRM, came_back=came_back))
                came_back = None
            if came_back is None and (since := watched.confirmations.answers(store, watched.round.size)) is not None:
                came_back = (*watched.came_back, *since)
            if came_back is not None:
                self._hear(Heard(generation, Word.PROCEED, came_back=came_back))
            return
        if watched.round.group_rank == 0 and not watched.is_gathered:
            self._gather(watched, now_ns)
        if store.check([_STORY]):
            watched.is_told = True
            self._hear(Heard(generation, Word.STORY, store.get(_STORY).decode("utf-8")))
        elif (waited_ns := now_ns - watched.given_ns) >= watched.round.longest_wait_ns + _LONGEST_WATCH_NS:
            self._give_up(watched)
        elif waited_ns >= watched.round.longest_wait_ns and not watched.is_late:
            watched.is_late = True  # a story that comes after all is told as well
            self._hear(Heard(generation, Word.SILENCE))

    def _gather(self, watched: _Watched, now_ns: int) -> None:
        store, hosts = watched.round.store, watched.round.hosts
        for rank in range(len(hosts)):
            if rank not in watched.accounts and store.check([_account(rank)]):
                watched.accounts[rank] = store.get(_account(rank)).decode("utf-8")
                watched.first_account_ns = watched.first_account_ns or now_ns
        elapsed_ns = now_ns - (watched.first_account_ns or now_ns)
        if len(watched.accounts) < len(hosts) and elapsed_ns < LONGEST_GATHERING_NS:
            return
        watched.is_gathered = True
        silent = tuple(host for rank, host in enumerate(hosts) if rank not in watched.accounts)
        accounts = {f"{hosts[rank]} ({rank})": text for rank, text in watched.accounts.items()}
        seconds = elapsed_ns / NS_PER_SECOND
        if self._listener is not None:
            self._listener.gathered(Gathered(watched.round.generation, accounts, silent, (), "", seconds))

    def _give_up(self, watched: _Watched) -> None:
        if watched.given_ns is not None and not watched.is_told:
            watched.is_told = True
            if not watched.is_late:
                self._hear(Heard(watched.round.generation, Word.SILENCE))

    def _hear(self, heard: Heard) -> None:
        if self._listener is not None:
            self._listener.heard(heard)


_STORY = "ft/story"


def _account(group_rank: int) -> str:
    return f"ft/account/{group_rank}"
