"""Deliberate mistakes, and which test finds each: ``python -m benchmarks.mutants``; see ``__main__.py``."""
