"""Healthy jobs under disturbances that must kill nothing: ``python -m benchmarks.false_kills``; see ``__main__.py``."""
