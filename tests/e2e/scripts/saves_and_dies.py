"""Saves one iteration more than its predecessor and fails, until the last one is saved."""

import sys
from pathlib import Path

file, last = Path(sys.argv[1]), int(sys.argv[2])
saved = int(file.read_text()) + 1 if file.exists() else 0
file.write_text(str(saved))
sys.exit(0 if saved == last else 1)
