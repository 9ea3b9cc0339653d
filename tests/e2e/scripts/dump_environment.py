"""Writes what it finds in its environment and says a line on each stream."""

import json
import os
import sys
from pathlib import Path

Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
print(f"out of rank {os.environ['RANK']}: 12 done", flush=True)
print(f"err of rank {os.environ['RANK']}", file=sys.stderr, flush=True)
