"""Deliberate mistakes in ft_top and in what reads a run that goes on."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_LIVE_RUNS"]

_READER = "launcher/live/cell_reader.py"
_CELLS = "launcher/live/rank_cells.py"
_TERMINAL = "launcher/top/terminal.py"
_SCREEN = "launcher/top/screen.py"
_PTY = "tests/launcher/top/test_terminal.py"
_LIVE = "tests/launcher/live"

MUTANTS_OF_LIVE_RUNS = (
    Mutant(
        "ft_top opens cells for writing",
        _READER,
        "os.O_RDONLY | os.O_CLOEXEC",
        "os.O_RDWR | os.O_CLOEXEC",
        (f"{_LIVE}/test_cell_reader.py",),
    ),
    Mutant(
        "ft_top reads a removed cell though there is another one in its place",
        _READER,
        "if self._cell is not None and os.fstat(self._cell.descriptor).st_nlink:",
        "if self._cell is not None:",
        (f"{_LIVE}/test_cell_reader.py",),
    ),
    Mutant(
        "ft_top waits for the other end of a pipe in a cell's place",
        _READER,
        " | os.O_NONBLOCK)",
        ")",
        (f"{_LIVE}/test_cell_reader.py",),
    ),
    Mutant(
        "ft_top shows what a damaged cell says",
        _READER,
        "                if wrong is None:\n",
        "                if True:\n",
        (f"{_LIVE}/test_cell_reader.py",),
    ),
    Mutant(
        "ft_top keeps the cells of a generation that is over open",
        _CELLS,
        "            rank.reader.close()\n",
        "            self._kept = [*getattr(self, '_kept', ()), rank]\n",
        (f"{_LIVE}/test_rank_cells.py",),
    ),
    Mutant(
        "ft_top stays with the first generation",
        _CELLS,
        "        if self._generation is None or newest > self._generation:\n",
        "        if self._generation is None:\n",
        (f"{_LIVE}/test_rank_cells.py", f"{_LIVE}/test_live_run.py"),
    ),
    Mutant(
        "ft_top leaves out a rank whose cell is gone",
        _CELLS,
        "            for local_rank in expected:\n",
        "            for local_rank in ():\n",
        (f"{_LIVE}/test_rank_cells.py",),
    ),
    Mutant(
        "ft_top takes a pid of another namespace for one of its own",
        _CELLS,
        "if view.pid == 0 or view.pid_namespace not in (0, namespace):",
        "if view.pid == 0:",
        (f"{_LIVE}/test_rank_cells.py",),
    ),
    Mutant(
        "ft_top keeps the pace of a rank that is silent",
        "launcher/live/rates.py",
        "max(last_ns, now_ns - step_ns)",
        "last_ns",
        (f"{_LIVE}/test_rates.py",),
    ),
    Mutant(
        "ft_top takes its first look for the end of a step",
        "launcher/live/rates.py",
        "if before < 0 or iteration == before:",
        "if iteration == before:",
        (f"{_LIVE}/test_rates.py",),
    ),
    Mutant(
        "ft_top takes a sign of progress within a step for its end",
        "launcher/live/rank_cells.py",
        "return opened or view.last_sign_ns or None",
        "return view.last_sign_ns or None",
        (f"{_LIVE}/test_rank_cells.py",),
    ),
    Mutant(
        "ft_top reads half of a line",
        "launcher/records/tail.py",
        '(self._rest + raw).split(b"\\n")',
        'raw.split(b"\\n")',
        (f"{_LIVE}/test_launcher_log.py",),
    ),
    Mutant(
        "ft_top blames a rank twice for one failure",
        "launcher/live/launcher_log.py",
        "self._culprits[generation] = set(culprits)",
        "self._culprits.setdefault(generation, set()).update(culprits)",
        (f"{_LIVE}/test_launcher_log.py",),
    ),
    Mutant(
        "ft_top looks for later generations in the old run folder",
        "launcher/live/live_run.py",
        "            self._cells.move(log.run_folder)\n",
        "            pass\n",
        (f"{_LIVE}/test_live_run.py",),
    ),
    Mutant(
        "ft_top takes a launcher for lost while it makes its run folder anew",
        "launcher/live/live_run.py",
        "        elif state == LOST and self._last_held_ns and",
        "        elif False and",
        (f"{_LIVE}/test_live_run.py",),
    ),
    Mutant(
        "ft_top takes a file in which no event can be read for that of a launcher that starts",
        "launcher/live/runs.py",
        "return not status.st_size and abs(",
        "return abs(",
        (f"{_LIVE}/test_live_run.py",),
    ),
    Mutant(
        "ft_top calls a run that it cannot read lost",
        "launcher/live/runs.py",
        "return STARTING if _is_young_and_empty(log.path) else UNKNOWN",
        "return STARTING if _is_young_and_empty(log.path) else LOST",
        (f"{_LIVE}/test_live_run.py",),
    ),
    Mutant(
        "ft_top leaves echo off",
        _TERMINAL,
        "                termios.tcsetattr(self._modes, termios.TCSANOW, self._found)\n",
        "                pass\n",
        (f"{_PTY}::test_the_terminal_is_left_as_it_was_found",),
    ),
    Mutant(
        "ft_top leaves the other screen on",
        _TERMINAL,
        "        self._pending += _LEAVE\n",
        "        pass\n",
        (f"{_PTY}::test_the_terminal_is_left_as_it_was_found",),
    ),
    Mutant(
        "ft_top writes to a terminal that takes nothing until it does",
        _TERMINAL,
        "flags = os.O_WRONLY | os.O_NONBLOCK |",
        "flags = os.O_WRONLY |",
        (f"{_PTY}::test_a_reader_that_takes_nothing_keeps_no_signal_away",),
    ),
    Mutant(
        "ft_top changes the modes of a terminal that a shell has taken back",
        _TERMINAL,
        "        if not self.is_ours():\n            self._found, self._pending",
        "        if False:\n            self._found, self._pending",
        (f"{_PTY}::test_in_the_background_it_leaves_the_terminal_alone",),
    ),
    Mutant(
        "ft_top stops with the terminal taken over",
        _SCREEN,
        "            self._terminal.leave()\n            waiting.stop_here()\n",
        "            waiting.stop_here()\n",
        (f"{_PTY}::test_it_stops_and_goes_on_like_any_job_of_a_shell",),
    ),
    Mutant(
        "ft_top goes on after SIGSTOP with the modes of the shell",
        _SCREEN,
        "        elif number == signal.SIGCONT:",
        "        elif False:",
        (f"{_PTY}::test_it_stops_and_goes_on_like_any_job_of_a_shell",),
    ),
    Mutant(
        "ft_top keeps the size that the window had",
        _SCREEN,
        "        width, height = self._terminal.size()\n",
        "        width, height = self.__dict__.setdefault('_size', self._terminal.size())\n",
        (f"{_PTY}::test_a_change_of_the_window_is_followed",),
    ),
    Mutant(
        "ft_top shows the pace from before a hang at its first look",
        "launcher/live/rank_cells.py",
        "max(ended_ns, now_ns - step_ns) - steps.first_step_ns",
        "ended_ns - steps.first_step_ns",
        ("tests/launcher/live/test_rank_cells.py",),
    ),
    Mutant(
        "ft_top puts late ranks last",
        "launcher/top/rows.py",
        "return (not row.is_late, not row.is_bad, -used,",
        "return (row.is_late, not row.is_bad, -used,",
        ("tests/launcher/top/test_rows.py",),
    ),
    Mutant(
        "ft_top shows a node that has fallen silent as it was",
        "launcher/top/other_nodes.py",
        "            if self._problem is None and silent <=",
        "            if self._problem is None or silent <=",
        ("tests/launcher/top/test_other_nodes.py",),
    ),
    Mutant(
        "ft_top shows the ranks of its own node twice",
        "launcher/top/rows.py",
        "row for row in others if row.rank not in known",
        "row for row in others",
        ("tests/launcher/top/test_rows.py",),
    ),
)
