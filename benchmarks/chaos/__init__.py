"""Random faults from outside in real jobs: ``python -m benchmarks.chaos``; see ``__main__.py``."""
