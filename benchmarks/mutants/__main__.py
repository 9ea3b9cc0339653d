"""Puts one deliberate mistake after the other into a copy of the tree, and says which test finds it.

    python -m benchmarks.mutants                 all of them, some hours
    python -m benchmarks.mutants --only zygote   those whose name has this in it
    python -m benchmarks.mutants --part 2/5      the second fifth of them
    python -m benchmarks.mutants --check         only whether each can still be made

Before a mistake is made, the tests that should find it must pass. Ends with 1 when a mistake was not found, with 2 when
one cannot be made where it stands in ``catalogue.py`` or its tests fail without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos.__main__ import unshare_command
from benchmarks.mutants.catalogue import MUTANTS, Mutant

_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 900


def main() -> int:
    """Check, run, print, and return the exit code."""
    options = parse_options()
    part, parts = options.part
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    chosen = chosen[len(chosen) * (part - 1) // parts : len(chosen) * part // parts]
    if wrong := [problem for mutant in MUTANTS if (problem := why_impossible(mutant, _ROOT)) is not None]:
        print("\n".join(wrong), file=sys.stderr)
    if options.check or not chosen:
        return 2 if wrong or not chosen else 0
    namespace = unshare_command() or []
    found, missed, broken = 0, [], list(wrong)
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        for mutant in chosen:
            if why_impossible(mutant, _ROOT) is not None:
                continue
            finder = None
            for tests in mutant.tests:
                if tests not in sound:
                    code, failed = run_tests(copy_tree(Path(scratch)), tests, namespace)
                    sound[tests] = code == 0
                    if not sound[tests]:
                        broken.append(f"{tests} fails without any mistake: {failed or f'exit code {code}'}")
                        print(broken[-1], flush=True)
                if not sound[tests]:
                    continue
                began = time.monotonic()
                tree = copy_tree(Path(scratch))
                make(mutant, tree)
                code, failed = run_tests(tree, tests, namespace)
                if code == 1:
                    finder = f"{failed} ({time.monotonic() - began:.0f} s)"
                    break
                if code != 0:
                    finder = f"{tests} ended with {code}" if code is not None else f"{tests} did not end"
                    break
            print(f"{'found ' if finder else 'MISSED'}  {mutant.name}: {finder or ', '.join(mutant.tests)}", flush=True)
            found += finder is not None
            missed += [] if finder else [mutant.name]
    print(f"{found} of {len(chosen)} mistakes found, {len(missed)} not, {len(broken)} error(s)")
    return 2 if broken else 1 if missed else 0


def why_impossible(mutant: Mutant, tree: Path) -> str | None:
    """Why a mistake cannot be made; None when it can."""
    path = tree / mutant.file
    count = path.read_text(encoding="utf-8").count(mutant.old) if path.exists() else 0
    absent = [tests for tests in mutant.tests if not (tree / tests.partition("::")[0]).exists()]
    if count != 1:
        return f"'{mutant.name}' cannot be made: its old text stands {count} times in {mutant.file}"
    return f"'{mutant.name}': there is no {', '.join(absent)}" if absent else None


def make(mutant: Mutant, tree: Path) -> None:
    """Make a mistake."""
    path = tree / mutant.file
    path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")


def copy_tree(scratch: Path) -> Path:
    """A new copy of all that git knows, as it stands in the working tree."""
    target = scratch / "tree"
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=_ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (_ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, target / name)
    return target


def run_tests(tree: Path, tests: str, namespace: list[str]) -> tuple[int | None, str]:
    """Run tests in a copy.

    Returns:
        pytest's exit code, None when it did not end; and the first test that failed.
    """
    command = [*namespace, sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else ""


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="mistakes whose name has these words in it")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="the K-th of N parts of them (1/1)")
    parser.add_argument("--check", action="store_true", help="run nothing")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: K/N with K from 1 to N, for example 2/5")
    return int(part), int(parts)


if __name__ == "__main__":
    sys.exit(main())
