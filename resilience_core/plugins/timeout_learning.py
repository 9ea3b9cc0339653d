"""The rules of what may be learned when, for every adapter and both monitors.

Sections are learned after each save and at the clean end of a run: ``setup`` once a persistent checkpoint has
been loaded (without one it says nothing about how long a resume takes), ``step`` after 16 training steps,
``checkpointing`` after a save unless saves are asynchronous (the time that such a save takes in the loop says
little about the time it needs). Out-of-section time is learned only at the clean end of a run that has seen
all three. Heartbeat timeouts are learned at the end of a run that loaded *and* saved a checkpoint. Nothing is
ever learned after an exception: learning is a collective, and a rank that failed does not take part.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import attrs

from resilience_core.errors import StateFileError
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.collectives import is_distributed
from resilience_core.monitoring.time_left import seconds_left, seconds_open
from resilience_core.plugins.learning_agreement import SHORTEST_WAIT_SECONDS, LearningAgreement
from resilience_core.plugins.limits_compared import differ, in_force
from resilience_core.plugins.section_names import CHECKPOINTING
from resilience_core.plugins.state_file import load_state, save_state

if TYPE_CHECKING:
    from resilience_core.monitoring.client import RankMonitorClient

__all__ = ["MIN_STEPS_FOR_STEP_TIMEOUT", "NUM_WARMUP_ITERATIONS", "RunHistory", "TimeoutLearner"]

NUM_WARMUP_ITERATIONS = 1
"""Default of ``FaultToleranceConfig.num_warmup_iterations``."""

MIN_STEPS_FOR_STEP_TIMEOUT = 16
"""Training steps after which the longest of them says something about all of them."""

_LONGEST_WAIT_SECONDS = 120.0
"""For ranks that are still saving, or have not come to the end of the run yet; in vain where only one rank saves."""

logger = logging.getLogger(__name__)


@attrs.define(kw_only=True)
class RunHistory:
    """What one run of the loop has seen so far, and what may be learned from it. The same on every rank.

    Args:
        warmup_iterations: Training steps that opened no section.
        asynchronous_saves: Saves go on in the background.
        steps: Training steps completed.
        saves: Saves completed without an error.
        was_loaded: A checkpoint was loaded, wherever from.
        was_loaded_persistent: One was loaded from shared storage.
        has_failed: An exception has left the loop, or a save.
    """

    warmup_iterations: int = NUM_WARMUP_ITERATIONS
    asynchronous_saves: bool = False
    steps: int = 0
    saves: int = 0
    was_loaded: bool = False
    was_loaded_persistent: bool = False
    has_failed: bool = False
    _setup_is_new: bool = attrs.field(default=False, init=False)
    _saves_learned: int = attrs.field(default=0, init=False)
    _steps_learned: int = attrs.field(default=0, init=False)

    def closed_setup(self) -> None:
        """Note that the ``setup`` section was closed in good order."""
        self._setup_is_new = True

    def loaded(self, source: LoadSource) -> None:
        """Note that a checkpoint was loaded."""
        self.was_loaded = True
        if source == "persistent":
            self.was_loaded_persistent = True

    def saved(self, kind: CheckpointKind, error: BaseException | None) -> bool:
        """Note that saving, finalizing or removing is over.

        Returns:
            Whether this was a save that something can be learned after.
        """
        if error is not None:
            self.has_failed = True
            return False
        if kind != "save":
            return False
        self.saves += 1
        return True

    @property
    def has_enough_steps(self) -> bool:
        """Return whether the ``step`` timeout may be learned."""
        return self.steps >= MIN_STEPS_FOR_STEP_TIMEOUT

    def sections_to_learn(self) -> list[str]:
        """Names of the sections that may be learned now and have been seen since they last were."""
        names = []
        if self._setup_is_new and self.was_loaded_persistent:
            names.append("setup")
        if self.has_enough_steps and self.steps > max(self._steps_learned, self.warmup_iterations):
            names.append("step")
        if self.saves > self._saves_learned and not self.asynchronous_saves:
            names.append("checkpointing")
        return names

    def have_learned(self, names: list[str]) -> None:
        """Those sections were learned; their next timeout needs new intervals."""
        if "setup" in names:
            self._setup_is_new = False
        if "step" in names:
            self._steps_learned = self.steps
        if "checkpointing" in names:
            self._saves_learned = self.saves

    @property
    def may_learn_out_of_section(self) -> bool:
        """Return whether a clean end may learn the out-of-section timeout: the run has seen all three sections."""
        return self.was_loaded_persistent and self.has_enough_steps and self.saves > 0

    @property
    def may_learn_heartbeats(self) -> bool:
        """Return whether a clean end may learn the heartbeat timeouts."""
        return self.was_loaded and self.saves > 0


class TimeoutLearner:
    """Learns timeouts for one monitor and keeps them in a file from job to job.

    Args:
        state_path: The file; read on every rank, written by rank 0. None keeps nothing.
        calculate_timeouts: Learn. Without it a file that is there is still read.
    """

    def __init__(self, state_path: str | os.PathLike[str] | None, calculate_timeouts: bool) -> None:
        self.state_path = state_path
        self.calculate_timeouts = calculate_timeouts
        self._context, self._thread = RunContext(), 0
        self._agreement = LearningAgreement()
        self._may_write = True
        self._has_said_why_not = False
        self._told: dict[str, float | None] = {}
        self._has_warned = False
        self._told_spared: set[str] = set()

    def begin(self, client: RankMonitorClient, context: RunContext) -> None:
        """Read the file, if there is one, and hand its timeouts to the client."""
        self._context, self._thread = context, threading.get_ident()
        self._agreement = LearningAgreement()
        self._may_write = True
        self.load(client)

    def load(self, client: RankMonitorClient) -> None:
        """Read the file, if there is one and it can be used."""
        client.name_state_file(None if self.state_path is None else os.path.basename(self.state_path))
        if self.state_path is None:
            return
        try:
            state = load_state(self.state_path)
        except StateFileError as error:
            # It may be somebody else's file, so it is not overwritten, and the configured timeouts apply.
            self._may_write = False
            logger.error("%s. Configured timeouts apply, and what is learned will not be saved", error)
            return
        if state is not None:
            client.load_state_dict(state)
            self._warn_of_short_limits(client)
            self._say_what_is_spared(client)

    def _warn_of_short_limits(self, client: RankMonitorClient) -> None:
        """Say once where limits of an earlier run, perhaps a smaller one, undercut configured ones (``replace``)."""
        if self._context.rank != 0 or self._has_warned or not client.is_initialized:
            return
        if short := client.undercut_limits():
            self._has_warned = True
            logger.warning(
                "limits that an earlier run or generation has learned replace longer ones that are configured: %s. "
                "They come from %s, written %s; if a smaller run wrote it, healthy ranks may be killed. "
                "--ft-learned-limits relax (or off) keeps what is configured (said once)",
                short,
                self.state_path,
                _written(self.state_path),
            )

    def _say_what_is_spared(self, client: RankMonitorClient) -> None:
        """Say once of each limit that it is longer because no restart is left: a hang is found that much later."""
        if self._context.rank != 0 or not client.is_initialized:
            return
        if news := {kind: said for kind, said in client.spared_limits().items() if kind not in self._told_spared}:
            self._told_spared.update(news)
            logger.info(
                "no restart is left, so learned limits that rest on little evidence are longer, since a wrong one "
                "would end the job: %s. To have hangs found sooner, configure these limits, or allow a restart "
                "(said once)",
                ", ".join(news.values()),
            )

    def all_will_after_save(self, client: RankMonitorClient, history: RunHistory, occasion: str) -> bool:
        """Wait, while the section of the save is open still, for all ranks; return whether all will learn then."""
        names = history.sections_to_learn()
        if not self._may_ask_all(history):
            return False
        # Where one rank saves alone, the others wait for it in their next step, and have since the save began. They
        # must not be taken for ranks that hang. They save, too, where their step would have been over its limit by now.
        limits, took = in_force(client), seconds_open(client._state, CHECKPOINTING)
        known = [limit for name in ("section step", "out of section") if (limit := limits.get(name)) is not None]
        others = [limit - took if limit > took else 2 * SHORTEST_WAIT_SECONDS for limit in known]
        return self._all_will(occasion, client, names, others) and bool(names)

    def after_save(self, client: RankMonitorClient, history: RunHistory) -> None:
        """Learn sections after a save. A collective, on all ranks or on none: see :meth:`all_will_after_save`."""
        self.learn_sections(client, history, history.sections_to_learn(), out_of_section=False)

    def _all_will(
        self, occasion: str, client: RankMonitorClient, plan: list[str], others_left: Collection[float] = ()
    ) -> bool:
        # Whoever waits here must not be taken for a rank that hangs; some is left for what follows.
        own_left = seconds_left(client._state)
        bounds = [bound / 2 for bound in (own_left, *others_left) if bound is not None]
        return self._agreement.all_will(occasion, plan, min([*bounds, _LONGEST_WAIT_SECONDS]))

    def end_of_sections(self, client: RankMonitorClient, history: RunHistory) -> None:
        """Learn sections at the clean end of a run. A collective, on all ranks or on none."""
        names = history.sections_to_learn()
        out_of_section = history.may_learn_out_of_section
        plan = [*names, *(["out of section"] if out_of_section else [])]
        if self._may_ask_all(history) and self._all_will("end of sections", client, plan) and plan:
            self.learn_sections(client, history, names, out_of_section=out_of_section)

    def end_of_heartbeats(self, client: RankMonitorClient, history: RunHistory) -> None:
        """Learn heartbeat timeouts at the clean end of a run. A collective, on all ranks or on none."""
        plan = ["heartbeats"] if history.may_learn_heartbeats else []
        if not self._may_ask_all(history) or not self._all_will("end of heartbeats", client, plan) or not plan:
            return
        if client.calculate_and_set_hb_timeouts(skip_if_not_ready=True):
            self._write(client)

    def refuse(self) -> None:
        """Say that this rank learns nothing more in this run, so that no other begins a collective; never wait."""
        if self.calculate_timeouts:
            self._agreement.refuse()

    def learn_sections(
        self, client: RankMonitorClient, history: RunHistory, names: list[str], *, out_of_section: bool
    ) -> None:
        """Learn these and keep them, whatever the rules say; nothing where there is too little to learn from."""
        if client.calculate_and_set_section_timeouts(
            selected_sections=names, calc_out_of_section=out_of_section, skip_if_not_ready=True
        ):
            history.have_learned(names)
            self._write(client)

    def _may_ask_all(self, history: RunHistory) -> bool:
        if not self.calculate_timeouts or history.has_failed or threading.get_ident() != self._thread:
            return False  # a collective in another thread would get in the way of the training's own
        if self._context.world_size > 1 and not is_distributed():
            # Each rank would learn from itself alone, and the ranks' timeouts would differ.
            if self._context.rank == 0 and not self._has_said_why_not:
                self._has_said_why_not = True
                logger.warning(
                    "timeouts were not learned: there is no process group of %d ranks to agree on them. Keep the "
                    "default group (torch.distributed.init_process_group) until the run has ended, or configure the "
                    "timeouts and set calculate_timeouts=False",
                    self._context.world_size,
                )
            return False
        return True

    def _write(self, client: RankMonitorClient) -> None:
        if self._context.rank != 0:
            return
        where = f" (kept in {self.state_path})" if self.state_path is not None and self._may_write else ""
        now_in_force = in_force(client)
        is_news = differ(now_in_force, self._told)
        if is_news:
            self._told = now_in_force
        logger.log(
            logging.INFO if is_news else logging.DEBUG, "timeouts learned%s: %s", where, client.learned_summary()
        )
        self._say_what_is_spared(client)
        if self.state_path is None or not self._may_write:
            return
        try:
            save_state(self.state_path, client.state_dict())
        except StateFileError as error:
            logger.error("%s; they apply to this run only", error)


def _written(path: str | os.PathLike[str] | None) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(os.stat(path or "").st_mtime))
    except OSError:  # removed since
        return "at an unknown time"
