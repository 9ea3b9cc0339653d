"""What adapters of frameworks ask of a section monitor when a framework has words of its own for learning timeouts."""

from __future__ import annotations

from collections.abc import Iterable

from resilience_core.plugins.monitor_session import MonitorPlugin

__all__ = ["SectionLearning"]


class SectionLearning(MonitorPlugin):
    """Loads and learns the timeouts of sections when it is told to; nothing where there is no monitor."""

    def load_timeouts(self) -> None:
        """Read ``state_path`` once more; ``setup`` does so by itself."""
        if self._session.is_active:
            self._session.learner.load(self._session.client)

    def learn(self, sections: Iterable[str], *, out_of_section: bool = False) -> None:
        """Learn these timeouts now and keep them, whatever the rules say. A collective, on all ranks or on none."""
        if self._session.is_active:
            self._session.learner.learn_sections(
                self._session.client, self._session.history, list(sections), out_of_section=out_of_section
            )

    def learn_what_may_be(self, *, at_the_end: bool = False) -> None:
        """Learn what the rules allow now; saves and ``teardown`` do so by themselves. A collective."""
        if not self._session.is_active:
            return
        learner, client, history = self._session.learner, self._session.client, self._session.history
        if at_the_end:
            learner.end_of_sections(client, history)
        elif learner.all_will_after_save(client, history, "on request"):
            learner.after_save(client, history)
