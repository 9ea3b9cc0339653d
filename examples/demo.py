"""``make demo``: the same training twice, once left alone and once hit by a hang and a SIGKILL; the same weights.

Ends with 0 only when both runs ended well, both faults struck, the accuracy is above 95 % and the weights of both
runs are bitwise equal.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
LEAST_ACCURACY = 0.95


def main() -> int:
    """Run both, compare, and return the exit code."""
    options = parse_options()
    shutil.rmtree(options.out, ignore_errors=True)
    fault = (
        f"hang:rank={options.hang_rank},step={options.hang_step};"
        f"sigkill:rank={options.kill_rank},step={options.kill_step},generation=1"
    )
    undisturbed = train("1. undisturbed", options.out, "undisturbed", [])
    disturbed = train(
        f"2. rank {options.hang_rank} hangs at step {options.hang_step}, "
        f"later rank {options.kill_rank} is killed at step {options.kill_step}",
        options.out,
        "disturbed",
        ["--fault", fault],
    )
    print("\n3. compared")
    for name, result in (("undisturbed", undisturbed), ("disturbed", disturbed)):
        restarts = result["generation"]
        print(
            f"{name:11}  {result['accuracy']:.2%} right  {restarts} restart{'' if restarts == 1 else 's'}  "
            f"{result['seconds']:4.1f} s  SHA-256 {result['sha256']}"
        )
    return judge(undisturbed, disturbed)


def train(title: str, out: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    """One job under ft_launcher, told on the terminal as it happens.

    Returns:
        Its ``result.json``, and ``seconds``.
    """
    command = [
        *(str(Path(sys.executable).with_name("ft_launcher")), "--nproc-per-node", "2", "--max-restarts", "3"),
        *("--ft-cfg-path", shown(EXAMPLES / "fault_tol_cfg_sections.yaml"), "--log-dir", str(out / "logs")),
        *(shown(EXAMPLES / "train_ddp_sections.py"), "--out", str(out / name)),
        *arguments,
    ]
    print(f"\n{title}\n$ {shlex.join(['ft_launcher', *command[1:]])}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    seconds = time.monotonic() - began
    if code != 0:
        sys.exit(f"demo: the {name} job ended with {code}; its logs are under {out / 'logs'}")
    result: dict[str, Any] = json.loads((out / name / "result.json").read_text(encoding="utf-8"))
    return {**result, "seconds": seconds}


def shown(path: Path) -> str:
    """Return a path as a person in this folder would write it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def judge(undisturbed: dict[str, Any], disturbed: dict[str, Any]) -> int:
    """Say what is wrong, if anything is."""
    wrong = []
    if undisturbed["generation"] != 0 or disturbed["generation"] != 2:
        wrong.append("the faults did not strike as planned: 0 and 2 restarts were expected")
    if min(undisturbed["accuracy"], disturbed["accuracy"]) <= LEAST_ACCURACY:
        wrong.append(f"the accuracy is not above {LEAST_ACCURACY:.0%}")
    if undisturbed["sha256"] != disturbed["sha256"]:
        wrong.append("the weights differ")
    print("the weights are bitwise equal" if not wrong else f"demo: {'; '.join(wrong)}")
    return 1 if wrong else 0


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo_out"), metavar="FOLDER", help="emptied first")
    parser.add_argument("--hang-rank", type=int, choices=(0, 1), default=1)
    parser.add_argument("--hang-step", type=int, default=65)
    parser.add_argument("--kill-rank", type=int, choices=(0, 1), default=0)
    parser.add_argument("--kill-step", type=int, default=150, help="after the restart")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
