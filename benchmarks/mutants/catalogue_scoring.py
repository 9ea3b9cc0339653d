"""Mistakes in how straggler detection tells slow ranks from healthy ones."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_SCORING"]

_SCALES = ("tests/straggler/scoring/test_scales.py",)
_ROBUST = "straggler/scoring/robust.py"
_SPREADS = "straggler/scoring/spreads.py"
_BUSY = "straggler/scoring/processor_waits.py"
_WAITS = ("tests/straggler/scoring/test_processor_waits.py",)

_NOISE = ("tests/straggler/scoring/test_cell_noise.py",)
_CELLS = "straggler/scoring/cell_noise.py"
_ROWS = ("tests/straggler/scoring/test_robust.py",)

MUTANTS_OF_SCORING = (
    Mutant(
        "a rank of a few is slow by its own noise",
        "straggler/scoring/track.py",
        "own = np.maximum(own, self.noise.bars(cells, z, ",
        "(own, self.noise.bars(cells, z, ",
        _NOISE,
    ),
    Mutant(
        "noise between windows is not seen",
        _CELLS,
        "        self._between += (half - self._between) * weight\n",
        "",
        _NOISE,
    ),
    Mutant(
        "the noise within windows is not seen",
        _CELLS,
        "            self._within += (np.square",
        "            self._within += 0.0 * (np.square",
        _NOISE,
    ),
    Mutant(
        "a step to another level counts as noise in full",
        _CELLS,
        "_OUTLIER = np.float32(4.0)",
        "_OUTLIER = np.float32(1e6)",
        _NOISE,
    ),
    Mutant(
        "equal ranks with much noise are unsure for ever",
        "straggler/scoring/track.py",
        "        return cells[average.flat[cells] >= noise]\n",
        "        return cells\n",
        _NOISE,
    ),
    Mutant(
        "samples that come in runs count in full",
        "straggler/measurement/standard_errors.py",
        "        factor = np.where(ratio > _CERTAIN, np.sqrt(ratio), 1.0)\n",
        "",
        ("tests/straggler/measurement/test_standard_errors.py",),
    ),
    Mutant(
        "half of the ranks that always took longer are slow",
        "straggler/scoring/modes.py",
        "                splits = [slow[row]]\n",
        "                pass\n",
        _ROWS,
    ),
    Mutant(
        "half of the ranks that become slow do more work",
        _ROBUST,
        "        always.flat[track.changed(np.flatnonzero(always))] = False\n",
        "",
        _ROWS,
    ),
    Mutant(
        "a few ranks that differ by noise are groups",
        "straggler/scoring/modes.py",
        "slow_groups(values, noise)",
        "slow_groups(values)",
        _ROWS,
    ),
    Mutant(
        "a few windows near a bar are enough at a longer scale",
        "straggler/scoring/history.py",
        "_MAJORITY = 0.6\n",
        "_MAJORITY = 0.5\n",
        _SCALES,
    ),
    Mutant(
        "what all ranks share makes them slow against their own past",
        "straggler/scoring/scorer.py",
        "    against_past.state[decided & (against_past.state == SLOW) & (against_peers.state != SLOW)] = OK\n",
        "    del decided\n",
        ("tests/straggler/reporting/test_kept_past.py",),
    ),
    Mutant(
        "a row that comes later ends all reports",
        "straggler/scoring/pools.py",
        "    if known in (1, rows):\n        return values\n",
        "    if known:\n        return values\n",
        ("tests/straggler/scoring/test_changing_rows.py",),
    ),
    Mutant(
        "the means of windows are not judged",
        _ROBUST,
        "            y.append(np.log(means / self._reference(peers, means)))\n",
        "            pass\n",
        _SCALES,
    ),
    Mutant(
        "only the shortest scale is looked at",
        _ROBUST,
        "_LONGER_SCALES = (8, 20)\n",
        "_LONGER_SCALES = ()\n",
        _SCALES,
    ),
    Mutant(
        "slow ranks count in the spread",
        _SPREADS,
        "    return np.asarray(low, dtype=np.float32), ",
        "    return np.asarray(np.maximum(low, high), dtype=np.float32), ",
        _SCALES,
    ),
    Mutant(
        "a whole undeclared group is called slow",
        _ROBUST,
        "                state[row, always[row] & splits[0]] = UNSURE\n",
        "                pass\n",
        _SCALES,
    ),
    Mutant(
        "ranks that a fault struck are taken for a group",
        "straggler/scoring/modes.py",
        "            if _is_regular(slow[known]):\n",
        "            if True:\n",
        _SCALES,
    ),
    Mutant(
        "what cannot be decided is OK",
        _ROBUST,
        "        state.flat[unsure] = np.where(state.flat[unsure] == OK, UNSURE, state.flat[unsure])\n",
        "",
        _SCALES,
    ),
    Mutant(
        "every name is as sure as the surest",
        "straggler/scoring/robust_scores.py",
        "0.99 if strength >= _STRONG else 0.95",
        "0.99",
        _SCALES,
    ),
    Mutant(
        "a rank that waits for a processor is named at once",
        _BUSY,
        "SLOW if lasting[rank] else WAITED",
        "SLOW",
        _WAITS,
    ),
    Mutant(
        "a rank that waits for a processor for good is never named",
        _BUSY,
        "SLOW if lasting[rank] else WAITED",
        "WAITED",
        _WAITS,
    ),
    Mutant(
        "waits for a processor that all ranks share excuse one of them",
        _BUSY,
        "waits - peers.middle(waits, at_least=2), shares",
        "waits, shares",
        _WAITS,
    ),
    Mutant(
        "what a quota took excuses its rank",
        _BUSY,
        " - np.nan_to_num(gathered.device[:, _THROTTLED])",
        "",
        _WAITS,
    ),
    Mutant(
        "a slow GPU is excused by waits for a processor",
        _BUSY,
        "            if int(window.names[row]) == self._gpu_row:\n",
        "            if False:\n",
        _WAITS,
    ),
    Mutant(
        "ranks that are alike by their node count as so many values",
        "straggler/scoring/alike_nodes.py",
        "    alike = peers.node_means(average)\n",
        "    alike = None\n",
        _SCALES,
    ),
    Mutant(
        "how few peers differ is taken from one window",
        "straggler/scoring/track.py",
        "np.where(sizes < TAIL_RANKS, self._level[place].squares(sizes), 0.0)",
        "np.zeros(1)",
        ("tests/straggler/scoring/test_robust.py",),
    ),
    Mutant(
        "a prior makes few peers alike that are not",
        "straggler/scoring/track.py",
        "np.maximum(with_prior(square), np.sqrt(square))",
        "with_prior(square)",
        ("tests/straggler/scoring/test_robust.py",),
    ),
    Mutant(
        "own work is scored with the waits for a core",
        "straggler/scoring/core_work.py",
        "np.where(known[rows], core_values[places], values[rows])",
        "values[rows]",
        _WAITS,
    ),
    Mutant(
        "ranks with and without waits for a core are compared",
        "straggler/scoring/core_work.py",
        "known[(known != (own.num > 0)).any(axis=1)] = False",
        "pass",
        _WAITS,
    ),
    Mutant(
        "what a quota took is no own work",
        "straggler/scoring/core_work.py",
        "known &= ~(gathered.device[:, _THROTTLED] >= _LEAST_THROTTLED)",
        "pass",
        _WAITS,
    ),
    Mutant(
        "a cell that is slow by waits alone is not shown with them",
        "straggler/scoring/core_work.py",
        '("excess", "strength", "bar", "since", "in_means")',
        "()",
        _WAITS,
    ),
    Mutant(
        "a section is judged without what the iteration took",
        _BUSY,
        "np.where(np.isnan(more_run), costs - more_waits, more_run)",
        "costs - more_waits",
        _WAITS,
    ),
    Mutant(
        "a core that others have used is thought as fast",
        _BUSY,
        "| is_cold)",
        ")",
        _WAITS,
    ),
    Mutant(
        "chance that lasts for periods names a rank",
        _BUSY,
        "[0] >= _LEAST_LASTING",
        "[0] >= -1.0",
        _WAITS,
    ),
    Mutant(
        "most of an excess that is a wait excuses the rest of it",
        _BUSY,
        "((rest <= (1.0 - _ALL_SHARE) * cost) | is_little)",
        "True",
        _WAITS,
    ),
    Mutant(
        "a slow rank that also waits once is excused",
        _BUSY,
        "(cause, contrary) if contrary < _CONTRARY else (says, 0)",
        "(says, 0)",
        _WAITS,
    ),
    Mutant(
        "a wait lasts as soon as twelve reports say so, however frequent they are",
        _BUSY,
        "        if self._period_seconds >= PERIOD_SECONDS:\n",
        "        if True:\n",
        _WAITS,
    ),
    Mutant(
        "one window of a period makes all of it one in which a rank was kept waiting",
        _BUSY,
        "2 * self._period > self._period_windows",
        "self._period > 0",
        _WAITS,
    ),
)
