"""Deliberate mistakes in what is counted of a section that an exception leaves."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_LEFT_SECTIONS"]

_LEFT = ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",)
_REPORTS = ("tests/launcher/reports/test_limits.py", "tests/launcher/reports/test_waiting.py")

MUTANTS_OF_LEFT_SECTIONS = (
    Mutant(
        "a section that an exception leaves counts as one that was completed",
        "resilience_core/monitoring/client.py",
        "        if error is not None and id(error) != section.handled:\n            section.note_left",
        "        if False:\n            section.note_left",
        _LEFT,
    ),
    Mutant(
        "a section was left before its exception was noted",
        "resilience_core/monitoring/client.py",
        "            now = monotonic_ns()  # not before the exception was noted",
        "            pass  # not before the exception was noted",
        _LEFT,
    ),
    Mutant(
        "a rank that saves after it has lost a peer has caught that and gone on",
        "resilience_core/protocol/error_record.py",
        "not since or (self.is_consequence and since == {CHECKPOINTING})",
        "not since",
        ("tests/resilience_core/protocol/test_error_record.py",),
    ),
    Mutant(
        "a rank that saves after an exception of its own has not gone on",
        "resilience_core/protocol/error_record.py",
        "(self.is_consequence and since == {CHECKPOINTING})",
        "since == {CHECKPOINTING}",
        ("tests/resilience_core/protocol/test_error_record.py",),
    ),
    Mutant(
        "an exception that was noted right after a section was closed has not left it",
        "launcher/reports/rank_lives.py",
        "(at_ns <= known.left_at_ns or not has_gone_on)",
        "at_ns <= known.left_at_ns",
        _REPORTS,
    ),
    Mutant(
        "an exception has left the section left last whatever the rank has done since",
        "launcher/reports/rank_lives.py",
        "(at_ns <= known.left_at_ns or not has_gone_on)",
        "True",
        _REPORTS,
    ),
    Mutant(
        "what is opened and closed while an exception is handled is left by it",
        "resilience_core/monitoring/client.py",
        "        section.handled = handled\n",
        "",
        _LEFT,
    ),
    Mutant(
        "an exception is not noted that leaves a section which code closes itself",
        "resilience_core/monitoring/client.py",
        "            note_error(error)  # while the section is still open\n",
        "            pass\n",
        _LEFT,
    ),
    Mutant(
        "a step that an exception leaves is one that was done",
        "resilience_core/translator.py",
        "            with self.client.leaving_sections():\n                self.bus.step_end(",
        "            if True:\n                self.bus.step_end(",
        _LEFT,
    ),
    Mutant(
        "a save that fails counts as one that was completed",
        "resilience_core/plugins/save_section.py",
        "client.leaving_sections() if error is not None else contextlib.nullcontext()",
        "contextlib.nullcontext()",
        _LEFT,
    ),
    Mutant(
        "what an exception leaves open in the loop counts as completed",
        "resilience_core/plugins/section_monitor.py",
        "        with self._session.client.leaving_sections():\n",
        "        if True:\n",
        _LEFT,
    ),
    Mutant(
        "what other threads close while one leaves its sections does not count",
        "resilience_core/monitoring/client.py",
        "if state.leaving and get_ident() in state.leaving:",
        "if state.leaving:",
        _LEFT,
    ),
    Mutant(
        "the inner of two blocks ends the outer one",
        "resilience_core/monitoring/client.py",
        "            if is_outermost:\n",
        "            if True:\n",
        _LEFT,
    ),
    Mutant(
        "limits that are applied make sections count that an exception leaves",
        "resilience_core/monitoring/limits_in_force.py",
        " or bool(state.leaving)",
        "",
        _LEFT,
    ),
    Mutant(
        "a save notes less than saves have held up the steps where one has failed before",
        "resilience_core/monitoring/saves_beside_steps.py",
        "section.row.took_ns + section.row.left_ns - figures[BESIDE]",
        "section.row.took_ns - figures[BESIDE]",
        _LEFT,
    ),
    Mutant(
        "a save that has failed beside steps is taken for the one that is noted next",
        "resilience_core/monitoring/saves_beside_steps.py",
        "beside_ns, self._late_ns = self.of_closed(opened_ns, now), 0",
        "beside_ns = self.of_closed(opened_ns, now)",
        _LEFT,
    ),
    Mutant(
        "a duration is taken off where the client has counted none",
        "launcher/reports/let_go.py",
        " or life.times_left(name):\n            continue",
        ":\n            continue",
        _REPORTS,
    ),
    Mutant(
        "when a wait began is not told by how long the section was open",
        "launcher/reports/last_signs.py",
        "        if (opened_ns := life.left_opened_ns(error.section, error.at_ns)) is not None:\n",
        "        if False:\n",
        _REPORTS,
    ),
    Mutant(
        "a step that an exception leaves is done",
        "resilience_core/monitoring/client.py",
        "        if not state.leaving or get_ident() not in state.leaving:\n",
        "        if True:\n",
        _LEFT,
    ),
    Mutant(
        "a save while a rank handles an exception is checkpointing before it",
        "launcher/reports/rank_lives.py",
        "if wait is not None and any(save.t_ns > wait.until_ns for save in self.saves.values()):",
        "if False:",
        _REPORTS,
    ),
    Mutant(
        "a save while a rank handles an exception counts under the limit by chance",
        "launcher/reports/let_go.py",
        " or _was_left_uncounted(member, life):",
        ":",
        _REPORTS,
    ),
    Mutant(
        "a heartbeat on the way out is progress",
        "resilience_core/monitoring/handled.py",
        "        if is_leaving or not is_the_same or not has_moved:\n            return True\n",
        "",
        ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",),
    ),
    Mutant(
        "no heartbeat in a handler is progress",
        "resilience_core/monitoring/handled.py",
        "is_leaving or not is_the_same or not has_moved",
        "True",
        ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",),
    ),
    Mutant(
        "the second heartbeat in a handler is progress",
        "resilience_core/monitoring/handled.py",
        " or not has_moved:",
        ":",
        ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",),
    ),
    Mutant(
        "a limit is learned from a first heartbeat on the way out",
        "resilience_core/monitoring/client.py",
        "                state.heartbeats, state.first_heartbeat_gap_ns = 1, 0  #",
        "                state.heartbeats = 1  #",
        ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",),
    ),
    Mutant(
        "a heartbeat on the way out is not heard by the monitor",
        "resilience_core/monitoring/client.py",
        "            state.words[HEARTBEAT] = NO_LIMIT if (limit",
        "            _ = NO_LIMIT if (limit",
        ("tests/resilience_core/monitoring/test_sections_left_by_exceptions.py",),
    ),
    Mutant(
        "how long ranks ran is exact without their incidents",
        "launcher/reports/recommend.py",
        "    lacks = any(",
        "    lacks = False and any(",
        ("tests/launcher/reports/test_recommend.py",),
    ),
)
