"""Writes what it finds in its environment and says a line on each stream."""

import json
import os
import sys
from pathlib import Path

Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
# Each in one piece: an unbuffered print writes text and newline one after the other.
os.write(1, f"out of rank {os.environ['RANK']}: 12 done\n".encode())
os.write(2, f"err of rank {os.environ['RANK']}\n".encode())
