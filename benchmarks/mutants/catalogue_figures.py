"""Mistakes in what is written down of a run while it goes on."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_FIGURES"]

_PROTOCOL = ("tests/resilience_core/protocol/test_figures.py",)
_CLIENT = ("tests/resilience_core/monitoring/test_figures_of_a_client.py",)
_CLIENT_SAVES = ("tests/resilience_core/monitoring/test_saves_beside_steps.py",)
_RECORDER = ("tests/launcher/agent/test_figures_recorder.py",)
_LOG = ("tests/launcher/records/test_figures_log.py",)
_CELLS = ("tests/launcher/agent/test_worker_cells.py",)
_SHARED = ("tests/launcher/agent/test_shared_history.py",)
_NODE = ("tests/launcher/metrics/test_node.py",)
_HISTORY = "launcher/agent/shared_history.py"
_SECTION = "resilience_core/monitoring/section_state.py"
_STATE = "resilience_core/monitoring/client_state.py"
_BESIDE = "resilience_core/monitoring/saves_beside_steps.py"

MUTANTS_OF_FIGURES = (
    Mutant(
        "a metric times the restart after a hang from when the first rank had been ended",
        "launcher/agent/history.py",
        'if each["event"] == "hang")])',
        'if each["event"] == "none")])',
        ("tests/launcher/agent/test_history.py",),
    ),
    Mutant(
        "the line of a restart after a hang counts from when the first rank had been ended",
        "launcher/workers/worker_processes.py",
        "for local_rank in self.condemned)])",
        "for local_rank in ())])",
        ("tests/launcher/agent/test_generation.py",),
    ),
    Mutant(
        "an event counts in the metrics only where the log folder takes its line",
        "launcher/records/event_log.py",
        "        self._on_line(event, raw)\n",
        "        if not self.lost:\n            self._on_line(event, raw)\n",
        _SHARED,
    ),
    Mutant(
        "lines that a removed file lacks are not told to the metrics",
        "launcher/records/event_log.py",
        "        self._on_lost(self.missing)\n        self._in_file",
        "        self._in_file",
        _SHARED,
    ),
    Mutant(
        "a cause of a restart that comes too late changes what was counted",
        _HISTORY,
        "            self._history.settle(now_ns)\n",
        "",
        _SHARED,
    ),
    Mutant(
        "a restart whose cause is awaited is counted with the next event only",
        _HISTORY,
        "        if now_ns >= end_ns + _LATER_NS:\n",
        "        if now_ns < 0:\n",
        _SHARED,
    ),
    Mutant(
        "the exporter may take what is half written",
        _HISTORY,
        " and _checksum(number, text) == checksum",
        "",
        _SHARED,
    ),
    Mutant(
        "a rank has done no steps where the lines that tell of them are lost",
        "launcher/metrics/collector.py",
        "        if totals.steps or not now.lost.get(FIGURES):",
        "        if totals is not None:",
        _NODE,
    ),
    Mutant(
        "lines of figures that are left out while the disk hangs are not counted",
        "launcher/agent/figures_recorder.py",
        "            self._log.lose()  # the disk hangs; the next line that is written is full\n",
        "",
        _RECORDER,
    ),
    Mutant(
        "a line for which there was no room counts as the first of its generation",
        "launcher/agent/figures_recorder.py",
        "        if self._background.submit(write):\n            self._lines += 1\n",
        "        self._lines += 1\n        if self._background.submit(write):\n            pass\n",
        _RECORDER,
    ),
    Mutant(
        "a section that comes close to its limit again is not noted",
        _SECTION,
        "self.notable_ns = min(longest_ns, close_ns - 1)",
        "self.notable_ns = longest_ns",
        _CLIENT,
    ),
    Mutant(
        "what was longest before limits were learned is forgotten",
        _SECTION,
        "max(figures[row.longest_word], took_ns)",
        "self.longest_ns",
        _CLIENT,
    ),
    Mutant(
        "close calls go by a limit that is no longer in force",
        "resilience_core/monitoring/limits_in_force.py",
        "            section.notable_ns = 0  #",
        "            #",
        _CLIENT,
    ),
    Mutant(
        "a forked child writes into the figures of its parent",
        _STATE,
        "have held it\n        self.figures = private_figures()\n",
        "have held it\n",
        _CLIENT,
    ),
    Mutant(
        "figures begin anew when monitoring does",
        _SECTION,
        "for word in (self.took_word, ",
        "for word in (0, ",
        _CLIENT,
    ),
    Mutant(
        "a save that goes on is not counted into the time that saving has taken",
        _BESIDE,
        "blocked_ns + now - section.opened_ns - beside_ns, now",
        "blocked_ns, now",
        _CLIENT,
    ),
    Mutant(
        "what was done while a save went on is in it",
        _BESIDE,
        "            until_ns = now - self._until_now(min(began_ns, now), now, left_ns, is_known=True)\n",
        "            until_ns = now\n",
        _CLIENT_SAVES,
    ),
    Mutant(
        "a save in another thread holds up the steps",
        _BESIDE,
        "step.opened_ns > since_ns or not _is_main_thread()",
        "step.opened_ns > since_ns",
        _CLIENT_SAVES,
    ),
    Mutant(
        "a save beside steps is one for which the loop never waits",
        _BESIDE,
        "        return max(0, left_ns - since_ns)\n",
        "        return now - since_ns\n",
        _CLIENT_SAVES,
    ),
    Mutant(
        "each step counts as the first one",
        "resilience_core/protocol/figures.py",
        "    if not words[FIRST_STEP]:\n",
        "    if True:\n",
        _CLIENT,
    ),
    Mutant(
        "a step that an exception has ended counts as done",
        "resilience_core/plugins/section_monitor.py",
        "        self._session.failed(error)\n",
        "        self._session.failed(error)\n        self._note_done()\n",
        _CLIENT,
    ),
    Mutant(
        "a save that is reported twice counts twice",
        "resilience_core/protocol/figures.py",
        "    if count and words[",
        "    if False and words[",
        _PROTOCOL,
    ),
    Mutant(
        "a file of another size is mapped",
        "resilience_core/protocol/figures.py",
        "            if os.fstat(descriptor).st_size == FIGURES_SIZE:\n",
        "            if os.fstat(descriptor).st_size:\n",
        _PROTOCOL,
    ),
    Mutant(
        "the last figures of a generation are not written",
        "launcher/agent/figures_recorder.py",
        "            self._hand_over(generation, raw, time.monotonic_ns(), is_last=True)\n",
        "            pass\n",
        _RECORDER,
    ),
    Mutant(
        "lines of a long run are a second apart",
        "launcher/agent/figures_recorder.py",
        "max(_SHORTEST_NS, (now_ns - self._began_ns) // _OF_AGE)",
        "_SHORTEST_NS",
        _RECORDER,
    ),
    Mutant(
        "what has changed is compared with the generation before",
        "launcher/agent/figures_recorder.py",
        "is_last or self._lines % _FULL_EVERY == 0\n",
        "is_last\n",
        _RECORDER,
    ),
    Mutant(
        "a full file system costs ranks their monitoring, since it was used up for figures",
        "launcher/agent/worker_cells.py",
        "        with contextlib.suppress(OSError):  # without it",
        "        with contextlib.suppress(KeyError):  # without it",
        _CELLS,
    ),
    Mutant(
        "files of figures stay open when their generation is over",
        "launcher/agent/worker_cells.py",
        "            os.close(descriptor)\n        self._cells, self._figures",
        "            pass\n        self._cells, self._figures",
        _CELLS,
    ),
    Mutant(
        "names that share a row overwrite each other's figures",
        _STATE,
        "self.rows.setdefault(number, FigureRow(number, self.figures))",
        "FigureRow(number, self.figures)",
        _CLIENT,
    ),
    Mutant(
        "a damaged total makes each call fail",
        _SECTION,
        "word if 0 <= word < _LARGEST else 0",
        "word",
        _CLIENT,
    ),
    Mutant(
        "copies of all cells pile up while the disk hangs",
        "launcher/agent/figures_recorder.py",
        "        if self._waiting[is_last] >= _MOST_WAITING:\n",
        "        if False:\n",
        _RECORDER,
    ),
    Mutant(
        "a damaged cell is written down",
        "launcher/records/figures_log.py",
        "    if implausible(view, time.monotonic_ns()):\n        return None\n",
        "",
        _LOG,
    ),
    Mutant(
        "for a minute nobody knows from where a generation has gone on",
        "launcher/agent/figures_recorder.py",
        "        is_full |= first_steps != self._first_steps",
        "        is_full |= False",
        _RECORDER,
    ),
    Mutant(
        "a save is told half a minute late",
        "launcher/agent/figures_recorder.py",
        "                if new := [save for save in saves if save not in known_saves]:\n",
        "                if new := []:\n",
        _RECORDER,
    ),
    Mutant(
        "what lost lines had told is missing for half a minute",
        "launcher/agent/figures_recorder.py",
        "        is_full |= self._log.lost > 0\n",
        "",
        _RECORDER,
    ),
    Mutant(
        "a number of any length is a figure",
        "launcher/records/figures_log.py",
        "    if not -_BOUND <= value < _BOUND:\n",
        "    if False:\n",
        _LOG,
    ),
    Mutant(
        "steps that an exception has left are not counted once a later one is done",
        "resilience_core/monitoring/client.py",
        "        state.steps_ended = ended = state.steps_ended + 1\n        if not state.leaving",
        "        ended = state.steps_ended + 1\n        if not state.leaving",
        _CLIENT,
    ),
    Mutant(
        "steps are counted anew when monitoring begins again",
        "resilience_core/monitoring/client_state.py",
        "plausible(self.figures[PASSED])",
        "0",
        _CLIENT,
    ),
    Mutant(
        "evaluation steps are training steps",
        "launcher/metrics/totals.py",
        "        if passed is not None and first is not None and done is not None:\n",
        "        if False:\n",
        ("tests/launcher/metrics/test_totals.py",),
    ),
    Mutant(
        "numbers that are left out are steps",
        "resilience_core/protocol/figures_read.py",
        "return bool(counted) and iterations > _CLEARLY * (counted or 0)",
        "return False",
        ("tests/launcher/metrics/test_totals.py",),
    ),
    Mutant(
        "a few steps whose ends nobody has noted make iterations strides",
        "resilience_core/protocol/figures_read.py",
        "_CLEARLY = 1.25\n",
        "_CLEARLY = 1\n",
        ("tests/launcher/metrics/test_totals.py",),
    ),
    Mutant(
        "evaluation steps hide that iterations are no steps",
        "launcher/reports/strides.py",
        "            if life.passed is not None:\n",
        "            if False:\n",
        ("tests/launcher/reports/test_strides.py",),
    ),
    Mutant(
        "of two steps that are counted, one may be missing",
        "launcher/reports/strides.py",
        "    iterations = steps = lag = 0\n",
        "    iterations, steps, lag = 0, 0, 1\n",
        ("tests/launcher/reports/test_strides.py",),
    ),
    Mutant(
        "how many steps there were is missing for half a minute",
        "launcher/agent/figures_recorder.py",
        '"done", "passed", "open"',
        '"done", "open"',
        _RECORDER,
    ),
    Mutant(
        "the pace of a rank is that of its numbers",
        "launcher/live/rank_cells.py",
        "steps.first_iteration + steps.passed - 1",
        "steps.done",
        ("tests/launcher/live/test_rank_cells.py",),
    ),
)
