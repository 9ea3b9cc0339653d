"""Deliberate mistakes in how a forked process becomes a worker, and in what is done where evidence cannot be had."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WARM_WORKERS"]

MUTANTS_OF_WARM_WORKERS = (
    Mutant(
        "a folder or an archive is imported from by its relative path",
        "launcher/become.py",
        "        sys.path[:0] = [_absolute(target)]\n",
        "        sys.path[:0] = [target]\n",
        ("tests/launcher/test_become.py",),
    ),
    Mutant(
        "the place that was kept for the script's folder stays in front of an archive's modules",
        "launcher/become.py",
        "            del sys.path[1]\n",
        "            pass\n",
        ("tests/launcher/test_become.py",),
    ),
    Mutant(
        "what was imported ahead wins over what lies in the archive",
        "launcher/become.py",
        '                return [name.partition("/")[0] for name in archive.namelist()]\n',
        "                return []\n",
        ("tests/launcher/test_become.py",),
    ),
    Mutant(
        "a script's path is tidied up, other than by the interpreter",
        "launcher/become.py",
        'return here if path in ("", ".") else f"{here}/{path}"',
        "return os.path.abspath(path)",
        ("tests/launcher/test_become.py",),
    ),
)
