"""``python -m launcher.top``: the same as ``ft_top``."""

from __future__ import annotations

import sys

from launcher.top import main

sys.exit(main())
