"""Mistakes in how straggler detection tells slow ranks from healthy ones."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_SCORING"]

_SCALES = ("tests/straggler/scoring/test_scales.py",)
_ROBUST = "straggler/scoring/robust.py"
_SPREADS = "straggler/scoring/spreads.py"

MUTANTS_OF_SCORING = (
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
        "                state[row, by_level[row] & splits[0]] = UNSURE\n",
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
)
