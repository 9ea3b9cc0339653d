"""Mistakes in what the table and the pictures of straggler reports show: who is named, since when, what is missing."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_PICTURES"]

_PICTURES = ("tests/straggler/test_pictures.py",)
_NAMED = ("tests/straggler/reporting/test_named_slow.py",)
_TABLE = ("tests/straggler/reporting/test_table.py",)
_FILES = ("tests/straggler/reporting/test_picture_files.py",)
_CELLS = "straggler/reporting/cells.py"
_EPISODES = "straggler/reporting/named_slow.py"

MUTANTS_OF_PICTURES = (
    Mutant(
        "a picture lists a rank as slow of which nothing is known",
        _EPISODES,
        '            if verdict["state"] == "SLOW":\n',
        '            if verdict["state"] != "OK":\n',
        _NAMED,
    ),
    Mutant(
        "a picture lists a rank twice that did not answer while it was slow",
        _EPISODES,
        "                named[rank] = known  # it",
        "                pass  # it",
        _NAMED,
    ),
    Mutant(
        "a picture takes the report of an earlier run for when a rank became slow",
        _EPISODES,
        "            self._index_of.clear()\n",
        "",
        _NAMED,
    ),
    Mutant(
        "a picture shows what is missing as fast as the peers",
        _CELLS,
        "    cells[unknown] = MISSING\n",
        "",
        _PICTURES,
    ),
    Mutant(
        "a picture shows a node as missing of which one rank is",
        _CELLS,
        "            found[(found == MISSING) & answered] = SOME_MISSING\n",
        "",
        _PICTURES,
    ),
    Mutant(
        "a picture shows the time in which a job was stopped as a report",
        "straggler/reporting/time_axis.py",
        "                column, in_column = column + 1 + width, 0\n",
        "                column, in_column = column + 1, 0\n",
        _PICTURES,
    ),
    Mutant(
        "a missing rank hides a slow one of its node",
        _CELLS,
        "                return (3, 0) if code == MISSING",
        "                return (6, 0) if code == MISSING",
        _PICTURES,
    ),
    Mutant(
        "half of a node is told as a slow node",
        "straggler/reporting/rank_lists.py",
        "2 * count > sizes.get(node, count)",
        "2 * count >= sizes.get(node, count)",
        _TABLE,
    ),
    Mutant(
        "what kernels wait for is not counted as lost where the thread does not wait",
        "straggler/reporting/waiting.py",
        "    return np.fmax(scores.waited, by_kernels)\n",
        "    return scores.waited\n",
        _TABLE,
    ),
    Mutant(
        "a picture takes the place of another file beside the log",
        "straggler/__main__.py",
        '    check_default(beside, f"--{kind}")\n',
        "",
        _FILES,
    ),
    Mutant(
        "any file beside the log is taken for a picture of an earlier call",
        "straggler/reporting/picture_files.py",
        "    return MARK.encode() in start or ",
        "    return True or ",
        _FILES,
    ),
    Mutant(
        "a page cannot be drawn again beside its log",
        "straggler/reporting/heatmap_html.py",
        'PAGE.replace("@MARK@", MARK)',
        'PAGE.replace("@MARK@", "")',
        _FILES,
    ),
    Mutant(
        "a PNG cannot be drawn again beside its log",
        "straggler/reporting/heatmap_png.py",
        ', metadata={"Software": MARK})',
        ")",
        _FILES,
    ),
    Mutant(
        "a picture that cannot be written is a traceback",
        "straggler/reporting/picture_files.py",
        "    except OSError as error:\n",
        "    except ImportError as error:\n",
        _FILES,
    ),
    Mutant(
        "a picture is written over the log",
        "straggler/__main__.py",
        "    check_apart(options.log, files)\n",
        "",
        _FILES,
    ),
    Mutant(
        "a link to the log is another file",
        "straggler/reporting/picture_files.py",
        "        return path.resolve() == other.resolve() or path.samefile(other)\n",
        "        return path == other\n",
        _FILES,
    ),
)
