"""Whether all ranks learn timeouts now: learning is a collective, and one rank may have had a reason not to.

A rank whose save has failed learns nothing any more, and cannot know whether the others have seen that. Without an
agreement they would begin a collective of the training's own group, and what the training calls next would be paired
with it. So each rank tells in the store of the default group that it has come, and with what in mind. The last one to
come decides for all, once: *go* if all have the same in mind. A rank that will not come decides *skip* in its place. A
decision is written by an atomic compare-and-set of the store, so there is one.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from resilience_core._hook_wrappers import is_of_a_signal_handler
from resilience_core.monitoring.collectives import is_distributed

__all__ = ["SHORTEST_WAIT_SECONDS", "LearningAgreement"]

logger = logging.getLogger(__name__)

_GO, _SKIP = b"go", b"skip"
SHORTEST_WAIT_SECONDS = 1.0
"""Also where earlier waits have failed, so that ranks which end their saves together find each other."""
_SHORTEST_LOOK_SECONDS = 0.001
_LONGEST_LOOK_SECONDS = 0.5
"""Between two looks at the store, of which each rank of thousands asks the same host."""
_LONGEST_SILENCE_SECONDS = 15.0

_runs = itertools.count()


class LearningAgreement:
    """What the ranks agree on during one run of the loop. Every rank makes as many of these, in the same order."""

    def __init__(self) -> None:
        self._prefix = f"torch_resilience/learning/{next(_runs)}"
        self._occurrences = collections.Counter[str]()
        self._has_refused = False
        self._has_told = False
        self._failed_waits = 0

    def all_will(self, occasion: str, plan: Collection[str], longest_seconds: float) -> bool:
        """Wait until every rank is here, or one will not come.

        Args:
            occasion: Names when this is, the same on all ranks. What only some of them do is skipped by these, and
                does not mix up what follows.
            plan: What this rank has in mind to learn.
            longest_seconds: How long to wait. After each wait that fails the next one is ten times shorter, down to a
                second, so that a training that saves on one rank alone is delayed little at each save.

        Returns:
            Whether all have come with the same plan: then all begin the collective, else nobody does.
        """
        if not is_distributed():
            return True
        if self._has_refused:
            return False
        key = f"{self._prefix}/{occasion}/{self._occurrences[occasion]}"
        self._occurrences[occasion] += 1
        digest = hashlib.blake2b("\0".join(sorted(plan)).encode(), digest_size=8).hexdigest()
        try:
            store, world_size = _store(), int(sys.modules["torch.distributed"].get_world_size())
            alike = store.add(f"{key}/{digest}", 1)
            if store.add(f"{key}/all", 1) == world_size:
                # Everybody has counted itself among those alike before among all.
                alike = store.add(f"{key}/{digest}", 0)
                store.compare_set(f"{key}/decision", "", (_GO if alike == world_size else _SKIP).decode())
            shorter = longest_seconds / 10**self._failed_waits
            longest_seconds = min(longest_seconds, max(shorter, SHORTEST_WAIT_SECONDS))
            return self._decided(store, f"{key}/decision", longest_seconds) == _GO
        except BaseException as error:  # of any kind of store, or of a signal handler, which may stop the training
            self._has_refused = True
            if not isinstance(error, Exception) or is_of_a_signal_handler(error):
                self._withdraw(f"{key}/decision")  # the others must not begin what this rank will not take part in
                raise
            logger.warning("no timeouts are learned in this run: the store of the process group says: %s", error)
            return False

    def _withdraw(self, decision: str) -> None:
        with contextlib.suppress(Exception):
            store = _store()
            store.compare_set(decision, "", _SKIP.decode())
            store.set(f"{self._prefix}/refused", "1")

    def refuse(self) -> None:
        """Say that this rank learns nothing more in this run. Never waits: the store's host may be gone."""
        if self._has_refused or not is_distributed():
            return
        self._has_refused = True
        try:
            store = _store()
        except Exception:  # noqa: BLE001 - as above
            return
        telling = threading.Thread(target=self._tell_refusal, args=(store,), name="ft_refuse", daemon=True)
        with contextlib.suppress(RuntimeError):  # no room for a thread: the others find no decision, and give up
            telling.start()

    def _tell_refusal(self, store: Any) -> None:
        try:
            store.set(f"{self._prefix}/refused", "1")
        except Exception as error:  # noqa: BLE001 - the others find no decision then, and give up
            logger.debug("the other ranks could not be told that nothing is learned: %s", error)

    def _decided(self, store: Any, key: str, longest_seconds: float) -> bytes:
        """Return the decision, and make it when it is late, or one rank has refused for good."""
        end, is_told, look_seconds = time.monotonic() + longest_seconds, False, _SHORTEST_LOOK_SECONDS
        has_failed = False
        while not store.check([key]):
            left = end - time.monotonic()
            if store.check([f"{self._prefix}/refused"]) or left <= 0:
                store.compare_set(key, "", _SKIP.decode())
                has_failed = left <= 0
                continue
            if not is_told and left < longest_seconds - _LONGEST_SILENCE_SECONDS:
                is_told = True
                logger.info("this rank waits for others to learn timeouts with, for %.0f s at most", left)
            # Not store.wait(): torch writes warnings to standard error each time that one takes too long.
            time.sleep(min(left, look_seconds))
            look_seconds = min(2 * look_seconds, _LONGEST_LOOK_SECONDS)
        decision = bytes(store.get(key))
        self._failed_waits = self._failed_waits + 1 if has_failed else 0
        if decision == _SKIP:
            self._has_refused = bool(store.check([f"{self._prefix}/refused"]))
            if self._has_refused:
                why = "any more in this run, since one rank cannot: a save has failed there, or its run has ended"
            else:
                why = (
                    "this time, since not all ranks have come in time with the same to learn (said once). Frame each "
                    "save on every rank, or leave calculate_timeouts out"
                )
            if self._has_refused or not self._has_told:
                self._has_told = True
                logger.warning("timeouts are not learned %s", why)
        return decision


def _store() -> Any:
    return sys.modules["torch.distributed"].distributed_c10d._get_default_store()
