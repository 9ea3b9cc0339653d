"""Random faults from outside, in jobs that must end as if nothing had happened.

    python -m benchmarks.chaos                            one job of 40 faults
    python -m benchmarks.chaos --jobs 25                  1,000 faults; job K has seed SEED + K
    python -m benchmarks.chaos --replay 7                 the job of seed 7 again, with the same faults
    python -m benchmarks.chaos --kinds monitor-stop,rank-hang --ranks 2 --worker-start warm

Each job is a small deterministic DDP training (CPU, gloo) that saves and resumes. It must end with exit code 0 and
weights bitwise equal to an undisturbed run with as many ranks; leave no process and no run folder; and every incident
must blame the rank that was hit. A job runs in a PID and a mount namespace of its own (unshare(1); root, or user
namespaces), with a small tmpfs as --ft-run-dir. Ends with 1 when anything was violated, with 2 when nothing can run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.chaos.plan import KINDS, Plan, make_plan

_ROOT = Path(__file__).parents[2]
_PROBES = ("rank-hang", "rank-kill")
"""What shows that a job is still protected after a fault of another kind."""


def main() -> int:
    """Run the jobs, print what came of them, and return the exit code."""
    options = parse_options()
    namespace = unshare_command()
    if namespace is None:
        print("skipped: this user may make neither PID nor mount namespaces (unshare --pid --mount), so nothing can "
              "be killed safely", file=sys.stderr)  # fmt: skip
        return 2
    plans = planned(options)
    scratch = Path(tempfile.mkdtemp(prefix="chaos-"))
    references: dict[tuple[int, int], list[str | None]] = {}
    results: list[dict[str, Any]] = []
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; files in {scratch}", flush=True)
    for plan in plans:
        key = plan.ranks, plan.steps
        if key not in references:
            calm = plan._replace(seed=-plan.ranks, faults=(), worker_start="spawn", has_py_spy=True)
            reference = run_job(calm, scratch / f"undisturbed-{plan.ranks}", namespace, options)
            if reference["violations"] or reference["exit_code"] != 0:
                print(f"the undisturbed run has failed: {reference['violations']}; see {scratch}", file=sys.stderr)
                return 1
            references[key] = reference["digests"]
        result = run_job(plan, scratch / f"seed-{plan.seed}", namespace, options)
        if result["exit_code"] == 0 and result["digests"] != references[key]:
            result["violations"].append("the weights are not bitwise equal to those of an undisturbed run")
        slowest = result["slowest_restart_seconds"] or 0
        if slowest > options.restart_bound:
            result["violations"].append(f"a restart took {slowest:.2f} s (--restart-bound {options.restart_bound:g})")
        results.append(result)
        print(job_line(result), flush=True)
    print("\n".join(["", *summary(results)]))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    is_clean = not any(result["violations"] for result in results)
    if is_clean and not options.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        print(f"outputs, logs and diagnoses: {scratch}")
    return 0 if is_clean else 1


def planned(options: argparse.Namespace) -> list[Plan]:
    """The jobs that are asked for."""
    given = {
        "ranks": options.ranks,
        "worker_start": options.worker_start,
        "has_py_spy": {"yes": True, "no": False, None: None}[options.py_spy],
    }
    if not options.each:
        return [make_plan(seed, options.faults, kinds=options.kinds, **given) for seed in options.seed]
    given = {"ranks": 2, "worker_start": "warm", **{name: value for name, value in given.items() if value is not None}}
    kinds = options.kinds or tuple(KINDS)
    return [
        make_plan(options.seed[0] + number, options.faults, kinds=(kind, kind, *_PROBES), **given)
        for number, kind in enumerate(kinds)
    ]


def run_job(plan: Plan, folder: Path, namespace: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run one job in namespaces of its own; its result."""
    folder.mkdir()
    order = {"plan": {**plan._asdict(), "faults": [fault._asdict() for fault in plan.faults]}}
    order |= {"step_limit": options.step_limit, "patience": options.patience}
    (folder / "order.json").write_text(json.dumps(order))
    command = [*namespace, sys.executable, "-m", "benchmarks.chaos.job", str(folder)]
    code: object
    try:
        code = subprocess.run(command, cwd=_ROOT, timeout=options.job_timeout, check=False).returncode
    except subprocess.TimeoutExpired:  # unshare --kill-child: the namespace goes with it
        code = f"not done after {options.job_timeout:g} s"
    if (folder / "result.json").exists():
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result
    facts = {key: value for key, value in plan._asdict().items() if key != "faults"}
    nothing = {"exit_code": None, "faults": [], "digests": [], "slowest_restart_seconds": None, "seconds": 0.0}
    return {**facts, **nothing, "planned": len(plan.faults), "generations": 0, "most_zombies": 0,
            "violations": [f"the injector itself has failed ({code})"]}  # fmt: skip


def unshare_command() -> list[str] | None:
    """What starts a command in namespaces of its own; None where this user may not."""
    program = shutil.which("unshare")
    if program is None:
        return None
    base = [program, "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    for extra in ([], ["--user", "--map-root-user"]):
        if subprocess.run([*base, *extra, "true"], capture_output=True, check=False).returncode == 0:
            return [*base, *extra]
    return None


def job_line(result: dict[str, Any]) -> str:
    """One line about a job."""
    slowest = result["slowest_restart_seconds"]
    return (
        f"seed {result['seed']}: {result['ranks']} rank(s), {result['worker_start']}, "
        f"{'with' if result['has_py_spy'] else 'without'} py-spy: "
        f"{len(result['faults'])} of {result['planned']} faults, "
        f"{result['generations']} generations, {result['seconds']:.0f} s, exit {result['exit_code']}, "
        f"slowest restart {'-' if slowest is None else f'{slowest:.2f} s'}, most zombies {result['most_zombies']}: "
        + ("as undisturbed" if not result["violations"] else f"{len(result['violations'])} VIOLATION(S)")
    )


def summary(results: list[dict[str, Any]]) -> list[str]:
    """A table over all jobs: per kind how many, skipped, culprits and the slowest restart."""
    faults = [fault for result in results for fault in result["faults"]]
    lines = [f"{'fault':<24}{'done':>6}{'skipped':>9}{'right':>7}{'none':>6}{'wrong':>7}{'lost':>6}  slowest restart"]
    for name in KINDS:
        rows = [fault for fault in faults if fault["kind"] == name]
        if not rows:
            continue
        skipped = sum(row["outcome"].startswith("skipped") for row in rows)
        scores = Counter(row["culprit"] for row in rows)
        slowest = max((row["restart_seconds"] for row in rows if row["restart_seconds"] is not None), default=None)
        lines.append(
            f"{name:<24}{len(rows) - skipped:>6}{skipped:>9}{scores['right']:>7}{scores['none']:>6}"
            f"{scores['wrong']:>7}{scores['no incident']:>6}  {'' if slowest is None else f'{slowest:.3f} s'}".rstrip()
        )
    why = Counter(f["outcome"] for f in faults if f["outcome"].startswith("skipped"))
    lines += [f"{count} {reason}" for reason, count in why.items()]
    for result in results:
        lines += [f"seed {result['seed']}: {violation}" for violation in result["violations"]]
    equal = sum(not result["violations"] for result in results)
    planned = sum(result["planned"] for result in results)
    lines.append(f"{len(faults)} of {planned} faults in {len(results)} job(s); {equal} job(s) without a violation")
    return lines


def parse_options() -> argparse.Namespace:
    """The command line."""
    kinds = "\n".join(f"  {name:<24}{kind.what}" for name, kind in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description=__doc__,
        epilog=f"kinds of faults:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seed", type=_seeds, default=[1], metavar="SEED,...", help="of the first job (1), or one for each job"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="one job with this seed; use the same --faults")
    parser.add_argument("--jobs", type=int, default=1, help="how many, with seeds one after the other (1)")
    parser.add_argument("--faults", type=int, default=40, help="in each job (40)")
    parser.add_argument("--kinds", type=_kinds, default=(), metavar="KIND,...", help="only these")
    parser.add_argument(
        "--each", action="store_true", help=f"a job for each kind, with {' and '.join(_PROBES)} among its faults"
    )
    parser.add_argument("--ranks", type=int, help="in every job; 1 to 4, by the seed, otherwise")
    parser.add_argument("--worker-start", choices=("warm", "spawn"), help="in every job; by the seed otherwise")
    parser.add_argument("--py-spy", choices=("yes", "no"), help="whether jobs may see it; by the seed otherwise")
    parser.add_argument("--step-limit", type=float, default=2.0, metavar="SECONDS", help="limit of a step (2)")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="for a job to go on (60)")
    parser.add_argument(
        "--restart-bound", type=float, default=30.0, metavar="SECONDS", help="a slower restart is a violation (30)"
    )
    parser.add_argument("--job-timeout", type=float, default=1800.0, metavar="SECONDS", help="for a whole job (1800)")
    parser.add_argument("--json", metavar="FILE", help="keep every figure")
    parser.add_argument("--keep", action="store_true", help="keep outputs and logs of clean runs, too")
    options = parser.parse_args()
    if options.replay is not None:
        options.seed, options.jobs = [options.replay], 1
    if len(options.seed) == 1:
        options.seed = [options.seed[0] + number for number in range(options.jobs)]
    return options


def _seeds(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _kinds(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        wrapped = textwrap.shorten(", ".join(KINDS), 1000)
        raise argparse.ArgumentTypeError(f"no kind {', '.join(unknown)}; there are {wrapped}")
    return names


if __name__ == "__main__":
    sys.exit(main())
