"""``make matrix``: the launcher with every version of torch that it supports, in real environments with real failures.

    make matrix                                           every minor version; hours of download on a slow line
    make matrix MATRIX="--torch oldest installed newest"  the ends of the range, and what is installed
    make matrix MATRIX="--torch 2.4 2.15 --python 3.12"   some versions, with one Python

Prints a table and ends with 1 when a cell failed. Each environment takes about 6 GB while it is tried, one at a time,
and is removed afterwards unless ``--keep`` is given. Imports nothing of ours but the range.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.matrix import environments
from tests.matrix.cells import COLUMNS, CellError, Environment


def supported_minors() -> tuple[int, int]:
    """The oldest and the newest minor version, from the file that the launcher itself asks."""
    spec = importlib.util.spec_from_file_location(
        "torch_versions", environments.ROOT / "launcher/command_line/torch_versions.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OLDEST[1], module.NEWEST[1]


def main() -> int:
    """Try, print the table, and return the exit code."""
    options = parse_options()
    available = environments.interpreters()
    rows, failures = [], []
    began = time.monotonic()
    if options.folder:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ft-matrix-") as temporary:
        folder = Path(options.folder or temporary) if options.keep else Path(temporary)
        wheel = environments.build_wheel(Path(temporary)) if set(options.torch) != {"installed"} else Path()
        for torch, python in wanted(options, available):
            row = [f"{torch}", python]
            say(f"torch {torch}, Python {python} ...")
            row, told = try_one(torch, python, available, wheel, folder, Path(temporary), options)
            say("  " + " | ".join(row))
            rows.append(row)
            failures += told
    print(
        f"\n{date.today()}, {platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores, "
        f"{(time.monotonic() - began) / 60:.0f} minutes:\n"
    )
    print("\n".join(table(rows)))
    for failure in failures:
        print(f"\n{failure}")
    return 1 if failures else 0


def try_one(
    torch: str,
    python: str,
    available: dict[str, Path],
    wheel: Path,
    folder: Path,
    temporary: Path,
    options: argparse.Namespace,
) -> tuple[list[str], list[str]]:
    """One row of the table, and what to say about its failures."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FT_", "PET_"))}
    environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    if torch == "installed":
        environ["PYTHONPATH"] = str(environments.ROOT)
        inside = Environment(Path(sys.executable), environ, options.seconds)
        return cells(inside, temporary / "work-installed", began)
    try:
        with environments.environment(
            *(available[python], torch, wheel, folder), keep=options.keep, seconds=options.install_seconds
        ) as interpreter:
            return cells(Environment(interpreter, environ, options.seconds), temporary / f"work{torch}", began)
    except environments.SetupError as error:
        return [torch, python, "FAILED", *["-"] * (len(COLUMNS) - 1)], [f"torch {torch}: {error}"]


def cells(environment: Environment, folder: Path, began: float) -> tuple[list[str], list[str]]:
    """Try every column; the first takes the time of the installation, too."""
    folder.mkdir()
    said = environment.run("-c", "import platform, torch; print(torch.__version__, platform.python_version())").split()
    row, failures = list(said), []
    for name, check in COLUMNS.items():
        place = folder / name.replace(" ", "-") / "launch"
        place.parent.mkdir()
        try:
            check(environment, place)
            row.append(f"ok, {time.monotonic() - began:.0f} s")
        except (CellError, OSError) as error:
            row.append("FAILED")
            failures.append(f"torch {said[0]}, Python {said[1]}, {name}: {error}")
        began = time.monotonic()
    return row, failures


def wanted(options: argparse.Namespace, available: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Pairs of torch and Python to try."""
    oldest, newest = supported_minors()
    names = {"oldest": f"2.{oldest}", "newest": f"2.{newest}"}
    for torch in options.torch or [f"2.{minor}" for minor in range(oldest, newest + 1)]:
        torch = names.get(torch, torch)
        if torch == "installed":
            yield torch, platform.python_version()
            continue
        for python in options.python or [environments.python_for(int(torch.split(".")[1]), available)]:
            if python not in available:
                sys.exit(f"matrix: no Python {python} on this machine; there are {', '.join(sorted(available))}")
            yield torch, python


def table(rows: list[list[str]]) -> list[str]:
    """Markdown."""
    lines = [["torch", "Python", *COLUMNS], ["---"] * (2 + len(COLUMNS)), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--torch", nargs="+", default=[], metavar="VERSION", help="2.4, 2.4.1, oldest, newest, installed"
    )
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="VERSION", help="3.10 to 3.13; in turn when left out"
    )
    parser.add_argument("--folder", metavar="FOLDER", help="where environments are made (a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the environments there; needs --folder")
    parser.add_argument("--seconds", type=float, default=180, help="longest time of one launch (180)")
    parser.add_argument("--install-seconds", type=float, default=1800, help="longest time of one installation (1800)")
    options = parser.parse_args()
    if options.keep and not options.folder:
        parser.error("--keep needs --folder: a temporary folder is removed at the end")
    return options


if __name__ == "__main__":
    sys.exit(main())
