"""The folder that the packages of this distribution are installed in."""

from __future__ import annotations

import os

__all__ = ["HOME"]

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of ``resilience_core``, ``adapters``, ``launcher`` and ``straggler``: site-packages, or a checkout."""
