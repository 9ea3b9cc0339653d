"""The monitor process, one per node: rules, verdicts, signals. Standard library only."""
