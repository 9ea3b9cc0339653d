"""What needs a GPU. Ends with 2 where there is none, and with 1 when something is not as promised.

python -m benchmarks.gpu
python -m benchmarks.gpu --only restarts --faults sigkill,kernel-hang --tries 10 --gigabytes 30 --json gpu.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu import evidence, health, probes, restarts
from benchmarks.gpu.device import NoGpuError, machine

PARTS = ("health", "probes", "evidence", "restarts")


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"which parts ({','.join(PARTS)})")
    parser.add_argument("--faults", default=",".join(restarts.FAULTS), help="which faults (all)")
    parser.add_argument("--tries", type=int, default=3, metavar="COUNT", help="jobs of each case (3)")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="GPU memory that each rank holds, in GiB (8)")
    parser.add_argument("--json", type=Path, help="where to leave every raw figure")
    arguments = parser.parse_args()
    faults = arguments.faults.split(",")
    parts = arguments.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only {','.join(unknown)}: unknown; there are {', '.join(PARTS)}")
    if unknown := sorted(set(faults) - set(restarts.FAULTS)):
        parser.error(f"--faults {','.join(unknown)}: unknown; there are {', '.join(restarts.FAULTS)}")
    try:
        print(machine(), flush=True)
    except NoGpuError as error:
        print(f"benchmarks.gpu: {error}; it needs a GPU, a CUDA build of torch and nvidia-ml-py", file=sys.stderr)
        return 2
    raw: dict[str, Any] = {}
    right: dict[str, bool] = {}
    for part in parts:
        if part == "restarts":
            raw[part], right[part] = restarts.run(faults, arguments.tries, arguments.gigabytes)
        else:
            raw[part], right[part] = {"health": health, "probes": probes, "evidence": evidence}[part].run()
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(raw))
    for part, is_right in right.items():
        if not is_right:
            print(f"{part}: not as promised, see above", file=sys.stderr)
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
